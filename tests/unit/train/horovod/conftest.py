from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
TRAIN = HERE.parents[3] / "worker_images" / "train"


class Ranks(list):
    """What the scenario returned on each rank; ``log``: what all of them printed."""

    log = ""


@pytest.fixture(scope="session")
def harness():
    """The process that forks the ranks of all scenarios; it ends when its input is closed."""
    pytest.importorskip("torch")
    env = {name: value for name, value in os.environ.items() if not name.startswith(("HOROVOD_", "TRAINMASTER_"))}
    env |= {"PYTHONPATH": f"{TRAIN}{os.pathsep}{HERE}", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(HERE / "harness.py")]
    with subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process


@pytest.fixture(scope="session")
def run_ranks(harness, tmp_path_factory):
    """``run_ranks(scenario, size, **environment) -> Ranks``; a rank that failed fails the test, with its traceback."""

    def run(scenario, size, **environment):
        folder = tmp_path_factory.mktemp(scenario)
        call = {"scenario": scenario, "size": size, "folder": str(folder), "environment": environment}
        print(json.dumps(call), file=harness.stdin, flush=True)
        end = harness.stdout.readline().strip()
        ranks = Ranks()
        ranks.log = (folder / "log").read_text()
        assert end == "ended", f"{scenario} {end or 'ended the harness'}\n{ranks.log}"
        for rank in range(size):
            file = folder / f"{rank}.json"
            results = json.loads(file.read_text()) if file.exists() else {"result": None}
            assert "error" not in results, f"rank {rank}: {results['traceback']}\n{ranks.log}"
            ranks.append(results["result"])
        return ranks

    return run
