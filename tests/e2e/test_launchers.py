"""Launchers' command lines for one machine, as users submit them with two workers: they become one world."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("e2e")]

TORCH = """
import os, torch, torch.distributed
names = ("RANK", "WORLD_SIZE")
rank, size = (int(os.environ.get(name) or os.environ["OMPI_COMM_WORLD_" + name[-4:]]) for name in names)
torch.distributed.init_process_group("gloo", rank=rank, world_size=size)
value = torch.ones(1) * (rank + 1)
torch.distributed.all_reduce(value)
print(f"sum {value.item():.0f} of {size}", flush=True)
torch.distributed.destroy_process_group()
"""
# Where no MPI is installed: as many processes as OpenMPI would start on one host.
MPIRUN = """#!/bin/sh
export OMPI_COMM_WORLD_SIZE=$2 OMPI_COMM_WORLD_RANK=0
shift 2
"$@" & first=$!
OMPI_COMM_WORLD_RANK=1 "$@" && wait $first
"""

# Rank 1 connects to rank 0, rank 2 to itself.
APART = """
import os, socket, time
rank, port = int(os.environ["RANK"]), int(os.environ["MASTER_PORT"])
server = socket.create_server(("127.0.0.1", port if rank == 0 else 0))
if rank == 0:
    accepted = server.accept()
while rank:
    try:
        client = socket.create_connection(("127.0.0.1", port) if rank == 1 else server.getsockname())
        break
    except OSError:
        time.sleep(0.1)
time.sleep(8)
"""


@pytest.fixture
def two(platform: Any, tmp_path: Path) -> Any:
    """``two(name, script, command, *options)``: a job of two workers, which succeeds; returns its log."""

    def run(name: str, script: str, command: str, *options: str) -> str:
        (tmp_path / "train.py").write_text(script)
        words = ("run", "--workers", "2", "--name", name, "--max-restarts", "0", *options, "--", *command.split())
        done = platform.cli(*words, cwd=tmp_path, timeout=240)
        assert done.returncode == 0, done.stdout + done.stderr
        return str(done.stdout)

    return run


def test_torchrun_for_one_machine(platform: Any, two: Any) -> None:
    pytest.importorskip("torch")
    printed = two("standalone", TORCH, "torchrun --standalone train.py", "--venv", sys.prefix)
    assert printed.count("sum 3 of 2") == 2
    shown = " ".join(platform.cli("show", "standalone").stdout.split())
    assert "Launcher torchrun: added for 2 replicas: --nnodes=2 --node_rank=0 --master_addr=127.0.0.1" in shown


def test_mpirun_runs_once(two: Any, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    own = []
    if shutil.which("mpirun") is None:
        (tmp_path / "mpirun").write_text(MPIRUN)
        (tmp_path / "mpirun").chmod(0o755)
        own = ["--env", f"PATH={tmp_path}:/usr/bin:/bin"]
    printed = two("by-mpi", TORCH, "mpirun -np 2 python train.py", "--venv", sys.prefix, *own)
    assert printed.count("sum 3 of 2") == 2
    assert "mpirun: added for 2 replicas: run once, by rank 0" in printed


def test_replicas_that_never_connect_are_a_warning(platform: Any, two: Any) -> None:
    # The runtime judges no job that is shorter than five seconds.
    printed = two("strangers", "import time; time.sleep(6)", "python train.py")
    sentence = "worker-0 ended and has never connected to another one: the 2 replicas train alone"
    assert f"WARNING: {sentence}" in printed
    events = platform.cli("events", "strangers").stdout
    assert "train.not_connected" in events
    assert f"Warning {sentence}" in " ".join(platform.cli("show", "strangers").stdout.split())


def test_a_replica_that_trains_apart_from_the_others_is_named(platform: Any, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(APART)
    words = ("run", "--workers", "3", "--name", "apart", "--max-restarts", "0", "--", "python", "train.py")
    done = platform.cli(*words, cwd=tmp_path, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    sentence = "worker-0 ended and has never connected to worker-2: 1 of the 3 replicas train apart from it"
    assert f"WARNING: {sentence}" in done.stdout
