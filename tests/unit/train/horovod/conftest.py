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
def run_ranks(tmp_path_factory):
    """``run_ranks(scenario, size, **environment) -> Ranks``; a rank that failed fails the test, with its traceback."""
    pytest.importorskip("torch")

    def run(scenario, size, **environment):
        folder = tmp_path_factory.mktemp(scenario)
        env = {name: value for name, value in os.environ.items() if not name.startswith(("HOROVOD_", "TRAINMASTER_"))}
        env |= {"PYTHONPATH": f"{TRAIN}{os.pathsep}{HERE}", "OMP_NUM_THREADS": "1", **environment}
        done = subprocess.run(
            [sys.executable, str(HERE / "harness.py"), scenario, str(size), str(folder)],
            env=env,
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
        )
        ranks = Ranks()
        for rank in range(size):
            file = folder / f"{rank}.json"
            results = json.loads(file.read_text()) if file.exists() else {"result": None}
            assert "error" not in results, f"rank {rank}: {results['traceback']}\n{done.stderr}"
            ranks.append(results["result"])
        ranks.log = done.stdout + done.stderr
        return ranks

    return run
