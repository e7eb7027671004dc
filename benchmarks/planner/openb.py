"""How full a cluster gets whose jobs ask for all kinds of shapes: Alibaba's openb traces, as in the FGD paper (ATC
2023).

    python3 dev.py bench openb --traces FOLDER [--pods openb_pod_list_default.csv ...] [--seeds 10] [--first-seed 1]
                               [--demand trace|seen] [--through place|plan]

FOLDER holds ``openb_node_list_gpu_node.csv`` and the pod lists (alibaba/clusterdata, cluster-trace-gpu-v2023). As
there: the pods of a list are shuffled, then drawn from it again until they ask for 130 % of all GPUs; they come one by
one, nobody leaves; a pod that finds no place is turned away. One pod in ``num_gpu`` 1 asks for ``gpu_milli`` of one
device, others for whole ones; CPU and memory bind too.

``--through place``: each pod is placed by the production placement on one capacity. ``--through plan``: all pods wait
in one snapshot in the order of their coming, under fifo, and one plan is made; there a pod that is turned away holds a
reservation, as a real waiting job does.
``--demand trace``: the planner knows the list's mix of requests (as FGD does); ``seen``: only what has come so far,
looked at again after every twentieth of the pods.

Prints per list the GPUs allocated in % (mean, spread over the seeds) and CPU-milliseconds per pod.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from random import Random

from core.domain.ids import JobId, NodeId
from core.domain.sharing.gpus import WHOLE_GPU
from core.domain.sharing.policy import Policy, QueueOrder
from core.domain.sharing.resources import Amounts, Gang, GangRole, ResourceRequest
from scheduler.planning import NodeSnapshot, QueuedGang, Snapshot, plan
from scheduler.planning.placement.capacity import Capacity
from scheduler.planning.placement.cluster import ClusterIndex
from scheduler.planning.placement.demand import Demand, demand_of
from scheduler.planning.placement.fragmentation import WorkloadProfile
from scheduler.planning.placement.gang import place
from scheduler.planning.placement.ledger import NEVER, Ledger
from scheduler.planning.placement.search import SearchBudget

LISTS = ("openb_pod_list_default.csv", "openb_pod_list_cpu250.csv", "openb_pod_list_gpushare100.csv")
NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
MIB = 2**20


def nodes_of(path: Path) -> tuple[NodeSnapshot, ...]:
    nodes = []
    for row in csv.DictReader(path.open()):
        whole = Amounts(int(row["cpu_milli"]), int(row["memory_mib"]) * MIB, {row["model"]: int(row["gpu"])})
        nodes.append(NodeSnapshot(NodeId(row["sn"]), {}, whole, whole))
    return tuple(nodes)


def requests_of(path: Path) -> list[ResourceRequest]:
    requests = []
    for row in csv.DictReader(path.open()):
        count, part = int(row["num_gpu"]), int(row["gpu_milli"])
        models = tuple(model for model in (row.get("gpu_spec") or "").split("|") if model)
        is_part = count == 1 and part < WHOLE_GPU
        amounts = int(row["cpu_milli"]), int(row["memory_mib"]) * MIB
        requests.append(
            ResourceRequest(*amounts, 0 if is_part else count, models if count else (), part if is_part else 0)
        )
    return requests


def milli(request: ResourceRequest) -> int:
    return WHOLE_GPU * request.gpu_count + request.gpu_milli


def arriving(requests: list[ResourceRequest], chance: Random, gpus: int) -> list[ResourceRequest]:
    """All pods in some order, then more like them, until 130 % is asked for."""
    pods = chance.sample(requests, len(requests))
    left = 1300 * gpus - sum(map(milli, pods))
    while left > 0:
        pods.append(chance.choice(requests))
        left -= milli(pods[-1])
    while left + milli(pods[-1]) <= 0:
        left += milli(pods.pop())
    return pods


def through_place(
    nodes: tuple[NodeSnapshot, ...], pods: list[ResourceRequest], known: list[ResourceRequest] | None
) -> int:
    """Thousandths of GPUs that are given away."""
    cluster = ClusterIndex(nodes)
    capacity = Capacity.free(cluster)
    ledger = Ledger(capacity)
    demands: dict[ResourceRequest, Demand] = {}
    if known is not None:
        capacity.set_workload(partial(WorkloadProfile.of, Counter(known).items(), cluster))
    every, given = max(1, len(pods) // 20), 0
    for number, request in enumerate(pods):
        if known is None and number % every == 0:
            capacity.set_workload(partial(WorkloadProfile.of, Counter(pods[:number]).items(), cluster))
        if request not in demands:
            demands[request] = demand_of(Gang((GangRole("worker", 1, request),)), cluster)
        draft = place(demands[request], capacity, SearchBudget())
        if draft is not None:
            ledger.start(draft, NEVER)
            given += milli(request)
    return given


def through_plan(nodes: tuple[NodeSnapshot, ...], pods: list[ResourceRequest]) -> int:
    gangs = {request: Gang((GangRole("worker", 1, request),)) for request in pods}
    shapes = {request: gang.shape() for request, gang in gangs.items()}
    queued = tuple(
        QueuedGang(JobId(f"p{n:06}"), f"p{n:06}", "p", "u", 50, NOW + timedelta(seconds=n), gangs[pod], shapes[pod])
        for n, pod in enumerate(pods)
    )
    policy = Policy(order=QueueOrder.FIFO, is_fair=False)
    made = plan(Snapshot(NOW, nodes, queued, policy=policy))
    return sum(milli(pods[int(start.job_id[1:])]) for start in made.starts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path, required=True)
    parser.add_argument("--nodes", default="openb_node_list_gpu_node.csv")
    parser.add_argument("--pods", nargs="+", default=LISTS)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--demand", choices=["trace", "seen"], default="trace")
    parser.add_argument("--through", choices=["place", "plan"], default="place")
    options = parser.parse_args()
    nodes = nodes_of(options.traces / options.nodes)
    gpus = sum(node.allocatable.gpu_count for node in nodes)
    print(f"{len(nodes)} nodes, {gpus} GPUs, seeds {options.first_seed} to {options.first_seed + options.seeds - 1}")
    for name in options.pods:
        requests = requests_of(options.traces / name)
        shares, costs = [], []
        for seed in range(options.first_seed, options.first_seed + options.seeds):
            pods = arriving(requests, Random(seed), gpus)
            before = time.process_time()
            if options.through == "plan":
                given = through_plan(nodes, pods)
            else:
                given = through_place(nodes, pods, requests if options.demand == "trace" else None)
            costs.append((time.process_time() - before) * 1000 / len(pods))
            shares.append(given / gpus / 10)
        spread = statistics.stdev(shares) if len(shares) > 1 else 0.0
        print(
            f"{name}: {statistics.mean(shares):.2f} % allocated (standard deviation {spread:.2f}, "
            f"{min(shares):.2f} to {max(shares):.2f}), {statistics.mean(costs):.3f} CPU-ms per pod",
            flush=True,
        )


if __name__ == "__main__":
    main()
