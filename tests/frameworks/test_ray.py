"""Ray's own client and its command line, unmodified: what they submit are jobs of ours, really executed.

And Ray Train in jobs of two replicas, which are one Ray cluster.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import eventually  # noqa: F401 (a fixture)
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


def test_ray_train_runs_on_all_replicas_and_the_programs_exit_code_is_the_jobs(run: Any) -> None:
    job = run("ray", SCRIPTS, ["ray_train.py", "7"], workers=2, cpu=1)
    end = job.fail()
    assert (end.role, end.index, end.exit_code) == ("worker", 0, 7)
    found = [json.loads(job.job.read_file(f"worker-{rank}.json")) for rank in range(2)]
    assert {worker["size"] for worker in found} == {2}
    assert sorted(worker["replica"] for worker in found) == [0, 1]
    assert found[0]["node"] != found[1]["node"]
    assert "trained in 127.0.0.1:" in job.log("worker", 0)
    assert "trained in" not in job.log("worker", 1)
    events = {event.kind: event.reason for event in job.job.events()}
    added = "ray: added for 2 replicas: run once, by rank 0, with RAY_ADDRESS=127.0.0.1:"
    assert events["train.launcher"].startswith(added)
    assert "train.not_connected" not in events


def test_a_killed_node_of_a_ray_cluster_ends_the_job(run: Any, eventually: Any, kill: Any) -> None:  # noqa: F811
    code = "import ray, signal; ray.init(); print('started', flush=True); signal.pause()"
    job = run("ray", SCRIPTS, ["-c", code], name="ray-killed", workers=2, cpu=1, launcher="ray")
    eventually(lambda: "started" in job.log("worker", 0), within_s=200, what="the cluster")
    kill(job, "worker", 1, script="raylet/raylet")
    end = job.fail()
    assert (end.role, end.index) == ("worker", 1)
    assert "Ray's node has ended while rank 0's command runs" in end.sentence
