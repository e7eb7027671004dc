"""A synchronous worker that is killed, as processes: the others say who is missing, or go on, and it may come back."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("zmq")

from tests.unit.train.ps.loopback import WITHIN_S, free_ports

SCRIPT = """
import json, os, pathlib, sys, time
import torch
from trainmaster_train import ps

torch.set_num_threads(1)
torch.manual_seed(1)
model = torch.nn.Linear(4, 1)

def train(servers):
    for step in servers.steps(until=10**9):
        model(torch.ones(2, 4)).sum().backward()
        servers.step()
        print("own", servers.own_steps, "update", servers.version, flush=True)
        if pathlib.Path(os.environ["TRAINMASTER_OUTPUT_DIR"], "enough").exists():
            return {}
        time.sleep(0.02)

options = ps.Options(mode="sync", **json.loads(sys.argv[1]))
ps.run(model, torch.optim.SGD(model.parameters(), lr=1e-6), train, options=options)
"""


class Gang:
    """One ps and two workers."""

    def __init__(self, folder: Path, **options: float) -> None:
        self.folder = folder
        self.options = options
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        ps, *workers = [f"127.0.0.1:{port}" for port in free_ports(3)]
        self._peers = {"ps": [ps], "worker": workers}
        for role, index in (("ps", 0), ("worker", 0), ("worker", 1)):
            self.start(role, index)

    def start(self, role: str, index: int) -> None:
        task = {"cluster": self._peers, "task": {"type": role, "index": index}}
        own = {
            "TF_CONFIG": json.dumps(task),
            "PS_KEY": "a key for the test",
            "TRAINMASTER_OUTPUT_DIR": str(self.folder),
        }
        name = f"{role}-{index}"
        with (self.folder / f"{name}.log").open("wb") as log:
            self.processes[name] = subprocess.Popen(
                [sys.executable, "-c", SCRIPT, json.dumps(self.options)],
                env={**os.environ, **own, "OMP_NUM_THREADS": "1"},
                stdout=log,
                stderr=log,
            )

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def own_steps(self, worker: int) -> int:
        found = re.findall(r"own (\d+) update \d+\n", self.log(f"worker-{worker}"))
        return int(found[-1]) if found else 0

    def until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + WITHIN_S
        while not condition():
            if time.monotonic() > deadline:
                logs = "\n".join(f"--- {name}\n{self.log(name)[-2000:]}" for name in self.processes)
                pytest.fail(f"not within {WITHIN_S} s: {what}\n{logs}")
            time.sleep(0.05)

    def ended(self, name: str) -> int:
        self.until(lambda: self.processes[name].poll() is not None, f"the end of {name}")
        return self.processes[name].returncode

    def kill_worker_1(self) -> None:
        self.until(lambda: self.own_steps(1) >= 2, "two steps together")
        self.processes["worker-1"].send_signal(signal.SIGKILL)
        assert self.ended("worker-1") == -signal.SIGKILL
        self.until(lambda: "worker 1 is gone" in self.log("ps-0"), "the ps notices")


@pytest.fixture
def gang(tmp_path: Path) -> Iterator[Callable[..., Gang]]:
    made: list[Gang] = []

    def make(**options: float) -> Gang:
        made.append(Gang(tmp_path, **options))
        return made[-1]

    yield make
    for one in made:
        for process in one.processes.values():
            process.kill()
            process.wait()


def test_the_others_go_on_without_a_killed_worker_until_it_is_back(gang: Callable[..., Gang]) -> None:
    job = gang(lost_timeout_s=1.0)
    job.kill_worker_1()
    before = job.own_steps(0)
    job.until(lambda: job.own_steps(0) >= before + 3, "steps without worker 1")

    job.start("worker", 1)
    job.until(lambda: job.own_steps(1) >= 2, "steps of the worker that is back")
    (job.folder / "enough").touch()

    assert [job.ended("worker-0"), job.ended("worker-1")] == [0, 0]
    assert "joined at update" in job.log("worker-1")
    assert re.search(r"ps 0: worker 1 is back \d+ s after it was lost, at update \d+\.", job.log("ps-0"))
    assert "Traceback" not in job.log("ps-0") + job.log("worker-0")
    assert job.processes["ps-0"].poll() is None, "a ps never ends by itself"


def test_a_worker_that_waited_too_long_says_who_is_missing(gang: Callable[..., Gang]) -> None:
    job = gang(lost_timeout_s=3600.0, step_timeout_s=8.0)
    job.kill_worker_1()

    assert job.ended("worker-0") == 1
    assert re.search(
        r"ps 0 at 127.0.0.1:\d+ did not answer worker 0's step \d+ \(update \d+\) within 8 s; it waits for worker 1 \(lost \d+ s ago\)",
        job.log("worker-0"),
    )
    assert "Traceback" not in job.log("worker-0")
