"""The examples' scripts without the platform: each process started with the environment that the contracts promise."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

# Alone on its worker of xdist: the scripts want the cores.
pytestmark = pytest.mark.xdist_group("examples")

EXAMPLES = Path(__file__).parents[3] / "examples"
WITHIN_S = 120.0
ACCURACY = 0.95


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    spec = importlib.util.spec_from_file_location("make_digits", EXAMPLES / "data" / "make_digits.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    folder = tmp_path_factory.mktemp("digits")
    assert module.make_digits(folder) == (1437, 360)
    return folder


class Gang:
    """The processes of one attempt, in rank order, with their output in files."""

    def __init__(self, folder: Path, digits: Path) -> None:
        self.folder = folder
        self.digits = digits
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def output(self) -> Path:
        return self.folder / "output"

    def start(self, name: str, script: str, *arguments: str, **env: str) -> subprocess.Popen[bytes]:
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("TRAINMASTER_", "TF_CONFIG"))}
        folders = {"TRAINMASTER_DATA_DIR": str(self.digits), "TRAINMASTER_OUTPUT_DIR": str(self.output)}
        more = {
            "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
            "TRAINMASTER_REPORT_FILE": f"{self.folder}/{name}.json",
        }
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, str(EXAMPLES / script), *arguments],
                env={**clean, **folders, **more, **env},
                stdout=log,
                stderr=log,
            )
        self.processes[name] = process
        return process

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def until(self, condition: Callable[[], Any], what: str) -> None:
        deadline = time.monotonic() + WITHIN_S
        while not condition():
            if time.monotonic() > deadline:
                logs = "\n".join(f"--- {name}\n{self.log(name)}" for name in self.processes)
                pytest.fail(f"not within {WITHIN_S} s: {what}\n{logs}")
            time.sleep(0.05)

    def ended(self, *names: str) -> list[int]:
        self.until(lambda: all(self.processes[name].poll() is not None for name in names), f"end of {names}")
        return [self.processes[name].returncode for name in names]

    def checkpoints(self) -> list[Path]:
        return sorted(path.parent for path in self.output.glob("checkpoints/step-*/.complete"))

    def result(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.output / "result.json").read_text())
        return found

    def kill(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()


@pytest.fixture
def gang(tmp_path: Path, digits: Path) -> Iterator[Gang]:
    gang = Gang(tmp_path, digits)
    yield gang
    gang.kill()


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [sock.getsockname()[1] for sock in sockets]
    finally:
        for sock in sockets:
            sock.close()


def start_allreduce(gang: Gang, *arguments: str, script: str = "allreduce/train.py", **env: str) -> None:
    (port,) = free_ports(1)
    for rank in range(2):
        ranks = {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": "0"}
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        gang.start(f"worker-{rank}", script, *arguments, **ranks, **address, **env)


def test_allreduce_that_is_queried_to_stop_leaves_a_checkpoint_of_its_last_step(gang: Gang) -> None:
    start_allreduce(gang, "--checkpoint-every", "1000", "--step-seconds", "0.02")
    gang.until(lambda: "epoch   1" in gang.log("worker-0"), "the first epoch")
    for process in gang.processes.values():
        process.terminate()

    assert gang.ended("worker-0", "worker-1") == [128 + signal.SIGTERM] * 2
    (checkpoint,) = gang.checkpoints()
    assert f"left after step {int(checkpoint.name.removeprefix('step-'))}." in gang.log("worker-0")


def test_the_pipeline_trains_in_two_stages_and_each_resumes_its_own_after_a_kill(gang: Gang) -> None:
    start_allreduce(gang, "--checkpoint-every", "20", script="pipeline/train.py")
    gang.until(gang.checkpoints, "a first checkpoint")
    gang.processes["worker-1"].kill()
    assert gang.ended("worker-0", "worker-1") == [1, -signal.SIGKILL]
    newest = gang.checkpoints()[-1]
    assert len(list(newest.glob("*.distcp"))) == 2

    start_allreduce(gang, "--checkpoint-every", "100", script="pipeline/train.py", TRAINMASTER_RESUME_FROM=str(newest))

    assert gang.ended("worker-0", "worker-1") == [0, 0]
    result = gang.result()
    assert result["accuracy"] >= ACCURACY
    assert result["resumed_at"] == int(newest.name.removeprefix("step-")) > 0
    assert result["stages"] == 2


def test_missing_data_is_one_sentence(gang: Gang, tmp_path: Path) -> None:
    gang.digits = tmp_path / "nowhere"
    gang.start("worker-0", "allreduce/train.py")

    assert gang.ended("worker-0") == [1]
    (line,) = gang.log("worker-0").splitlines()
    assert line.endswith(
        "train.npz is missing: give the job `input: data/digits`, made by examples/data/make_digits.py."
    )


class ParameterServerGang:
    def __init__(self, gang: Gang, ps: int, workers: int) -> None:
        ports = free_ports(ps + workers)
        hosts = [f"127.0.0.1:{port}" for port in ports]
        self.cluster = {"ps": hosts[:ps], "worker": hosts[ps:]}
        self.gang = gang

    def start(self, role: str, index: int, *arguments: str, **env: str) -> None:
        config = json.dumps({"cluster": self.cluster, "task": {"type": role, "index": index}})
        key = {"PS_KEY": "a key for the test", "TF_CONFIG": config}
        self.gang.start(f"{role}-{index}", "parameter_server/train.py", *arguments, **key, **env)

    def start_all(self, *arguments: str, **env: str) -> None:
        for role, hosts in self.cluster.items():
            for index in range(len(hosts)):
                self.start(role, index, *arguments, **env)


def test_three_ps_take_over_what_two_wrote_and_a_killed_ps_comes_back(gang: Gang) -> None:
    first = ParameterServerGang(gang, ps=2, workers=1)
    first.start_all("--updates", "300", "--checkpoint-every", "100")
    assert gang.ended("worker-0") == [0]
    gang.kill()
    assert len(list(gang.checkpoints()[-1].glob("shard-*"))) == 2

    second = ParameterServerGang(gang, ps=3, workers=2)
    slow = ("--checkpoint-every", "100", "--step-seconds", "0.01")
    second.start_all(*slow)
    gang.until(lambda: gang.checkpoints()[-1].name > "step-00000400", "a checkpoint of the second gang")
    gang.processes["ps-1"].kill()
    gang.processes["ps-1"].wait()
    second.start("ps", 1, *slow)

    assert gang.ended("worker-0", "worker-1") == [0, 0]
    assert "lost a ps" in gang.log("worker-0")
    assert "resuming from step-" in gang.log("ps-1")
    assert gang.result()["accuracy"] >= ACCURACY
    for name in ("ps-0", "ps-1", "ps-2"):
        gang.processes[name].terminate()
    assert gang.ended("ps-0", "ps-1", "ps-2") == [0, 0, 0]


def test_a_parameter_server_without_a_key_or_a_ps_says_what_to_do(gang: Gang) -> None:
    gang.start("alone", "parameter_server/train.py")
    config = json.dumps({"cluster": {"ps": ["127.0.0.1:1"]}, "task": {"type": "ps", "index": 0}})
    gang.start("keyless", "parameter_server/train.py", TF_CONFIG=config, PS_KEY="")

    assert gang.ended("alone", "keyless") == [1, 1]
    assert "give the job `ps: 1`" in gang.log("alone")
    assert "set PS_KEY" in gang.log("keyless")
