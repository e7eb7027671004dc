"""CPU time of one step with a parameter server: what it costs beside the computing itself, however busy the machine is.

    python3 dev.py bench ps_cost [--batch 32] [--steps 40] [--rounds 3] [--only …]

1 ps and 2 workers, the MLP of 10 million parameters of ``ps_throughput``, SGD, asynchronous. Counts the user and system
time of all three processes over the same steps, in turn with torch's RPC parameter servers (``rpc_ps``). ``alone``
computes and talks to nobody. Where all cores are busy, samples per second go as one over this.
"""

from __future__ import annotations

import argparse
import os
import statistics
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from trainmaster_train import ps

from benchmarks.support import rpc_ps
from benchmarks.support.ps_cluster import SPAWN, WITHIN_S, cluster, gather
from benchmarks.training.ps_throughput import BATCH, mlp_batch, mlp_model

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
WORKERS = 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=BATCH)
    parser.add_argument("--steps", type=int, default=40, help="of each worker, after three that are not counted")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="*", choices=list(KINDS), default=list(KINDS))
    options = parser.parse_args()
    rows: dict[str, list[tuple[float, float]]] = {kind: [] for kind in options.only}
    for number in range(options.rounds):
        for kind, found in rows.items():
            found.append(KINDS[kind](options.batch, options.steps))
            print(f"round {number}: {kind}: {sum(found[-1]) * 1e3:.1f}", flush=True)
    print("CPU ms per step: all, of it on the ps")
    for kind, found in rows.items():
        whole = [worker_s + ps_s for worker_s, ps_s in found]
        middle, own = statistics.median(whole), statistics.median(ps_s for _, ps_s in found)
        print(f"{kind:24} {middle * 1e3:7.1f} ({min(whole) * 1e3:.1f} - {max(whole) * 1e3:.1f}) {own * 1e3:7.1f}")


def by_platform(batch: int, steps: int, *, options: ps.Options) -> tuple[float, float]:
    """CPU seconds per step: of a worker, of the ps."""
    barrier = SPAWN.Barrier(WORKERS + 1)
    found: list[float] = []
    with cluster(mlp_model, options, workers=WORKERS) as job:
        (server,) = SPAWN.active_children()
        run = threading.Thread(target=lambda: found.extend(job.run(partial(worker, batch), barrier, steps)))
        run.start()
        ps_s = cpu_of_steps(barrier, server.pid)
        run.join()
    return statistics.mean(found), ps_s / steps / WORKERS


def worker(batch: int, servers: ps.Servers, barrier: Any, steps: int) -> float:
    def step() -> None:
        servers.zero_grad()
        rpc_ps.loss_of(servers.model, partial(mlp_batch, batch)).backward()
        servers.step()

    return cpu_s_per_step(step, barrier, steps)


def by_torch_rpc(batch: int, steps: int, *, kind: str, is_tcp: bool = False) -> tuple[float, float]:
    barrier, pid = SPAWN.Barrier(WORKERS + 1), SPAWN.Value("i", 0)
    ps_s: list[float] = []
    watch = threading.Thread(target=lambda: ps_s.append(cpu_of_steps(barrier, lambda: pid.value)))
    watch.start()
    rate = partial(cpu_s_per_step_of_rpc, pid)
    whole = rpc_ps.steps_per_s(kind, mlp_model, partial(mlp_batch, batch), rate, steps, barrier, is_tcp=is_tcp)
    watch.join()
    return whole / WORKERS, ps_s[0] / steps / WORKERS


def cpu_s_per_step_of_rpc(pid: Any, step: Callable[[], None], barrier: Any, steps: float) -> float:
    from torch.distributed import rpc

    pid.value = rpc.rpc_sync("ps", os.getpid)
    return cpu_s_per_step(step, barrier, steps)


def without_servers(batch: int, steps: int) -> tuple[float, float]:
    barrier, results = SPAWN.Barrier(WORKERS + 1), SPAWN.Queue()
    processes = [SPAWN.Process(target=single_process, args=(batch, steps, barrier, results)) for _ in range(WORKERS)]
    for process in processes:
        process.start()
    cpu_of_steps(barrier, None)
    return statistics.mean(gather(results, processes, WORKERS)), 0.0


def single_process(batch: int, steps: int, barrier: Any, results: Any) -> None:
    torch.set_num_threads(1)
    model = mlp_model()

    def step() -> None:
        model.zero_grad()
        rpc_ps.loss_of(model, partial(mlp_batch, batch)).backward()

    results.put(cpu_s_per_step(step, barrier, steps))


def cpu_s_per_step(step: Callable[[], None], barrier: Any, steps: float) -> float:
    """In a worker. All processes begin and end together, and pause while the ps's clock is read."""
    for _ in range(3):
        step()
    barrier.wait(WITHIN_S)
    barrier.wait(WITHIN_S)
    before = os.times()
    for _ in range(int(steps)):
        step()
    after = os.times()
    barrier.wait(WITHIN_S)
    barrier.wait(WITHIN_S)
    return (after.user + after.system - before.user - before.system) / steps


def cpu_of_steps(barrier: Any, pid: int | Callable[[], int] | None) -> float:
    """CPU seconds of the process ``pid`` over the steps of the workers."""

    def read() -> float:
        found = pid() if callable(pid) else pid
        if found is None:
            return 0.0
        fields = Path(f"/proc/{found}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS_PER_S

    barrier.wait(WITHIN_S)
    before = read()
    barrier.wait(WITHIN_S)
    barrier.wait(WITHIN_S)
    after = read()
    barrier.wait(WITHIN_S)
    return after - before


KINDS: dict[str, Callable[[int, int], tuple[float, float]]] = {
    "alone": without_servers,
    "ours": partial(by_platform, options=ps.Options()),
    "torch RPC, batch": partial(by_torch_rpc, kind="batch"),
    "torch RPC, lean": partial(by_torch_rpc, kind="lean"),
    "ours, over TCP": partial(by_platform, options=ps.Options(shared_memory=False)),
    "torch RPC, over TCP": partial(by_torch_rpc, kind="batch", is_tcp=True),
}

if __name__ == "__main__":
    main()
