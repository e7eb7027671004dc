"""One ps and workers, each a process of its own, started by hand."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest

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

options = ps.Options(**json.loads(sys.argv[1]))
ps.run(model, torch.optim.SGD(model.parameters(), lr=1e-6), train, options=options)
"""


class Gang:
    """``ps-0`` and ``worker-0`` to ``worker-N``, which train until :meth:`end_training`."""

    def __init__(self, folder: Path, workers: int, **options: float | str) -> None:
        self.folder = folder
        # However long the others' start takes on a busy machine.
        self._options = {"join_timeout_s": 600.0, **options}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._begun: dict[str, int] = defaultdict(int)
        ps, *others = [f"127.0.0.1:{port}" for port in free_ports(1 + workers)]
        self._peers = {"ps": [ps], "worker": others}
        for name in ("ps-0", *(f"worker-{index}" for index in range(workers))):
            self.start(name)

    def start(self, name: str) -> None:
        """Start it, or start it again."""
        role, _, index = name.partition("-")
        task = {"cluster": self._peers, "task": {"type": role, "index": int(index)}}
        own = {
            "TF_CONFIG": json.dumps(task),
            "PS_KEY": "a key for the test",
            "TRAINMASTER_OUTPUT_DIR": str(self.folder),
            "OMP_NUM_THREADS": "1",
        }
        with (self.folder / f"{name}.log").open("ab") as log:
            self._begun[name] = log.tell()
            self.processes[name] = subprocess.Popen(
                [sys.executable, "-c", SCRIPT, json.dumps(self._options)],
                env={**os.environ, **own},
                stdout=log,
                stderr=log,
            )

    def log(self, name: str) -> str:
        """Of all its starts."""
        return (self.folder / f"{name}.log").read_text()

    def own_steps(self, worker: int) -> int:
        """Since its last start."""
        return self._last(worker, r"own (\d+) update \d+\n")

    def updates(self) -> int:
        """As worker 0 sees them."""
        return self._last(0, r"own \d+ update (\d+)\n")

    def until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + 3 * WITHIN_S  # processes start and import torch meanwhile
        while not condition():
            if time.monotonic() > deadline:
                logs = "\n".join(f"--- {name}\n{self.log(name)[-2000:]}" for name in self.processes)
                pytest.fail(f"not within {3 * WITHIN_S} s: {what}\n{logs}")
            time.sleep(0.05)

    def ended(self, name: str) -> int:
        self.until(lambda: self.processes[name].poll() is not None, f"the end of {name}")
        return self.processes[name].returncode

    def send(self, name: str, number: signal.Signals) -> int:
        """Send it a signal that ends it; its exit code."""
        self.processes[name].send_signal(number)
        return self.ended(name)

    def end_training(self) -> None:
        (self.folder / "enough").touch()

    def close(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()

    def _last(self, worker: int, pattern: str) -> int:
        name = f"worker-{worker}"
        found = re.findall(pattern, self.log(name)[self._begun[name] :])
        return int(found[-1]) if found else 0
