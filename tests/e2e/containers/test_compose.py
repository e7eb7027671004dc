"""The compose file, as an administrator uses it: configure, up, a job through a killed scheduler, down."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from trainmaster import Client

from tests.e2e.stories import story_of

ROOT = Path(__file__).parents[3]
CONTROL_IMAGE = os.environ.get("TRAINMASTER_TEST_CONTROL_IMAGE", "")
RUNTIME_IMAGE = os.environ.get("TRAINMASTER_TEST_RUNTIME_IMAGE", "")
JOB_IMAGE = os.environ.get("TRAINMASTER_TEST_JOB_IMAGE", "python:3.11-slim")

pytestmark = [pytest.mark.e2e, pytest.mark.docker, pytest.mark.timeout(900), pytest.mark.xdist_group("compose")]


def docker(*arguments: str, check: bool = True, timeout: float = 300) -> str:
    done = subprocess.run(["docker", *arguments], capture_output=True, text=True, timeout=timeout, check=False)
    assert not check or done.returncode == 0, f"docker {' '.join(arguments)}: {done.stderr[-3000:]}"
    return done.stdout.strip()


@dataclass
class Stack:
    name: str
    env_file: Path
    data: Path
    port: int

    def compose(self, *arguments: str, check: bool = True) -> str:
        return docker(
            "compose", "--project-directory", str(ROOT), "--env-file", str(self.env_file), *arguments, check=check
        )

    def container(self, service: str) -> str:
        return self.compose("ps", "-q", service)

    def token(self) -> str:
        return self.compose("exec", "-T", "api", "cat", str(self.data / "token"))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture(scope="module")
def images() -> tuple[str, str]:
    if (
        shutil.which("docker") is None
        or subprocess.run(["docker", "info"], capture_output=True, check=False).returncode
    ):
        pytest.skip("no Docker engine answers")
    if subprocess.run(["docker", "compose", "version"], capture_output=True, check=False).returncode:
        pytest.skip("docker has no compose plugin")
    missing = [
        name
        for name, image in (
            ("TRAINMASTER_TEST_CONTROL_IMAGE", CONTROL_IMAGE),
            ("TRAINMASTER_TEST_RUNTIME_IMAGE", RUNTIME_IMAGE),
        )
        if not image
        or subprocess.run(["docker", "image", "inspect", image], capture_output=True, check=False).returncode
    ]
    if missing:
        pytest.skip(f"{' and '.join(missing)} must name images that are built")
    return CONTROL_IMAGE, RUNTIME_IMAGE


@pytest.fixture(scope="module")
def stack(images: tuple[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    control, runtime = images
    home = tmp_path_factory.mktemp("compose")
    stack = Stack(f"tm-test-{secrets.token_hex(4)}", home / "env", home / "data", free_port())
    subprocess.run(
        ["sh", str(ROOT / "deploy" / "compose" / "configure"), str(stack.env_file)],
        env={
            **os.environ,
            "COMPOSE_PROJECT_NAME": stack.name,
            "TRAINMASTER_INSTANCE": stack.name,
            "TRAINMASTER_DATA": str(stack.data),
            "TRAINMASTER_PORT": str(stack.port),
            "TRAINMASTER_REPLICA_PORT": str(free_port()),
            "TRAINMASTER_CONTROL_IMAGE": control,
            "TRAINMASTER_RUNTIME_IMAGE": runtime,
            "TRAINMASTER_DEFAULT_IMAGE": JOB_IMAGE,
        },
        check=True,
        capture_output=True,
    )
    try:
        stack.compose("up", "-d", "--no-build", "--wait")
        yield stack
    finally:
        docker(
            "compose", "--project-directory", str(ROOT), "--env-file", str(stack.env_file), "down", "-v", check=False
        )
        for kind in ("container", "network", "volume"):
            of_jobs = docker(
                kind, "ls", "-q", *(["-a"] if kind == "container" else []), *_of(stack), check=False
            ).split()
            if of_jobs:
                docker(kind, "rm", "-f", *of_jobs, check=False)


def _of(stack: Stack) -> tuple[str, str]:
    return "--filter", f"label=trainmaster/instance={stack.name}"


SCRIPT = """
import os, pathlib, sys, time
print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], flush=True)
gate = pathlib.Path("/data/output/go")
deadline = time.monotonic() + 120
while not gate.exists() and time.monotonic() < deadline:
    time.sleep(0.1)
