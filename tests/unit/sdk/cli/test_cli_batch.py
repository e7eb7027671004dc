"""``batch-predict --wait``: what is said and given to the shell when some, all or none of the instances failed."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

REQUEST = ("batch-predict", "digits@prod", "data/questions", "--wait")
OUTPUT = "output/default/job_1"
Serve = Callable[..., None]


@pytest.fixture
def serve(server: Any, job_json: Any) -> Serve:
    """A batch prediction of as many replicas as there are summaries; ``None``: that one has written none."""

    def on(*summaries: Any, **changes: Any) -> None:
        job = job_json(
            **{"name": "batch-predict", "state": "succeeded", "roles": {"worker": len(summaries)}, **changes}
        )
        files = {f"summary-{index}-of-{len(summaries)}.json": one for index, one in enumerate(summaries)}

        def content(request: httpx.Request) -> httpx.Response:
            found = files[request.url.params["path"]]
            if found is None:
                return httpx.Response(404, json={"title": "x", "status": 404, "code": "not_found", "detail": "None."})
            return httpx.Response(200, json=found)

        server.on("POST", "/projects/default/batch-predictions", {**job, "state": "queued"})
        server.on("GET", "/jobs/job_1", job)
        server.on("GET", "/jobs/job_1/files/content", content)

    return on


def counted(predictions: int, errors: int, first_error: str = "") -> dict[str, Any]:
    return {"predictions": predictions, "errors": errors, "first_error": first_error}


def test_the_replicas_counts_are_added_up_and_the_place_is_named(serve: Serve, cli: Any) -> None:
    serve(counted(20, 0), counted(5, 0))
    result = cli(*REQUEST)
    assert (result.exit_code, result.stderr) == (0, "")
    assert f"25 predictions, 0 errors: {OUTPUT}/predictions-*.jsonl" in result.stdout


def test_some_that_failed_are_a_warning_with_the_first_error(serve: Serve, cli: Any) -> None:
    serve(counted(20, 0), counted(5, 2, "the column age is missing"))
    result = cli(*REQUEST)
    assert result.exit_code == 0
    assert "25 predictions, 2 errors" in result.stdout
    assert "Warning: 2 instances have no prediction" in result.stderr
    assert f"{OUTPUT}/errors-*.jsonl" in result.stderr
    assert "the column age is missing" in result.stderr


def test_all_that_failed_are_an_error_to_the_shell_too(serve: Serve, cli: Any) -> None:
    serve(counted(0, 7, "the column age is missing"))
    result = cli(*REQUEST)
    assert result.exit_code == 1
    assert "0 predictions, 7 errors" in result.stdout
    assert "Error: none of the 7 instances has a prediction" in result.stderr
    assert "the column age is missing" in result.stderr


def test_without_instances_no_files_are_named_that_do_not_exist(serve: Serve, cli: Any) -> None:
    serve(counted(0, 0), counted(0, 0))
    result = cli(*REQUEST)
    assert result.exit_code == 0
    assert "jsonl" not in result.stdout + result.stderr
    assert "the input has no instances, so nothing was written" in result.stderr


@pytest.mark.parametrize("summaries", [(None,), (counted(1, 0), None), ("no summary",)])
def test_an_unknown_count_is_not_reported_as_a_number(serve: Serve, cli: Any, summaries: Any) -> None:
    serve(*summaries)
    result = cli(*REQUEST)
    assert result.exit_code == 0
    assert "errors:" not in result.stdout
    assert f"{OUTPUT}/predictions-*.jsonl" in result.stdout


def test_a_failed_job_says_why(serve: Serve, cli: Any) -> None:
    end = {"kind": "user_error", "sentence": "The model cannot be read.", "exit_code": 3}
    serve(None, exit=end, state="failed")
    result = cli(*REQUEST)
    assert result.exit_code == 1
    assert "The model cannot be read." in result.stderr


def test_programs_read_the_counts_beside_the_jobs_fields(serve: Serve, cli: Any) -> None:
    serve(counted(3, 1, "no JSON"))
    reported = json.loads(cli(*REQUEST, "--json").stdout)
    assert reported["id"] == "job_1"
    assert reported["batch"] == {"predictions": 3, "errors": 1, "first_error": "no JSON", "output": OUTPUT}


def test_what_a_job_spec_says_of_where_and_how_it_runs_can_be_given(serve: Serve, server: Any, cli: Any) -> None:
    serve(counted(1, 0))
    output = cli(
        *REQUEST[:-1], "--csv-rows", "array", "--gpus", "1", "--gpu-type", "H100", "--shm", "2Gi", "--no-preemptible",
        "--node-selector", "zone=a", "--secret", "KEY", "--priority", "low", "--max-run-time", "2h", "--label", "a=b",
    )  # fmt: skip
    assert output.exit_code == 0, output.stderr
    (requested,) = [one for one in server.requests if one.method == "POST"]
    body = json.loads(requested.content)
    for field, value in {
        "csv_rows": "array", "resources": {"gpus": 1.0, "gpu_type": ["H100"], "shm": "2Gi"}, "preemptible": False,
        "node_selector": {"zone": "a"}, "secrets": ["KEY"], "max_run_time": "2h", "labels": {"a": "b"},
    }.items():  # fmt: skip
        assert body[field] == value
