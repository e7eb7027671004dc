"""What holds when a waiting job is withdrawn: the sentences of docs/planner.md, each a property; and what does not
hold.

All of them are about the same expected demand. What a hole is worth is judged by all that runs and waits, so who
leaves may
change where others are put; that is held still here, by telling both plans the demand of the whole queue.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from random import Random
from unittest.mock import patch

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from core.domain.ids import JobId, NodeId
from core.domain.sharing.resources import Amounts, Gang, GangRole, ResourceRequest
from core.domain.sharing.wait_phrases import RESERVED_FOR
from scheduler.planning import (
    NodeSnapshot,
    Placement,
    Plan,
    Policy,
    QueuedGang,
    QueueOrder,
    RunningGang,
    Snapshot,
    WaitReasonCode,
    plan,
)
from scheduler.planning.placement.cluster import ClusterIndex
from scheduler.planning.placement.eligibility import Eligibility
from scheduler.planning.placement.feasibility import EmptyCluster
from scheduler.planning.placement.fragmentation import WorkloadProfile
from scheduler.planning.queue.quota import QuotaExcess
from scheduler.planning.queue.shares import Shares
from scheduler.simulator.cluster import SimulatedCluster
from tests.properties.planner_worlds import NOW, any_snapshots, busy_snapshot
from tests.properties.test_share_and_quota_properties import worlds

IN_LINE = Policy(
    order=QueueOrder.FIFO, is_fair=False, preempts_priority=False, reclaims=False, shrinks=False, keeps_for_gpus=False
)
WORLDS = st.one_of(any_snapshots(), st.integers(0, 1 << 30).map(lambda seed: busy_snapshot(Random(seed))))
# In the order `fair-finish` the work of all that waits counts for what is long.
SERVED = [order for order in QueueOrder if order is not QueueOrder.FAIR_FINISH]
QUICK = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@contextmanager
def demand_of(snapshot: Snapshot) -> Iterator[None]:
    cluster = ClusterIndex(node for node in snapshot.nodes if node.is_schedulable)
    expected = WorkloadProfile.of_snapshot(snapshot, cluster, lambda _: True)
    with patch.object(WorkloadProfile, "of_snapshot", lambda *_: expected):
        yield


def without(snapshot: Snapshot, job: JobId) -> Snapshot:
    return replace(snapshot, queued=tuple(other for other in snapshot.queued if other.job_id != job))


def starts(made: Plan) -> dict[JobId, tuple[Placement, ...]]:
    return {start.job_id: start.placements for start in made.starts}


def codes(made: Plan) -> dict[JobId, WaitReasonCode]:
    return {name: reason.code for name, reason in made.waits.items()}


def job_batches(snapshot: Snapshot) -> list[JobId]:
    return [job.job_id for job in sorted(snapshot.queued, key=lambda job: (-job.priority, job.queued_at, job.job_id))]


def with_a_reserved_place(made: Plan) -> set[JobId]:
    """Those for whom a place is kept, as the reasons say."""
    reported = {reason.numbers.get(key) for reason in made.waits.values() for key in (RESERVED_FOR, "before")}
    return {JobId(job) for job in reported if job is not None}


def who_may_not_start(snapshot: Snapshot) -> set[JobId]:
    """Those who could start nowhere, were everything free: their quota, reservations for others or the nodes do not
    let them.
    """
    cluster = ClusterIndex(node for node in snapshot.nodes if node.is_schedulable)
    eligibility, empty = Eligibility(snapshot, cluster, Shares(snapshot)), EmptyCluster(cluster)
    found = set()
    for job in snapshot.queued:
        key = eligibility.key_of(job)
        if isinstance(key, QuotaExcess) or empty.refusal(eligibility.demand(job, key)) is not None:
            found.add(job.job_id)
    return found


@settings(QUICK, max_examples=80)
@given(worlds(), st.sampled_from(SERVED))
def test_without_a_job_that_may_start_nowhere_everybody_starts_and_waits_as_planned_with_several_projects_and_users(
    world: SimulatedCluster, order: QueueOrder
) -> None:
    snapshot = world.snapshot(NOW)
    snapshot = replace(snapshot, policy=replace(snapshot.policy, order=order))
    with demand_of(snapshot):
        made = plan(snapshot)
        for job in sorted(who_may_not_start(snapshot)):
            other = plan(without(snapshot, job))
            assert (starts(other), other.grows) == (starts(made), made.grows)
            assert codes(other) == {name: code for name, code in codes(made).items() if name != job}
            assert other.order == tuple(name for name in made.order if name != job)


@QUICK
@given(WORLDS, st.sampled_from(SERVED), st.booleans())
def test_in_a_single_queue_where_every_job_has_a_reservation_all_start_as_planned(
    snapshot: Snapshot, order: QueueOrder, is_fair: bool
) -> None:
    policy = Policy(order=order, is_fair=is_fair, preempts_priority=False, reclaims=False, keeps_for_gpus=False)
    snapshot = replace(snapshot, policy=policy)
    with demand_of(snapshot):
        made = plan(snapshot)
        for job in made.waits.keys() - with_a_reserved_place(made):
            other = plan(without(snapshot, job))
            assert starts(other) == starts(made)
            assert codes(other) == {name: code for name, code in codes(made).items() if name != job}


@QUICK
@given(WORLDS)
def test_who_stands_before_it_and_next_behind_it_starts_if_that_was_planned(snapshot: Snapshot) -> None:
    snapshot = replace(snapshot, policy=IN_LINE)
    line = job_batches(snapshot)
    with demand_of(snapshot):
        made = plan(snapshot)
        for job in made.waits:
            other = starts(plan(without(snapshot, job)))
            at = line.index(job)
            assert [name for name in line[: at + 2] if name in starts(made) and name not in other] == []


@QUICK
@given(WORLDS)
def test_the_first_reservation_keeps_its_time_whichever_job_is_withdrawn(snapshot: Snapshot) -> None:
    snapshot = replace(snapshot, policy=IN_LINE)
    with demand_of(snapshot):
        made = plan(snapshot)
        retained = with_a_reserved_place(made)
        first = next((job for job in job_batches(snapshot) if job in retained and job in made.waits), None)
        for job in made.waits.keys() - {first}:
            if first is None:
                return
            reason = plan(without(snapshot, job)).waits.get(first)
            planned = made.waits[first].numbers.get("expected_start")
            if reason is not None and planned is not None:
                assert reason.numbers.get("expected_start", "9") <= planned


def job(name: str, replicas: int, gpus: int, limit: float | None = None) -> QueuedGang:
    gang = Gang((GangRole("worker", replicas, ResourceRequest(1, 1, gpus)),))
    return QueuedGang(JobId(name), name, "p", "u", 50, NOW, gang, gang.shape(), limit)


def test_a_job_further_behind_may_start_later_than_planned() -> None:
    """``a`` needs both nodes, so ``b``, which may run for ever, may not take the one that is free, and the short
    ``c`` may: it runs
    before ``a`` could. Without ``a``, ``b`` takes the node, and ``c`` waits for it.
    """
    whole = Amounts(8, 8, {"H100": 4})
    nodes = (
        NodeSnapshot(NodeId("n0"), {}, whole, replace(whole, gpus={"H100": 0})),
        NodeSnapshot(NodeId("n1"), {}, whole, whole),
    )
    end = NOW + timedelta(hours=1)
    running = RunningGang(JobId("r"), "r", "p", 50, job("r", 1, 4).gang, (("worker", NodeId("n0")),), end)
    queue = (job("a", 2, 4), job("b", 1, 4), job("c", 1, 4, limit=600.0))
    snapshot = Snapshot(NOW, nodes, queue, (running,), policy=IN_LINE)
    assert starts(plan(snapshot)).keys() == {"c"}
    assert starts(plan(without(snapshot, JobId("a")))).keys() == {"b"}


def test_with_several_projects_a_job_without_room_takes_its_turn_and_delays_those_behind_it() -> None:
    """No place is kept for ``old``, as the urgent ``large`` has all nodes; both ``small`` and ``other`` surely end
    before that starts.

    It has starved, so it is its project's turn, and ``small`` comes next in its line. Without it ``other`` waits for
    longer.
    """
    whole = Amounts(8, 8, {"H100": 4})
    nodes = (
        NodeSnapshot(NodeId("n0"), {}, whole, replace(whole, gpus={"H100": 0})),
        NodeSnapshot(NodeId("n1"), {}, whole, replace(whole, gpus={"H100": 1})),
    )
    end = NOW + timedelta(hours=1)
    filling = (
        RunningGang(JobId("r"), "r", "x", 50, job("r", 1, 4).gang, (("worker", NodeId("n0")),), end),
        RunningGang(JobId("s"), "s", "x", 50, job("s", 1, 3).gang, (("worker", NodeId("n1")),), end),
    )
    queue = (
        replace(job("large", 2, 4), project="x", priority=90),
        replace(job("old", 1, 2), queued_at=NOW - timedelta(days=2)),
        replace(job("small", 1, 1, limit=600.0), queued_at=NOW - timedelta(seconds=5)),
        replace(job("other", 1, 1, limit=600.0), project="q", queued_at=NOW - timedelta(seconds=9)),
    )
    snapshot = Snapshot(NOW, nodes, queue, filling, policy=Policy(preempts_priority=False))
    made = plan(snapshot)
    assert JobId("old") not in with_a_reserved_place(made)
    assert starts(made).keys() == {"small"}
    assert starts(plan(without(snapshot, JobId("old")))).keys() == {"other"}
