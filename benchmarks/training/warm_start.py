"""Submit → first step of 2 DDP ranks: forked from a preloaded Python, executed anew, and by torchrun. Interleaved.

    python3 dev.py bench warm_start [--rounds 9] [--json]

The clock starts before the client's call (before torchrun is executed) and stops when the later rank has done its first
optimizer step. All three run the same file. Code is uploaded anew for each job, as when somebody works on it.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from trainmaster import Client

from benchmarks.support.embedded import Embedded, command_line, embedded_platform, run_to_end, show

TARGET_S = 0.6
READY_WITHIN_S = 300.0
RANKS = 2
SCRIPT = """import os, pathlib, sys, time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.randn(32, 64)).sum().backward()
optimizer.step()
now = time.time()
folder = os.environ.get("TRAINMASTER_OUTPUT_DIR") or sys.argv[1]
pathlib.Path(folder, "step-%d" % dist.get_rank()).write_text(repr(now))
dist.barrier()
del model
dist.destroy_process_group()
"""


def main() -> None:
    options = command_line(__doc__, rounds=9).parse_args()
    rows: dict[str, list[float]] = {"torchrun": [], "platform, warm: never": [], "platform, warm: auto": []}
    with embedded_platform() as running, Client(running.url, running.token) as client:
        by_submit(client, number=-1, warm="auto")
        wait_for_parent(running)
        for number in range(options.rounds):
            rows["torchrun"].append(by_torchrun())
            rows["platform, warm: never"].append(by_submit(client, number=number, warm="never"))
            rows["platform, warm: auto"].append(by_submit(client, number=number, warm="auto"))
    warm = statistics.median(rows["platform, warm: auto"])
    verdict = {
        "torchrun_over_warm": round(statistics.median(rows["torchrun"]) / warm, 1),
        "wanted_at_most_s": TARGET_S,
        "is_reached": warm <= TARGET_S,
    }
    show(f"Submit → first step of {RANKS} ranks", rows, verdict, as_json=options.json)


def wait_for_parent(running: Embedded) -> None:
    """The first job has shown what it uses; now it is imported for those to come."""
    end = time.monotonic() + READY_WITHIN_S
    while not list(running.home.glob("**/warm/*/torch/socket")):
        if time.monotonic() > end:
            sys.exit("no preloaded Python came to be")
        time.sleep(0.1)


def by_torchrun() -> float:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "train.py").write_text(SCRIPT)
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]
        started = time.time()
        subprocess.run(
            [*command, f"{folder}/train.py", folder],
            check=True,
            capture_output=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        return max(float(Path(folder, f"step-{rank}").read_text()) for rank in range(RANKS)) - started


def by_submit(client: Client, *, number: int, warm: str) -> float:
    spec = {
        "name": "first-step",
        "workers": 1,
        "processes_per_replica": RANKS,
        "command": ["python", "train.py"],
        "env": {"OMP_NUM_THREADS": "1"},
        "max_restarts": 0,
        "warm": warm,
    }
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "train.py").write_text(f"{SCRIPT}# round {number}, {warm}\n")
        started = time.time()
        job = client.submit(spec, code=folder)
    run_to_end(job, READY_WITHIN_S)
    return max(float(job.read_file(f"step-{rank}")) for rank in range(RANKS)) - started


if __name__ == "__main__":
    main()
