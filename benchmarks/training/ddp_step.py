"""A step of DistributedDataParallel in a job of the platform, against raw torchrun. 2 ranks, gloo, on this machine.

    python3 dev.py bench ddp_step [--rounds 40] [--steps 10] [--json]

Three gangs run the same script at once and take turns of some steps, in an order that changes from round to round:
under torchrun; in a job, as it is; in a job, with ``distributed.init``, ``distributed.wrap`` and the step timer. Who
has no turn sleeps. Rank 0 prints a line in every tenth step. A round compares the mean step of each gang with
torchrun's in the same second, so what else the machine does meets all alike: torchrun gets a control group of its own
for that, as a replica has (beside other work, processes without one get a fraction of the time). The figure is the
median of these ratios, with the interval that holds the true median 19 times in 20, whatever the noise is like. The CPU
time of both ranks, of all their threads, is compared too.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TextIO

from trainmaster import Client

from benchmarks.support.embedded import command_line, embedded_platform, show

TARGET_FACTOR = 1.01
READY_WITHIN_S = 180.0
TURN_WITHIN_S = 120.0
SCRIPT = """
import json, socket, sys, time
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

kind, port, width, batch = sys.argv[1], *map(int, sys.argv[2:])
torch.set_num_threads(1)
torch.manual_seed(0)
net = torch.nn.Sequential(*[torch.nn.Linear(width, width) for _ in range(8)])
optimizer = torch.optim.SGD(net.parameters(), lr=1e-4)
if kind == "wrapped":
    from trainmaster_train import distributed
    distributed.init()
    model = distributed.wrap(net, optimizer=optimizer)
else:
    dist.init_process_group("gloo")
    model = DistributedDataParallel(net)
data = torch.randn(batch, width)

def step():
    optimizer.zero_grad()
    loss = model(data).square().mean()
    loss.backward()
    optimizer.step()
    return loss

first = dist.get_rank() == 0
link = socket.create_connection(("127.0.0.1", port)).makefile("rw") if first else None
if first:
    link.write(kind + "\\n")
    link.flush()
while True:
    turn = [json.loads(link.readline() or "0") if first else None]
    dist.broadcast_object_list(turn)
    if not turn[0]:
        break
    step()  # what has cooled down is warm again
    cpu, started = time.process_time(), time.perf_counter()
    for number in range(turn[0]):
        loss = step()
        if first and number % 10 == 0:
            print("step", number, "loss", loss.item(), flush=True)
    seconds = time.perf_counter() - started
    cpu = torch.tensor([time.process_time() - cpu])
    dist.all_reduce(cpu)
    if first:
        link.write(json.dumps([seconds / turn[0], float(cpu) / turn[0]]) + "\\n")
        link.flush()
if kind == "wrapped":
    distributed.shutdown()
else:
    dist.barrier()
    del model
    dist.destroy_process_group()
