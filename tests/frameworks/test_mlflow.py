"""Scripts that log by MLflow's real client, unmodified, as jobs; and a user who reads them with it."""

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
    pytest.mark.timeout(600),  # two waits of minutes, for a machine that does much else
]


def test_what_a_script_logs_shows_in_its_runs(run: Any, platform: Any, python_of: Any) -> None:
    job = run("mlflow", SCRIPTS, ["mlflow_logs.py"], workers=2, name="logs")
    result = job.result()
    assert result["text"] == "hello"
    assert result["metrics"] == {"loss": pytest.approx(1 / 3)}
    env = {**os.environ, "MLFLOW_TRACKING_URI": f"{platform.url}/mlflow", "MLFLOW_TRACKING_TOKEN": platform.token}
    command = [python_of("mlflow"), str(SCRIPTS / "mlflow_reads.py"), result["run"]]
    seen = json.loads(subprocess.run(command, env=env, check=True, capture_output=True, timeout=240).stdout)
    assert seen["name"] == "logs"
    assert seen["status"] == "FINISHED"
    assert seen["experiment"] == "default"
    assert seen["params"] == {"lr": "0.1", "rank": "0"}
    assert seen["history"] == [[0, 1.0], [1, 0.5], [2, pytest.approx(1 / 3)]]
    assert seen["artifacts"] == ["config.json", "texts"]
    assert seen["texts"] == ["texts/notes.txt"]
    assert seen["found"] == [result["run"]]
    assert seen["refused"] == "PERMISSION_DENIED"
    # The same lies in the job's output, and the second replica's values are its own.
    assert job.job.read_file(f"mlflow/runs/{result['run']}/texts/notes.txt") == b"hello"
    second = json.loads(
        subprocess.run(
            [*command[:2], f"{result['run']}-worker-1"], env=env, check=True, capture_output=True, timeout=240
        ).stdout
    )
    assert second["params"] == {"lr": "0.1", "rank": "1"}
    assert second["metrics"] == {"loss": pytest.approx(4 / 3)}


def test_autolog_of_scikit_learn_with_nested_runs_and_a_registered_model(run: Any) -> None:
    job = run("mlflow", SCRIPTS, ["mlflow_autolog.py"])
    result = job.result()
    assert result["agrees"]
    files = {entry.path for entry in job.job.files(f"mlflow/models/{result['model']}")}
    assert f"mlflow/models/{result['model']}/MLmodel" in files
