"""Ray's own client and its command line, unmodified: what they submit are jobs of ours, really executed."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.frameworks.conftest import SCRIPTS

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.xdist_group("frameworks"),
    pytest.mark.timeout(900),  # some ten processes that import Ray, for a machine that does much else
]
FOLDER = SCRIPTS / "ray_folder"


def env_of(platform: Any, **more: str) -> dict[str, str]:
    retained = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "PYTHONPATH"))}
    return {**retained, "TM_TOKEN": platform.token, "NO_COLOR": "1", **more}


def test_rays_client(platform: Any, python_of: Any) -> None:
    command = [python_of("ray"), str(SCRIPTS / "ray_client.py"), f"{platform.url}/ray", str(FOLDER)]
    done = subprocess.run(command, env=env_of(platform), capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    seen = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("SEEN ")).partition(" ")[2])
    printed = "hello from a folder one two three 0.1\n"
    assert (seen["version"], seen["tail"], seen["logs"]) == ("4", printed, printed)
    metadata = {"job_name": "Digits", "team": "vision"}
    assert seen["succeeded"] == ["SUCCEEDED", "Job finished successfully.", 0, metadata, "SUBMISSION"]
    assert seen["took"]
    status, code, kind, message = seen["failed"]
    assert (status, code, kind) == ("FAILED", 3, "JOB_ENTRYPOINT_COMMAND_ERROR")
    assert "exit code 3" in message
    assert "Job with submission_id bad already exists" in seen["twice"]
    assert "non-terminal state" in seen["not deleted"]
    assert seen["stopped"] == [True, "STOPPED", False]
    assert seen["deleted"]
    assert (seen["found"], seen["left"]) == (3, 2)
    assert "does not exist" in seen["gone"]
    assert "runtime_env.conda is not served" in seen["conda"]
    assert "This token is not known here" in seen["nobody"]
    assert "There is no project 'nowhere'" in seen["nowhere"]
    # It is a job like any other.
    job = platform.client.job(seen["id"]).detail()
    assert (job.name, job.state, job.labels["team"]) == ("Digits", "succeeded", "vision")


def test_rays_command_line(platform: Any, python_of: Any) -> None:
    ray = Path(python_of("ray")).with_name("ray")
    headers = json.dumps({"Authorization": f"Bearer {platform.token}"})
    env = env_of(platform, RAY_API_SERVER_ADDRESS=f"{platform.url}/ray/default", RAY_JOB_HEADERS=headers)

    def job(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(ray), "job", *arguments], env=env, capture_output=True, text=True, timeout=400, check=False
        )

    followed = job("submit", "--submission-id", "cli", "--working-dir", str(FOLDER), "--", "python", "train.py", "a b")
    assert followed.returncode == 0, followed.stderr
    assert "hello from a folder a b" in followed.stdout
    assert "Job 'cli' succeeded" in followed.stdout + followed.stderr
    failed = job("submit", "--", "sh", "-c", "exit 4")
    assert failed.returncode == 1
    assert "exit code 4" in failed.stdout + failed.stderr

    waits = ["--no-wait", "--submission-id", "stuck", "--runtime-env-json", '{"env_vars": {"WAITS": "1"}}']
    submitted = job("submit", *waits, "--working-dir", str(FOLDER), "--", "python", "train.py")
    assert submitted.returncode == 0, submitted.stderr
    stopped = job("stop", "stuck")
    assert "was stopped" in stopped.stdout + stopped.stderr
    assert job("delete", "stuck").returncode == 0
    left = job("list")
    assert "submission_id='cli'" in left.stdout + left.stderr
    assert "submission_id='stuck'" not in left.stdout + left.stderr
