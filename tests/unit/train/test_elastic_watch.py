"""A peer that is gone without a word: it closes no connection, and gloo would wait for it until its time-out."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

SCRIPT = """
import os, signal, sys
import torch, torch.distributed as dist
from trainmaster_train import elastic

state = elastic.State(step=0)

@elastic.run(backend="gloo")
def train(state):
    while state.step < 3:
        if state.step == 1 and os.environ["STOPS"] == "1":
            print("stands still", flush=True)
            os.kill(os.getpid(), signal.SIGSTOP)
        dist.all_reduce(torch.ones(4))
        state.step += 1
        state.commit()
    return dist.get_world_size()

print("ended in a world of", train(state), flush=True)
"""


def write(folder: Path, number: int, rank: int, size: int, port: int) -> Path:
    env = {"RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    folder.mkdir(exist_ok=True)
    (folder / "new").write_text(json.dumps({"world": number, "processes": [env]}))
    return (folder / "new").rename(folder / "world.json")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def until_it_says(process: subprocess.Popen[str], words: str) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if words in line:
            return
    pytest.fail(f"it ended with {process.wait()} and never said {words!r}")


def test_a_smaller_world_gets_a_process_out_of_a_collective_with_one_that_is_gone_without_a_word(
    tmp_path: Path,
) -> None:
    port = free_port()
    processes = []
    for rank in (0, 1):
        file = write(tmp_path / str(rank), 1, rank, 2, port)
        env = {
            **os.environ,
            "TRAINMASTER_WORLD_FILE": str(file),
            "STOPS": str(rank),
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
        }
        processes.append(subprocess.Popen([sys.executable, "-c", SCRIPT], env=env, stdout=subprocess.PIPE, text=True))
    survivor, gone = processes
    try:
        until_it_says(gone, "stands still")
        write(tmp_path / "0", 2, 0, 1, free_port())
        # gloo's own time-out is 300 s, and nobody would wait here for so long.
        until_it_says(survivor, "ended in a world of 1")
        assert survivor.wait(60) == 0
    finally:
        for process in processes:
            process.send_signal(signal.SIGKILL)
            process.communicate(timeout=60)
