"""A step of DistributedDataParallel under the platform's helpers and step timer, against raw torchrun. 2 ranks, gloo.

    python3 dev.py bench ddp_step [--rounds 5] [--steps 60] [--json]

One script in both, under torchrun both: raw it uses torch alone; ours is `distributed.init`, `distributed.wrap` with the
timer driven by the optimizer, and reports to a file. The two run in turn in one process for some steps at a time, so
that what else the machine does meets both alike; a round's figure is the median step of rank 0.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from _embedded import show

WANTED_FACTOR = 1.01
SCRIPT = """
import json, os, statistics, sys, time
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from trainmaster_train import distributed, steps

rounds, count, width, batch = map(int, sys.argv[1:])
torch.set_num_threads(1)
world = distributed.init()

def make(wrap):
    torch.manual_seed(0)
    net = torch.nn.Sequential(*[torch.nn.Linear(width, width) for _ in range(8)])
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-4)
    return wrap(net, optimizer), optimizer

raw = make(lambda net, optimizer: DistributedDataParallel(net))
ours = make(lambda net, optimizer: distributed.wrap(net, optimizer=optimizer))
data = torch.randn(batch, width)

def run(model, optimizer, count):
    found = []
    for _ in range(count):
        started = time.perf_counter()
        optimizer.zero_grad()
        model(data).square().mean().backward()
        optimizer.step()
        found.append(time.perf_counter() - started)
    return found

figures = {"raw": [], "ours": []}
for number in range(-1, rounds):
    times = {"raw": [], "ours": []}
    for _ in range(count // 4):
        for name, of in (("raw", raw), ("ours", ours)):
            times[name] += run(*of, 4)
    if number >= 0:
        for name, found in times.items():
            figures[name].append(statistics.median(found))
last = steps.timer().last
if world.rank == 0:
    print(json.dumps({**figures, "sum_over_step": sum(last.parts.values()) / last.seconds, "parts": last.parts}))
distributed.shutdown()
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=60, help="of each in a round")
    parser.add_argument("--width", type=int, default=512, help="of the 8 layers: 2 million parameters at 512")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = run(options)
    factor = statistics.median(found["ours"]) / statistics.median(found["raw"])
    verdict = {
        "factor": round(factor, 3),
        "wanted_at_most": WANTED_FACTOR,
        "is_reached": factor <= WANTED_FACTOR,
        "the parts' sum over the step": round(found["sum_over_step"], 4),
    }
    rows = {"torchrun, raw DDP": found["raw"], "torchrun, trainmaster_train": found["ours"]}
    show("a DDP step, 2 ranks", rows, verdict, as_json=options.json)


def run(options: argparse.Namespace) -> dict[str, list[float]]:
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "train.py")
        script.write_text(SCRIPT)
        library = Path(__file__).parents[1] / "worker_images" / "train"
        numbers = map(str, (options.rounds, options.steps, options.width, options.batch))
        done = subprocess.run(
            [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", script, *numbers],
            env={
                **os.environ,
                "OMP_NUM_THREADS": "1",
                "PYTHONPATH": str(library),
                "TRAINMASTER_REPORT_FILE": f"{folder}/report",
            },
            stdout=subprocess.PIPE,
            check=True,
        )
        return json.loads(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    main()
