"""submit: a job from its spec."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from trainmaster import Client
from trainmaster.errors import InvalidSpec
from typer.testing import Result

Invoke = Callable[..., Result]


def test_submit_reads_stdin_and_dry_run_prints_the_canonical_spec(cli: Invoke, server: Any, job_json: Any) -> None:
    server.on("POST", "/jobs", job_json()["spec"])
    done = cli(
        "submit", "-", "--dry-run", "--name", "other", stdin="name: mnist\nworkers: 2\ncommand: python train.py\n"
    )
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("name: mnist\n")
    sent = server.bodies("POST", "/jobs")[0]
    assert sent == {
        "spec": {"name": "other", "workers": 2, "command": "python train.py"},
        "dry_run": True,
    }


def test_all_mistakes_of_a_spec_are_listed_with_paths_and_hints(
    cli: Invoke, server: Any, problem: Any, tmp_path: Path
) -> None:
    (tmp_path / "job.yaml").write_text("name: x\nwrokers: 2\n")
    errors = [
        {"path": "wrokers", "message": "is not a field", "hint": "did you mean workers?"},
        {"path": "command", "message": "is missing", "hint": None},
    ]
    server.on("POST", "/jobs", problem(422, "invalid_spec", "The spec has 2 mistakes.", errors=errors))
    done = cli("submit", str(tmp_path / "job.yaml"))
    assert done.exit_code == 2
    assert done.stderr.splitlines() == [
        "Error: The job spec has 2 mistakes:",
        "  wrokers  is not a field",
        "           → did you mean workers?",
        "  command  is missing",
    ]


@pytest.mark.parametrize("command", [["study", "create"], ["study", "clone", "first", "--set", "max_trials=0"]])
def test_what_is_wrong_with_a_study_is_not_stated_of_a_job(
    command: list[str], cli: Invoke, server: Any, problem: Any, tmp_path: Path
) -> None:
    (tmp_path / "study.yaml").write_text("name: x\n")
    errors = [{"path": path, "message": "is missing", "hint": None} for path in ("template", "parameters")]
    refusal = problem(422, "invalid_spec", "The spec has 2 mistakes.", errors=errors)
    server.on("POST", "/studies", refusal)
    server.on("POST", "/studies/first/clone", refusal)
    done = cli(*command, *([str(tmp_path / "study.yaml")] if command[1] == "create" else []))
    assert done.stderr.splitlines()[0] == "Error: The study spec has 2 mistakes:"


@pytest.mark.parametrize("text", ["name: [", "- a\n- b\n", "just text", ""])
def test_a_file_that_is_no_spec_is_reported(text: str, cli: Invoke, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(text)
    done = cli("submit", str(tmp_path / "job.yaml"))
    assert done.exit_code == 2
    assert "job.yaml" in done.stderr
    assert cli("submit", str(tmp_path / "absent.yaml")).exit_code == 2
    assert cli("submit", str(tmp_path)).exit_code == 2


def test_a_single_mistake_is_reported_once(cli: Invoke, server: Any, problem: Any) -> None:
    errors = [{"path": "gpus", "message": "must be at least 0, not -1", "hint": None}]
    refusal = problem(422, "invalid_spec", "gpus: must be at least 0, not -1.", errors=errors)
    server.on("POST", "/jobs", refusal)
    done = cli("submit", "-", stdin="name: x\ngpus: -1\n")
    assert done.stderr.splitlines() == ["Error: The job spec has a mistake:", "  gpus  must be at least 0, not -1"]
    server.on(
        "GET",
        "/jobs",
        problem(422, "invalid_request", "limit: is too large.", errors=[{"path": "limit", "message": "is too large"}]),
    )
    assert cli("list").stderr == "Error: limit: is too large.\n"
    with (
        Client("http://server.test:8765", transport=httpx.MockTransport(server)) as client,
        pytest.raises(InvalidSpec) as raised,
    ):
        client.submit({"name": "x", "gpus": -1})
    assert str(raised.value) == "gpus: must be at least 0, not -1."