pathlib.Path(f"/data/output/model-{os.environ['RANK']}.txt").write_text("trained\\n")
sys.exit(0 if gate.exists() else 3)
"""


def test_a_job_trains_through_the_death_of_the_scheduler_and_nothing_is_left(stack: Stack, eventually: Any) -> None:
    with Client(f"http://127.0.0.1:{stack.port}", token=stack.token()) as client:
        job = client.submit(
            {"name": "digits", "workers": 2, "command": ["python3", "-c", SCRIPT], "cpu": "100m", "memory": "128Mi"}
        )
        eventually(lambda: client.get_job(job.id).state == "running", within_s=60, what="the job runs")
        before = sorted(docker("ps", "-q", *_of(stack)).split())
        assert len(before) == 2

        pid = int(docker("inspect", "-f", "{{.State.Pid}}", stack.container("scheduler")))
        os.kill(pid, 9)
        folder = next(path for path in (stack.data / "output").rglob(job.id) if "logs" not in path.parts)
        (folder / "go").touch()

        eventually(lambda: client.get_job(job.id).state == "succeeded", within_s=60, what="the job ends well")
        assert client.get_job(job.id).attempt_count == 1
        assert (folder / "model-1.txt").read_text() == "trained\n"
        eventually(lambda: not docker("ps", "-aq", *_of(stack)), within_s=30, what="its containers are gone")
        eventually(lambda: not docker("network", "ls", "-q", *_of(stack)), within_s=30, what="and its network")
    eventually(
        lambda: docker("inspect", "-f", "{{.State.Status}}", stack.container("scheduler")) == "running",
        within_s=20,
        what="the engine started the scheduler again",
    )


def test_two_workers_train_a_real_model_together_to_its_accuracy(stack: Stack) -> None:
    image = os.environ.get("TRAINMASTER_TEST_TORCH_IMAGE", "trainmaster/torch:cpu")
    if subprocess.run(["docker", "image", "inspect", image], capture_output=True, check=False).returncode:
        pytest.skip(f"the engine has no {image}; `python3 dev.py images` builds it")
    pytest.importorskip("sklearn")  # makes the data
    script = ROOT / "examples" / "data" / "make_digits.py"
    subprocess.run([sys.executable, str(script), str(stack.data / "data" / "digits")], check=True)
    example = ROOT / "examples" / "allreduce"
    spec = yaml.safe_load((example / "job.yaml").read_text())
    with Client(f"http://127.0.0.1:{stack.port}", token=stack.token()) as client:
        job = client.submit({**spec, "image": image, "env": {"OMP_NUM_THREADS": "1"}}, code=example)
        detail = job.wait(timeout_s=240)
        assert detail.state == "succeeded", f"{detail.exit}\n{story_of(job)}"
        assert json.loads(job.read_file("result.json"))["accuracy"] >= 0.95
        assert {source.name for source in job.log_sources()} == {"worker-0", "worker-1"}
        assert len(list(job.checkpoints())) >= 1


def test_nobody_gets_in_without_the_token_and_no_secret_is_in_the_logs(stack: Stack) -> None:
    request = urllib.request.Request(
        f"http://127.0.0.1:{stack.port}/api/v1/jobs", headers={"Authorization": "Bearer tm_guess"}
    )
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=10)
    assert refused.value.code == 401
    refused.value.close()
    output = stack.compose("logs", "--no-color")
    held = [line.partition("=")[2] for line in stack.env_file.read_text().splitlines() if "PASSWORD" in line]
    assert len(held) == 2
    assert not [secret for secret in (*held, stack.token()) if secret in output]


def test_the_parts_run_without_root_or_writable_images_and_only_the_scheduler_holds_the_socket(stack: Stack) -> None:
    for service in ("api", "scheduler", "beat"):
        (facts,) = json.loads(docker("inspect", stack.container(service)))
        host = facts["HostConfig"]
        assert facts["Config"]["User"] == "1000:1000"
        assert host["ReadonlyRootfs"]
        assert host["CapDrop"] == ["ALL"]
        assert any(mount["Destination"] == "/var/run/docker.sock" for mount in facts["Mounts"]) == (
            service == "scheduler"
        )


def test_down_leaves_nothing_but_the_data(stack: Stack) -> None:
    stack.compose("down", "-v")
    mine = ("--filter", f"label=com.docker.compose.project={stack.name}")
    deadline = time.monotonic() + 20
    while (left := [docker(kind, "ls", "-q", *mine) for kind in ("container", "network", "volume")]) != ["", "", ""]:
        assert time.monotonic() < deadline, left
        time.sleep(0.2)
    assert (stack.data / "output").is_dir()
