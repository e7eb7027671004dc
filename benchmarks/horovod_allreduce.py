"""Horovod's API against what it stands on: hvd.allreduce_ and raw torch.distributed.all_reduce, interleaved.

    python3 dev.py bench horovod_allreduce [--ranks 2] [--rounds 30] [--json]

Each rank is a process of this machine (gloo). One round of a size is one raw and one Horovod operation on the same
tensor, blocking, each begun together after a barrier; the slowest rank's time counts.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
from pathlib import Path

from _embedded import ROOT, show

WANTED_FACTOR = 1.05
SIZES_MB = (1, 10, 100)
SCRIPT = """
import json, sys, time
import torch, torch.distributed as dist
import trainmaster_train.horovod.torch as hvd

rounds = int(sys.argv[1])
torch.set_num_threads(1)
hvd.init()
figures = {}
for mb in map(int, sys.argv[2].split(",")):
    tensor = torch.zeros(mb * 262_144)
    ways = {"raw": lambda: dist.all_reduce(tensor), "hvd": lambda: hvd.allreduce_(tensor, op=hvd.Sum, name="x")}
    times = {way: [] for way in ways}
    for number in range(-3, max(5, rounds if mb < 100 else rounds // 4)):
        for way, run in ways.items():
            dist.barrier()
            began = time.perf_counter()
            run()
            took = torch.tensor([time.perf_counter() - began], dtype=torch.float64)
            dist.all_reduce(took, dist.ReduceOp.MAX)
            if number >= 0:
                times[way].append(took.item())
    figures[mb] = times
if hvd.rank() == 0:
    print(json.dumps(figures))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    figures = measure(options.ranks, options.rounds)
    factors = {
        f"{mb} MB": round(statistics.median(times["hvd"]) / statistics.median(times["raw"]), 3)
        for mb, times in figures.items()
    }
    verdict = {
        "factor": factors,
        "wanted_at_most": WANTED_FACTOR,
        "is_reached": all(factor <= WANTED_FACTOR for factor in factors.values()),
    }
    rows = {}
    for mb, times in figures.items():
        rows[f"all_reduce, {mb} MB"] = times["raw"]
        rows[f"hvd.allreduce_, {mb} MB"] = times["hvd"]
    show(f"Horovod's API on torch.distributed, {options.ranks} ranks", rows, verdict, as_json=options.json)


def measure(ranks: int, rounds: int) -> dict[str, dict[str, list[float]]]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    train = str(Path(ROOT, "worker_images", "train"))
    base = {**os.environ, "PYTHONPATH": train, "OMP_NUM_THREADS": "1"}
    base |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks)}
    command = [sys.executable, "-c", SCRIPT, str(rounds), ",".join(map(str, SIZES_MB))]
    processes = [
        subprocess.Popen(command, env={**base, "RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
        for rank in range(ranks)
    ]
    told = [process.communicate()[0] for process in processes]
    if any(process.returncode for process in processes):
        sys.exit("a rank failed; its message is above.")
    found: dict[str, dict[str, list[float]]] = json.loads(told[0])
    return found


if __name__ == "__main__":
    main()
