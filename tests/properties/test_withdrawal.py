"""What holds when a waiting job is withdrawn: the sentences of docs/planner.md, each a property; and what does not hold.

All of them are about the same expected demand. What a hole is worth is judged by all that runs and waits, so who leaves may
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
from core.domain.resources import Amounts, Gang, GangRole, Request
from core.domain.waiting import RESERVED_FOR
from scheduler.planning import NodeView, Placement, Plan, Policy, QueuedGang, QueueOrder, RunningGang, Snapshot, plan
from scheduler.planning.cluster import Cluster
from scheduler.planning.fragments import Typical
from tests.properties.planner_worlds import NOW, any_snapshots, busy_snapshot

IN_LINE = Policy(order=QueueOrder.FIFO, is_fair=False)
WORLDS = st.one_of(any_snapshots(), st.integers(0, 1 << 30).map(lambda seed: busy_snapshot(Random(seed))))
QUICK = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@contextmanager
def demand_of(snapshot: Snapshot) -> Iterator[None]:
    cluster = Cluster(node for node in snapshot.nodes if node.is_schedulable)
    expected = Typical.of_snapshot(snapshot, cluster, lambda _: True)
    with patch.object(Typical, "of_snapshot", lambda *_: expected):
        yield


def without(snapshot: Snapshot, job: JobId) -> Snapshot:
    return replace(snapshot, queued=tuple(other for other in snapshot.queued if other.job_id != job))


def starts(made: Plan) -> dict[JobId, tuple[Placement, ...]]:
    return {start.job_id: start.placements for start in made.starts}


def in_line(snapshot: Snapshot) -> list[JobId]:
    return [job.job_id for job in sorted(snapshot.queued, key=lambda job: (-job.priority, job.queued_at, job.job_id))]


def with_a_place_kept(made: Plan) -> set[JobId]:
    """Those for whom a place is kept, as the reasons say."""
    told = {reason.numbers.get(key) for reason in made.waits.values() for key in (RESERVED_FOR, "before")}
    return {JobId(job) for job in told if job is not None}


@QUICK
@given(WORLDS, st.sampled_from([IN_LINE, Policy()]))
def test_without_a_waiting_job_for_which_no_place_is_kept_everybody_starts_as_planned(
    snapshot: Snapshot, policy: Policy
) -> None:
    snapshot = replace(snapshot, policy=replace(policy, preempts_priority=False, reclaims=False))
    with demand_of(snapshot):
        made = plan(snapshot)
        for job in made.waits.keys() - with_a_place_kept(made):
            other = plan(without(snapshot, job))
            assert starts(other) == starts(made)
            codes = {name: reason.code for name, reason in made.waits.items() if name != job}
            assert {name: reason.code for name, reason in other.waits.items()} == codes


@QUICK
@given(WORLDS)
def test_who_stands_before_it_and_next_behind_it_starts_if_that_was_planned(snapshot: Snapshot) -> None:
    snapshot = replace(snapshot, policy=IN_LINE)
    line = in_line(snapshot)
    with demand_of(snapshot):
        made = plan(snapshot)
        for job in made.waits:
            other = starts(plan(without(snapshot, job)))
            at = line.index(job)
            assert [name for name in line[: at + 2] if name in starts(made) and name not in other] == []


@QUICK
@given(WORLDS)
def test_the_first_for_whom_a_place_is_kept_keeps_its_time_whoever_else_leaves(snapshot: Snapshot) -> None:
    snapshot = replace(snapshot, policy=IN_LINE)
    with demand_of(snapshot):
        made = plan(snapshot)
        kept = with_a_place_kept(made)
        first = next((job for job in in_line(snapshot) if job in kept and job in made.waits), None)
        for job in made.waits.keys() - {first}:
            if first is None:
                return
            reason = plan(without(snapshot, job)).waits.get(first)
            planned = made.waits[first].numbers.get("expected_start")
            if reason is not None and planned is not None:
                assert reason.numbers.get("expected_start", "9") <= planned


def job(name: str, replicas: int, gpus: int, limit: float | None = None) -> QueuedGang:
    gang = Gang((GangRole("worker", replicas, Request(1, 1, gpus)),))
    return QueuedGang(JobId(name), name, "p", "u", 50, NOW, gang, gang.shape(), limit)


def test_but_somebody_further_behind_may_start_later_than_planned() -> None:
    """``a`` needs both nodes, so ``b``, which may run for ever, may not take the one that is free, and the short ``c`` may: it runs
    before ``a`` could. Without ``a``, ``b`` takes the node, and ``c`` waits for it.
    """
    whole = Amounts(8, 8, {"H100": 4})
    nodes = (
        NodeView(NodeId("n0"), {}, whole, replace(whole, gpus={"H100": 0})),
        NodeView(NodeId("n1"), {}, whole, whole),
    )
    end = NOW + timedelta(hours=1)
    running = RunningGang(JobId("r"), "r", "p", 50, job("r", 1, 4).gang, (("worker", NodeId("n0")),), end)
    queue = (job("a", 2, 4), job("b", 1, 4), job("c", 1, 4, limit=600.0))
    snapshot = Snapshot(NOW, nodes, queue, (running,), policy=IN_LINE)
    assert starts(plan(snapshot)).keys() == {"c"}
    assert starts(plan(without(snapshot, JobId("a")))).keys() == {"b"}
