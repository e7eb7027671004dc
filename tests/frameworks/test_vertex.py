"""Google's own SDK for Vertex AI, the newest one and the last one of its first major version, with jobs really run."""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any

import pytest

from tests.frameworks.conftest import SCRIPTS

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.xdist_group("frameworks"),
    pytest.mark.timeout(600),  # it looks at jobs every five seconds, and the machine may do much else
]


def run(python: str, script: str, *arguments: str, env: dict[str, str], task: str | None = "vertex_task.py") -> Any:
    """What a client's program says that it saw. ``task``: what it trains with, its last argument."""
    command = [python, str(SCRIPTS / script), *arguments, *([str(SCRIPTS / task)] if task else [])]
    env = {**os.environ, "PYTHONWARNINGS": "ignore", **env}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=480, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("SEEN ")]
    assert lines, f"{done.stdout[-3000:]}\n{done.stderr[-6000:]}"
    return json.loads(lines[0].removeprefix("SEEN "))


@pytest.mark.parametrize("version", ["vertex", "vertex1"])
def test_the_unmodified_sdk_trains_here(platform: Any, python_of: Any, version: str) -> None:
    env = {"STORAGE_EMULATOR_HOST": platform.url}
    seen = run(python_of(version), "vertex_client.py", platform.url, platform.token, env=env)
    assert seen["states"] == ["JOB_STATE_SUCCEEDED", "JOB_STATE_SUCCEEDED", "PIPELINE_STATE_SUCCEEDED"]
    assert seen["custom"] == "from X"
    assert seen["local"] == {
        "epochs": 3, "pools": {"workerpool0": 1}, "type": None, "world": ["0", "1"], "region": "us-central1", "six": "six",
    }  # fmt: skip
    assert [one["type"] for one in seen["pipe"]] == ["chief", "worker"]
    assert [one["world"] for one in seen["pipe"]] == [["0", "2"], ["1", "2"]]
    assert [one["epochs"] for one in seen["pipe"]] == [1, 1]
    assert seen["pipe"][0]["pools"] == {"workerpool0": 1, "workerpool1": 1}
    assert seen["model"] == ["A model", "1", ["default"], True]
    assert (seen["models"], seen["versions"], seen["models_left"]) == (["A model"], [["default", "prod"]], [])
    assert (seen["listed"], seen["cancelled"], seen["deleted"]) == (["sleeper"], "JOB_STATE_CANCELLED", 404)
    assert "no data" in seen["failed"]
    assert seen["refused"][0] == "MethodNotImplemented"
    assert "service accounts are not served" in seen["refused"][1]
    assert (seen["large"], seen["objects"], seen["gone"]) == (True, ["large/object.bin", "large/whole.bin"], True)
    assert "training" in seen["pipelines"]
    assert seen["pipelines_left"].count("training") == seen["pipelines"].count("training") - 1
    assert seen["wrong_token"][0] == "Forbidden"
    assert "not known here" in seen["wrong_token"][1]


def test_the_environment_alone_points_a_script_here(platform: Any, python_of: Any) -> None:
    printed = json.loads(platform.cli("vertex-env", "--location", "europe-west4", "--json").stdout)
    seen = run(python_of("vertex1"), "vertex_plain.py", env=printed)
    assert seen["state"] == "JOB_STATE_SUCCEEDED"
    assert seen["output"].startswith("gs://default/aiplatform-custom-job-")
    assert (seen["told"]["epochs"], seen["told"]["region"]) == (2, "europe-west4")


@pytest.mark.parametrize("version", ["vertex", "vertex1"])
def test_the_unmodified_sdk_and_hypertune_search_here(platform: Any, python_of: Any, version: str) -> None:
    env = {"STORAGE_EMULATOR_HOST": platform.url}
    reader = platform.client.create_token(version, scopes=["read"]).token
    arguments = (platform.url, platform.token, reader)
    seen = run(python_of(version), "vertex_tunes.py", *arguments, env=env, task="vertex_trial.py")
    assert (seen["state"], seen["labels"], seen["job"]) == ("JOB_STATE_SUCCEEDED", {"team": "x"}, "JOB_STATE_SUCCEEDED")
    assert [(trial["id"], trial["state"]) for trial in seen["trials"]] == [(str(n), "SUCCEEDED") for n in (1, 2, 3, 4)]
    for trial in seen["trials"]:
        point = {one["parameter_id"]: one["value"] for one in trial["parameters"]}
        assert ("momentum" in point) == (point["optimizer"] == "sgd")
        assert (0.0001 <= point["learning_rate"] <= 0.1, point["batch_size"] in (16, 32)) == (True, True)
        (metric,) = trial["final_measurement"]["metrics"]
        # The best one counts: the last is half of it.
        assert (metric["metric_id"], metric["value"]) == ("accuracy", max(0.1, point["units"] / 100))
        assert trial["start_time"] < trial["end_time"]
    best = seen["best"]
    assert best["units"] == max(
        one["value"] for t in seen["trials"] for one in t["parameters"] if one["parameter_id"] == "units"
    )
    assert (seen["told"]["trial"], seen["told"]["units"], seen["told"]["tag"]) == (
        best["id"],
        best["units"],
        "accuracy",
    )
    assert (seen["listed"], seen["cancelled"], seen["deleted"]) == (["sleeper"], ["JOB_STATE_CANCELLED", True], 404)
    assert "never reported the metric" in seen["silent"]
    assert "it reported loss" in seen["silent"]
    assert seen["bad_enum"][0] == "BadRequest"
    assert "learning_rate is DOUBLE" in seen["bad_enum"][1]
    assert seen["no_rights"][0] == "Forbidden"
    assert "write" in seen["no_rights"][1]
    assert seen["unserved"][0] == "MethodNotImplemented"
    assert "trial_job_spec.service_account: service accounts are not served" in seen["unserved"][1]
    assert seen["no_place"][0] == "TooManyRequests"
    assert "V100" in seen["no_place"][1]
    assert "study_spec.parameters[0]: has scale log and min 0" in seen["bad_range"][1]
