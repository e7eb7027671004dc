"""Restart after kill -9 of a worker → training again, against torchrun's own restart. Interleaved, on this machine.

    python3 dev.py bench restart_latency [--rounds 7] [--json]

The same script (torch DDP, gloo, 2 workers) runs in both; the clock starts with the kill and stops when rank 0 has
done its first step afterwards. torchrun gets a store of its own for each restart
(TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1): with the shared one, its default, a restart often finds the addresses of the
dead and never recovers.
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from trainmaster import Client

from benchmarks.support.embedded import Embedded, command_line, embedded_platform, show, wait_for

TARGET_FACTOR = 1.1
STEPS_BEFORE_KILL = 5
SCRIPT = """
import os, pathlib, sys, time
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

folder = pathlib.Path(os.environ.get("TRAINMASTER_OUTPUT_DIR") or sys.argv[1])
torch.set_num_threads(1)
dist.init_process_group("gloo")
layers = torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10)
model = DistributedDataParallel(torch.nn.Sequential(*layers))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
while True:
    optimizer.zero_grad()
    model(torch.randn(32, 64)).square().mean().backward()
    optimizer.step()
    if dist.get_rank() == 0:
        with open(folder / "steps", "a") as steps:
            steps.write(f"{os.getpid()} {time.time()}\\n")
    time.sleep(0.01)
"""


def main() -> None:
    options = command_line(__doc__, rounds=7).parse_args()
    torchrun: list[float] = []
    platform: list[float] = []
    with embedded_platform() as running, Client(running.url, running.token) as client:
        for number in range(-1, options.rounds):  # the first round warms everything up and does not count
            found = by_torchrun(), by_platform(running, client)
            if number >= 0:
                torchrun.append(found[0])
                platform.append(found[1])
    factor = statistics.median(platform) / statistics.median(torchrun)
    verdict = {"factor": round(factor, 2), "wanted_at_most": TARGET_FACTOR, "is_reached": factor <= TARGET_FACTOR}
    rows = {"torchrun --max-restarts": torchrun, "trainmaster": platform}
    show("kill -9 of a worker → training again", rows, verdict, as_json=options.json)


def by_torchrun() -> float:
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "train.py")
        script.write_text(SCRIPT)
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", "3"]
        rendezvous = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0"]
        env = {**os.environ, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(
            [*command, *rendezvous, str(script), folder],
            env=env,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            return kill_and_wait(Path(folder, "steps"), str(script).encode())
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            for pid in processes_of(str(script).encode()):  # its workers live in sessions of their own
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def by_platform(running: Embedded, client: Client) -> float:
    spec = {"name": "restart", "workers": 2, "command": [sys.executable, "-c", SCRIPT], "max_restarts": 3}
    job = client.submit(spec)
    try:
        volume, _, path = job.view.output.partition("/")
        return kill_and_wait(running.home / volume / path / "steps", f"TRAINMASTER_JOB_ID={job.id}".encode())
    finally:
        job.cancel(reason="measured")
        job.wait(timeout_s=90)


def kill_and_wait(steps: Path, marker: bytes) -> float:
    """Kill rank 1 of the gang that is known by ``marker``; seconds until rank 0 of the next gang has done a step."""
    wait_for(lambda: len(lines_of(steps)) >= STEPS_BEFORE_KILL, "the first steps")
    before = {line.split()[0] for line in lines_of(steps)}
    (victim,) = processes_of(marker, b"RANK=1", b"MASTER_PORT=")
    killed = time.time()
    os.kill(victim, signal.SIGKILL)
    again = wait_for(
        lambda: [line for line in lines_of(steps) if line.split()[0] not in before], "a step after the restart"
    )
    return float(again[0].split()[1]) - killed


def lines_of(file: Path) -> list[str]:
    try:
        return [line for line in file.read_text().splitlines(keepends=True) if line.endswith("\n")]
    except FileNotFoundError:
        return []


def processes_of(*markers: bytes) -> list[int]:
    """Processes that run the script: each marker is a word of the command line, or begins one of the environment."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
            words += (entry / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if all(any(word.startswith(marker) for word in words) for marker in markers):
            found.append(int(entry.name))
    return found


if __name__ == "__main__":
    main()
