"""Horovod's API against what it stands on: hvd.allreduce_ and raw torch.distributed.all_reduce, interleaved.

    python3 dev.py bench horovod_allreduce [--ranks 2] [--rounds 200] [--json]

Each rank is a process of this machine (gloo). A round of a size is a pair: some blocking operations of the one way, as
many of the other on the same tensor, begun together after a barrier in a third group, the first way another in each
round; the slowest rank's time counts. What is held against the goal is the median of the pairs' ratios, which a machine
that is busy with other things for a while moves least. Beside it, the calling thread's CPU time for an operation, rank
0's.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

from benchmarks.support import free_ports
from benchmarks.support.embedded import ROOT, command_line, show

TARGET_FACTOR = 1.05
# Of each size: operations in a row, and for how many of the rounds at 1 MB one round is made.
SIZES_MB = {1: (10, 1), 10: (3, 2), 100: (1, 8)}
SCRIPT = """
import json, sys, time
import torch, torch.distributed as dist
import trainmaster_train.horovod.torch as hvd

rounds, sizes = int(sys.argv[1]), json.loads(sys.argv[2])
torch.set_num_threads(1)
hvd.init()
# Rounds begin and are compared over a group of their own: the measured group's threads stay asleep.
control = dist.new_group()
figures = {}
for mb, (count, share) in sizes.items():
    tensor = torch.zeros(int(mb) * 262_144)
    ways = {"raw": lambda: dist.all_reduce(tensor), "hvd": lambda: hvd.allreduce_(tensor, op=hvd.Sum, name="x")}
    times, cpu = {way: [] for way in ways}, {way: [] for way in ways}
    for number in range(-3, max(5, rounds // share)):
        for way in sorted(ways, reverse=bool(number % 2)):
            dist.barrier(control)
            began, began_cpu = time.perf_counter(), time.thread_time()
            for _ in range(count):
                ways[way]()
            took_cpu = (time.thread_time() - began_cpu) / count
            took = torch.tensor([(time.perf_counter() - began) / count], dtype=torch.float64)
            dist.all_reduce(took, dist.ReduceOp.MAX, control)
            if number >= 0:
                times[way].append(took.item())
                cpu[way].append(took_cpu)
    figures[mb] = {**times, **{f"{way} cpu": found for way, found in cpu.items()}}
if hvd.rank() == 0:
    print(json.dumps(figures))
"""


def main() -> None:
    parser = command_line(__doc__, rounds=200)
    parser.add_argument("--ranks", type=int, default=2)
    options = parser.parse_args()
    figures = measure(options.ranks, options.rounds)
    ratios = {
        mb: [hvd / raw for hvd, raw in zip(times["hvd"], times["raw"], strict=True)] for mb, times in figures.items()
    }
    verdict = {
        "factor": {f"{mb} MB": summarise(found) for mb, found in ratios.items()},
        "milliseconds": {f"{mb} MB": medians_of(times, "raw", "hvd") for mb, times in figures.items()},
        "thread_milliseconds": {f"{mb} MB": medians_of(times, "raw cpu", "hvd cpu") for mb, times in figures.items()},
        "wanted_at_most": TARGET_FACTOR,
        "is_reached": all(statistics.median(found) <= TARGET_FACTOR for found in ratios.values()),
    }
    rows = {}
    for mb, times in figures.items():
        rows[f"all_reduce, {mb} MB"] = times["raw"]
        rows[f"hvd.allreduce_, {mb} MB"] = times["hvd"]
    show(f"Horovod's API on torch.distributed, {options.ranks} ranks", rows, verdict, as_json=options.json)


def medians_of(times: dict[str, list[float]], *ways: str) -> str:
    return " → ".join(f"{statistics.median(times[way]) * 1000:.3f}" for way in ways)


def summarise(ratios: list[float]) -> str:
    low, middle, high = statistics.quantiles(ratios, n=4)
    return f"{middle:.3f} (half of the pairs: {low:.2f} – {high:.2f})"


def measure(ranks: int, rounds: int) -> dict[str, dict[str, list[float]]]:
    (port,) = free_ports(1)
    train = str(Path(ROOT, "worker_images", "train"))
    base = {**os.environ, "PYTHONPATH": train, "OMP_NUM_THREADS": "1"}
    base |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks)}
    command = [sys.executable, "-c", SCRIPT, str(rounds), json.dumps(SIZES_MB)]
    processes = [
        subprocess.Popen(command, env={**base, "RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
        for rank in range(ranks)
    ]
    outputs = [process.communicate()[0] for process in processes]
    if any(process.returncode for process in processes):
        sys.exit("a rank failed; its message is above.")
    found: dict[str, dict[str, list[float]]] = json.loads(outputs[0])
    return found


if __name__ == "__main__":
    main()
