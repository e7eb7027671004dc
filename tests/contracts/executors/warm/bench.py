"""A bench of plain processes with a preloaded Python, and what its tests ask of it.

Most tests take a small package for the framework, which the parent cannot tell from the real one and imports at once.
"""

from __future__ import annotations

import itertools
import json
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from core import file_locks
from executors.base import Observation, Phase, ReplicaOrder
from executors.process import WarmLimits, procfs
from tests.contracts.executors.conftest import ProcessBench

LIMIT_S = 240.0  # only for what never comes; torch is imported within seconds, on a loaded machine within minutes
FORKED = "forked from a preloaded parent"
_STUB = """
import mmap, os
_file = open(os.path.join(os.path.dirname(__file__), "libtorch_python.so"), "rb")
_map = mmap.mmap(_file.fileno(), 0, access=mmap.ACCESS_READ)
_file.close()
mode = os.environ.get("READ_BY_TORCH")
# As tqdm and others do at their import: each variable passes by, one of them is used.
prefixed = [value for name, value in os.environ.items() if name.startswith("PREFIX_OF_TORCH_")]
copies = [dict(os.environ), {**os.environ}, os.environ.copy(), list(os.environ.values()), list(os.environ.keys())]
program = [folder for folder in os.environ["PATH"].split(":") if os.path.exists(folder + "/no-such-program")]
"""
SAYS = "import sys, torch; print('torch.nn' in sys.modules)"
WAIT_FOR_RELEASE = """
import os, time, torch
while not os.path.exists("/data/output/release"):
    time.sleep(0.02)
"""


numbers = itertools.count(1)


class WarmBench(ProcessBench):
    """A bench whose jobs find a small package named torch."""

    def __init__(self, folder: Path, **limits: Any) -> None:
        preserved = {"parents": 2, "memory_bytes": 2**31, "idle_s": 120.0, "settle_s": 0.0, **limits}
        super().__init__(folder, warm=WarmLimits(**preserved))
        self.site = folder / "site"
        for name in ("", "distributed", "nn", "nn/parallel", "utils", "utils/data", "_dynamo"):
            (self.site / "torch" / name).mkdir(parents=True)
            (self.site / "torch" / name / "__init__.py").write_text("" if name else _STUB)
        (self.site / "torch/libtorch_python.so").write_bytes(b"\0" * 4096)

    def order(self, *behaviour: Any, **fields: Any) -> ReplicaOrder:
        """As ever, with a log of its own."""
        return super().order(*behaviour, attempt_number=next(numbers), **fields)

    def python(self, text: str, *args: str, **fields: Any) -> ReplicaOrder:
        """An order for ``python <a file with text> <args>``."""
        program = self.output / "program.py"
        if not program.exists() or program.read_text() != text:  # another replica may be reading it
            program.write_text(text)
        env = {"PYTHONPATH": str(self.site), **fields.pop("env", {})}
        return self.order(**{"command": ("python", "/data/output/program.py", *args), "env": env, **fields})

    def warm_up(self, **fields: Any) -> Path:
        """Run a first job, which starts cold, until there is a parent; returns the parent's folder."""
        (self.output / "release").unlink(missing_ok=True)
        order = self.python(WAIT_FOR_RELEASE, **fields)
        self.executor.create(order)
        folder = self.parent()
        (self.output / "release").touch()
        first = self.ended(order, LIMIT_S)
        assert "start" not in first.facts
        return folder

    def parent(self) -> Path:
        def find() -> list[Path]:
            unfit = list(self.run_dir.glob("warm/*/*/unfit"))
            assert not unfit, unfit[0].read_text()
            return list(self.run_dir.glob("warm/*/*/socket"))

        return wait_for(find)[0].parent

    def learn(self, **fields: Any) -> None:
        """Have a command seen with the framework, where there is a parent already."""
        # One looks on at a time, at this one only when it has done with the job before.
        wait_for(lambda: not any(map(file_locks.is_locked, self.run_dir.glob("warm/*/waiting"))))
        known = set(self.run_dir.glob("warm/*/hints/*"))
        (self.output / "release").unlink(missing_ok=True)
        order = self.python(WAIT_FOR_RELEASE, **fields)
        self.executor.create(order)
        wait_for(lambda: set(self.run_dir.glob("warm/*/hints/*")) - known)
        (self.output / "release").touch()
        assert self.ended(order, LIMIT_S).phase is Phase.SUCCEEDED

    def pid(self, folder: Path) -> int:
        return int(json.loads((folder / "parent.json").read_text())["pid"])

    def run_program(self, text: str, *args: str, **fields: Any) -> Observation:
        order = self.python(text, *args, **fields)
        self.executor.create(order)
        return self.ended(order, LIMIT_S)


def wait_for(look: Callable[[], Any]) -> Any:
    end = time.monotonic() + LIMIT_S
    while True:
        found = look()
        if found:
            return found
        assert time.monotonic() < end
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    return procfs.start_ticks(pid) is not None


def clear(bench: WarmBench) -> None:
    for attempt in bench.executor.attempts():
        bench.executor.remove(attempt)
    for path in bench.run_dir.glob("warm/*/*/parent.json"):
        identity = json.loads(path.read_text())
        procfs.send(identity["pid"], identity["start_ticks"], signal.SIGKILL)


def run(bench: WarmBench, text: str, **fields: Any) -> ReplicaOrder:
    """Run it warm; returns its order, for the log."""
    order = bench.python(text, **fields)
    bench.executor.create(order)
    observation = bench.ended(order, LIMIT_S)
    assert (observation.phase, observation.facts.get("start")) == (Phase.SUCCEEDED, FORKED), (
        observation,
        bench.log(order),
    )
    return order