"""
RAW, JOB, WRAPPED = "torchrun", "job", "wrapped"


def main() -> None:
    parser = command_line(__doc__, rounds=40)
    parser.add_argument("--steps", type=int, default=10, help="of each gang in a round")
    parser.add_argument("--width", type=int, default=512, help="of the 8 layers: 2 million parameters at 512")
    parser.add_argument("--batch", type=int, default=256)
    options = parser.parse_args()
    wall, cpu = run(options)
    verdict: dict[str, object] = {}
    decided = []
    for kind in (JOB, WRAPPED):
        low, factor, high = ratio(wall[kind], wall[RAW])
        decided.append("yes" if high <= TARGET_FACTOR else "no" if low > TARGET_FACTOR else "not decided")
        verdict[f"{kind} / torchrun"] = f"{factor:.4f} ({low:.4f} – {high:.4f})"
        low, factor, high = ratio(cpu[kind], cpu[RAW])
        verdict[f"{kind} / torchrun, CPU time"] = f"{factor:.4f} ({low:.4f} – {high:.4f})"
    verdict |= {"wanted_at_most": TARGET_FACTOR, "is_reached": ", ".join(decided)}
    rows = {f"{kind}, step": wall[kind] for kind in (RAW, JOB, WRAPPED)}
    rows |= {f"{kind}, CPU of both ranks": cpu[kind] for kind in (RAW, JOB, WRAPPED)}
    show("a DDP step, 2 ranks", rows, verdict, as_json=options.json)


def ratio(platform: list[float], plain: list[float]) -> tuple[float, float, float]:
    """Median of the rounds' ratios between the ends of its 95 % interval (by rank: Conover, Practical Statistics,
    3.2).
    """
    found = sorted(a / b for a, b in zip(platform, plain, strict=True))
    away = 0.98 * len(found) ** 0.5
    low, high = len(found) / 2 - away, len(found) / 2 + away
    return found[max(0, int(low) - 1)], statistics.median(found), found[min(len(found) - 1, int(high))]


def run(options: argparse.Namespace) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Seconds per step and CPU seconds per step, of each gang, round by round."""
    kinds = [RAW, JOB, WRAPPED]
    wall: dict[str, list[float]] = {kind: [] for kind in kinds}
    cpu: dict[str, list[float]] = {kind: [] for kind in kinds}
    with ExitStack() as stack:
        platform = stack.enter_context(embedded_platform())
        client = stack.enter_context(Client(platform.url, platform.token))
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        server.settimeout(READY_WITHIN_S)
        numbers = [str(number) for number in (server.getsockname()[1], options.width, options.batch)]
        stack.enter_context(torchrun(numbers))
        for kind in (JOB, WRAPPED):
            stack.enter_context(job(client, kind, numbers))
        gangs = dict(stack.enter_context(gang(server)) for _ in kinds)
        for number in range(-2, options.rounds):  # the first two do not count
            shift = number % len(kinds)
            for kind in kinds[shift:] + kinds[:shift]:
                seconds, cpu_seconds = take_turn(gangs[kind], options.steps)
                if number >= 0:
                    wall[kind].append(seconds)
                    cpu[kind].append(cpu_seconds)
    return wall, cpu


@contextmanager
def gang(server: socket.socket) -> Iterator[tuple[str, TextIO]]:
    """A gang that has come to its first turn: its kind and its line. It ends with the line."""
    connection, _ = server.accept()
    connection.settimeout(TURN_WITHIN_S)
    with connection, connection.makefile("rw") as line:
        yield line.readline().strip(), line


def take_turn(line: TextIO, steps: int) -> tuple[float, float]:
    line.write(f"{steps}\n")
    line.flush()
    seconds, cpu_seconds = json.loads(line.readline())
    return seconds, cpu_seconds


@contextmanager
def torchrun(numbers: list[str]) -> Iterator[None]:
    from trainmaster_runtime.cgroups import make_groups

    groups = make_groups(f"trainmaster-bench-{os.getpid()}")
    groups.settle()
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "train.py")
        script.write_text(SCRIPT)
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        with Path(folder, "log").open("w") as log:
            process = subprocess.Popen(
                [*command, str(script), RAW, *numbers],
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                stdout=log,
                preexec_fn=groups.join,  # noqa: PLW1509 (no other thread runs here)
            )
            try:
                yield
                process.wait(60)
            finally:
                process.terminate()
                process.wait(60)
                groups.close()


@contextmanager
def job(client: Client, kind: str, numbers: list[str]) -> Iterator[None]:
    running = client.submit(
        {
            "name": f"ddp-step-{kind}",
            "workers": 1,
            "processes_per_replica": 2,  # as torchrun has both ranks in one place
            "command": [sys.executable, "-c", SCRIPT, kind, *numbers],
            "env": {"OMP_NUM_THREADS": "1"},
            "max_restarts": 0,
            "warm": "never",
        }
    )
    try:
        yield
    except BaseException:
        running.cancel(reason="the benchmark failed")
        raise
    running.wait(timeout_s=60)


if __name__ == "__main__":
    main()
