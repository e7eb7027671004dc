"""Holes are judged by what is asked for: on made-up workloads more of the GPUs are given away than by best fit."""

from __future__ import annotations

from collections import Counter
from functools import partial
from random import Random

import pytest

from core.domain.sharing.gpus import WHOLE_GPU
from core.domain.sharing.resources import Amounts, Gang, GangRole, ResourceRequest
from scheduler.planning import NodeSnapshot
from scheduler.planning.placement.capacity import Capacity
from scheduler.planning.placement.cluster import ClusterIndex
from scheduler.planning.placement.demand import demand_of
from scheduler.planning.placement.fragmentation import WorkloadProfile
from scheduler.planning.placement.gang import place
from scheduler.planning.placement.ledger import NEVER, Ledger
from scheduler.planning.placement.search import SearchBudget

GIB = 2**30
# Weight, GPUs in thousandths, CPUs, GiB of memory.
_Mix = tuple[tuple[int, int, int, int], ...]
WORKLOADS: dict[str, _Mix] = {
    "notebooks beside training": (
        (30, 250, 4, 16),
        (15, 600, 8, 32),
        (30, 1000, 8, 64),
        (10, 4000, 40, 256),
        (15, 0, 16, 64),
    ),
    "inference in parts": ((40, 330, 2, 8), (30, 450, 6, 24), (20, 700, 4, 30), (10, 1000, 16, 100)),
    "hungry for CPU": ((40, 1000, 16, 60), (30, 1000, 4, 16), (10, 8000, 60, 400), (20, 0, 24, 32)),
}


def nodes() -> list[NodeSnapshot]:
    sizes = [(96, 768, 8, "a100")] * 30 + [(64, 256, 4, "l4")] * 20 + [(104, 512, 2, "t4")] * 20
    wholes = [Amounts(cpu * 1000, memory * GIB, {model: gpus}) for cpu, memory, gpus, model in sizes]
    return [NodeSnapshot(f"n{number:03}", {}, whole, whole) for number, whole in enumerate(wholes)]


def request(milli: int, cpu: int, memory: int) -> ResourceRequest:
    whole, part = divmod(milli, WHOLE_GPU)
    return ResourceRequest(cpu * 1000, memory * GIB, whole, (), part)


def given_away(mix: _Mix, seed: int, *, is_judged: bool) -> float:
    """The share of all GPUs in % once 130 % of them were asked for."""
    cluster = ClusterIndex(nodes())
    capacity = Capacity.free(cluster)
    ledger = Ledger(capacity)
    requests = [request(*requested) for _, *requested in mix]
    weights = [weight for weight, *_ in mix]
    if is_judged:
        capacity.set_workload(
            partial(WorkloadProfile.of, Counter(dict(zip(requests, weights, strict=True))).items(), cluster)
        )
    gpus = sum(node.allocatable.gpu_count for node in cluster.nodes) * WHOLE_GPU
    chance, requested, given = Random(seed), 0, 0
    while requested < 1.3 * gpus:
        one = chance.choices(requests, weights)[0]
        milli = WHOLE_GPU * one.gpu_count + one.gpu_milli
        requested += milli
        draft = place(demand_of(Gang((GangRole("worker", 1, one),)), cluster), capacity, SearchBudget())
        if draft is not None:
            ledger.start(draft, NEVER)
            given += milli
    return 100 * given / gpus


@pytest.mark.parametrize("name", WORKLOADS)
def test_more_is_given_away_than_by_best_fit(name: str) -> None:
    judged = [given_away(WORKLOADS[name], seed, is_judged=True) for seed in range(4)]
    best_fit = [given_away(WORKLOADS[name], seed, is_judged=False) for seed in range(4)]
    assert sum(judged) > sum(best_fit)


def test_a_job_without_gpus_leaves_the_cpus_that_the_gpus_need() -> None:
    # Two nodes with a free GPU each; jobs here want 8 CPUs beside a GPU, so it must go where more than that stays.
    wholes = [Amounts(16_000, 64 * GIB, {"l4": 1}), Amounts(32_000, 64 * GIB, {"l4": 1})]
    cluster = ClusterIndex(NodeSnapshot(f"n{number}", {}, whole, whole) for number, whole in enumerate(wholes))
    capacity = Capacity.free(cluster)
    capacity.set_workload(lambda: WorkloadProfile.of([(request(1000, 8, 8), 100.0)], cluster))
    draft = place(demand_of(Gang((GangRole("worker", 1, request(0, 12, 8)),)), cluster), capacity, SearchBudget())
    assert draft is not None
    assert [pick.number for _, picks in draft.picks for pick in picks] == [1]


def test_nothing_is_typical_where_there_are_no_gpus() -> None:
    whole = Amounts(16_000, 64 * GIB)
    cluster = ClusterIndex([NodeSnapshot("n0", {}, whole, whole)])
    assert WorkloadProfile.of([(request(0, 1, 1), 1.0)], cluster).requests == ()
