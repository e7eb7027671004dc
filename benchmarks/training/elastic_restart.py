"""kill -9 of a worker in an elastic gang → the others' next step, against torchrun's elastic mode. Interleaved, on this
machine.

    python3 dev.py bench elastic_restart [--rounds 3] [--json]

The same script (torch DDP, gloo, one process per replica or agent, 3 of them, at least 2) runs in both. A worker is
killed together with what watches over it (torchrun's agent, our runtime), as when a machine goes: that is the case that
torchrun's elastic mode is for. Beside it, for us, the worker alone: torchrun's agent would start it again and the gang
never be smaller. The clock starts with the kill and stops with the first step of the smaller gang.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from trainmaster import Client

from benchmarks.control.restart_latency import processes_of
from benchmarks.support.embedded import Embedded, command_line, embedded_platform, show, wait_for

TARGET_FACTOR = 0.2
WORKERS, LEAST = 3, 2
STEPS_BEFORE_KILL = 10
NEXT_STEP_WITHIN_S = 300.0
SCRIPT = """
import json, os, pathlib, sys, time
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from trainmaster_train import elastic

folder = pathlib.Path(os.environ.get("TRAINMASTER_OUTPUT_DIR") or sys.argv[1])
torch.set_num_threads(1)
network = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
state = elastic.State(model=network, optimizer=torch.optim.SGD(network.parameters(), lr=0.1), step=0)

@elastic.run
def train(state):
    model = DistributedDataParallel(state.model)
    while True:
        state.optimizer.zero_grad()
        model(torch.randn(32, 64)).square().mean().backward()
        state.optimizer.step()
        state.step += 1
        if dist.get_rank() == 0:
            with open(folder / "steps", "a") as steps:
                steps.write(json.dumps({"size": dist.get_world_size(), "at": time.time()}) + "\\n")
        time.sleep(0.01)
        state.commit()

train(state)
"""


def main() -> None:
    options = command_line(__doc__, rounds=3).parse_args()
    torchrun: list[float] = []
    platform: list[float] = []
    worker_alone: list[float] = []
    with embedded_platform() as running, Client(running.url, running.token) as client:
        for _ in range(options.rounds):
            torchrun.append(by_torchrun())
            platform.append(by_platform(running, client, with_runtime=True))
            worker_alone.append(by_platform(running, client, with_runtime=False))
    factor = statistics.median(platform) / statistics.median(torchrun)
    verdict = {"factor": round(factor, 3), "wanted_at_most": TARGET_FACTOR, "is_reached": factor <= TARGET_FACTOR}
    rows = {"torchrun, elastic": torchrun, "trainmaster, elastic": platform, "the worker alone": worker_alone}
    show("kill -9 of a worker → the others' next step", rows, verdict, as_json=options.json)


def by_torchrun() -> float:
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "train.py")
        script.write_text(SCRIPT)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        command = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--nnodes",
            f"{LEAST}:{WORKERS}",
            "--nproc-per-node",
            "1",
        ]
        command += ["--max-restarts", "3", "--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}"]
        env = {**os.environ, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "OMP_NUM_THREADS": "1"}
        agents = [
            subprocess.Popen(
                [*command, "--rdzv-id", "bench", str(script), folder],
                env=env,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            for _ in range(WORKERS)
        ]
        try:
            steps = Path(folder, "steps")
            wait_for(lambda: len(steps_of(steps, WORKERS)) >= STEPS_BEFORE_KILL, "the first steps")
            # Not the first agent: it serves the rendezvous, and without that nobody goes on.
            victim = agents[-1].pid
            killed = time.time()
            for pid in [victim, *children_of(victim)]:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return first_after(steps, killed)
        finally:
            for agent in agents:
                with suppress(ProcessLookupError):
                    os.killpg(agent.pid, signal.SIGKILL)
                agent.wait()
            for pid in processes_of(str(script).encode()):  # workers live in sessions of their own
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def by_platform(running: Embedded, client: Client, *, with_runtime: bool) -> float:
    spec: dict[str, Any] = {"name": "elastic", "workers": {"min": LEAST, "max": WORKERS}, "max_restarts": 3}
    job = client.submit({**spec, "command": [sys.executable, "-c", SCRIPT]})
    try:
        volume, _, path = job.view.output.partition("/")
        steps = running.home / volume / path / "steps"
        wait_for(lambda: len(steps_of(steps, WORKERS)) >= STEPS_BEFORE_KILL, "the first steps")
        wait_for(lambda: job.detail().state == "running", "the platform to see all replicas run")
        (victim,) = processes_of(f"TRAINMASTER_JOB_ID={job.id}".encode(), b"RANK=1", b"MASTER_PORT=")
        watchers = runtimes_above(victim) if with_runtime else []
        killed = time.time()
        for pid in (*watchers, victim):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return first_after(steps, killed)
    finally:
        job.cancel(reason="measured")
        job.wait(timeout_s=90)


def first_after(steps: Path, killed: float) -> float:
    """Seconds from the kill to the first step of the smaller gang."""
    found = wait_for(
        lambda: [at for at in steps_of(steps, LEAST) if at > killed],
        "a step without the one that was killed",
        within_s=NEXT_STEP_WITHIN_S,
    )
    return float(found[0] - killed)


def steps_of(file: Path, size: int) -> list[float]:
    """When the gang of ``size`` made its steps."""
    try:
        lines = [line for line in file.read_text().splitlines(keepends=True) if line.endswith("\n")]
    except FileNotFoundError:
        return []
    return [step["at"] for step in map(json.loads, lines) if step["size"] == size]


def runtimes_above(pid: int) -> list[int]:
    """The processes of the runtime that watch over ``pid``, the highest first."""
    found: list[int] = []
    while (pid := parent_of(pid)) > 1 and b"trainmaster_runtime" in Path(f"/proc/{pid}/cmdline").read_bytes():
        found.insert(0, pid)
    if not found:
        raise RuntimeError("the worker has no runtime above it: is it a process of the platform?")
    return found


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def children_of(pid: int) -> list[int]:
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


if __name__ == "__main__":
    main()
