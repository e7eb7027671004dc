"""Replicas move between running elastic gangs where they do clearly more for another one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from core.domain.ids import JobId, NodeId
from core.domain.jobs.speed_curve import UNMEASURED, SpeedCurve, SpeedPoint
from core.domain.sharing.policy import Policy, QueueOrder
from core.domain.sharing.resources import Amounts, Gang, GangRole, ResourceRequest
from scheduler.planning import GrowingGang, NodeSnapshot, Plan, QueuedGang, RunningGang, Snapshot, plan
from scheduler.planning.elastic_balance import next_balance
from scheduler.planning.fixpoint import apply_plan
from scheduler.planning.model import Estimate

NOW = datetime(2026, 1, 5, 12, tzinfo=UTC)
GANG = Gang((GangRole("worker", 1, ResourceRequest(1000, 2**30, 1), 16),))
LINEAR = SpeedCurve(tuple(SpeedPoint(n, 10 * n, 60) for n in (1, 16)))
FLAT = SpeedCurve((SpeedPoint(1, 10, 60), SpeedPoint(2, 10.2, 60), SpeedPoint(16, 11, 60)))
FIFO = Policy(order=QueueOrder.FIFO, is_fair=False)


def job(name: str, replicas: int, *, age_s: float = 3600, speed: SpeedCurve = UNMEASURED, **more: Any) -> RunningGang:
    at = NOW - timedelta(seconds=age_s)
    return RunningGang(
        JobId(name), name, more.pop("project", "p"), 50, more.pop("gang", GANG), (("worker", NodeId("n")),) * replicas,
        gpu_models=("H100",) * replicas, user="u", queued_at=at, started_at=at, indices=tuple(range(replicas)),
        speed=speed, **more,
    )  # fmt: skip


def snapshot_of(*jobs: RunningGang, policy: Policy = FIFO, queued: Sequence[QueuedGang] = ()) -> Snapshot:
    whole = Amounts(640_000, 2**40, {"H100": 16})
    free = 16 - sum(len(gang.nodes) for gang in jobs)
    growing = tuple(
        GrowingGang(
            gang.job_id, 50, gang.queued_at, gang.gang, tuple(range(len(gang.nodes), 16)),
            ((NodeId("n"), "H100"),) * len(gang.nodes), gang.speed,
        )
        for gang in jobs
        if gang.queued_at is not None and gang.gang.elastic is not None and len(gang.nodes) < 16 and not gang.is_part
    )  # fmt: skip
    node = NodeSnapshot(NodeId("n"), {}, whole, replace(whole, gpus={"H100": free}))
    return Snapshot(NOW, (node,), tuple(queued), jobs, growing, policy=policy)


def moved(made: Plan) -> dict[str, tuple[int, ...]]:
    assert not made.preempts
    return {shrink.job_id: shrink.indices for shrink in made.shrinks}


def test_a_late_gang_gets_half_of_what_an_equal_one_holds() -> None:
    made = plan(snapshot_of(job("early", 15), job("late", 1)))
    assert moved(made) == {"early": tuple(range(9, 15))}  # 9 and 7: one more would change less than a fourth
    assert made.shrinks[0].for_job is None
    assert made.shrinks[0].sentence == "replicas make room for late, which they speed up more"


def test_the_other_gang_grows_into_the_room_and_then_nothing_moves_any_more() -> None:
    early, late = job("early", 15), job("late", 1)
    left = len(plan(snapshot_of(early, late)).shrinks[0].indices)
    shrunk = replace(early, nodes=early.nodes[:-left], gpu_models=early.gpu_models[:-left],
                     indices=early.indices[:-left], size_changed_at=NOW)  # fmt: skip
    made = plan(snapshot_of(shrunk, late))
    assert [(grow.job_id, len(grow.placements)) for grow in made.grows] == [("late", left)]
    assert moved(made) == {}
    settled = [job("early", 15 - left), job("late", 1 + left)]
    assert moved(plan(snapshot_of(*settled))) == {}


def test_who_gains_nothing_gives_to_who_gains_much_but_never_below_the_minimum() -> None:
    assert moved(plan(snapshot_of(job("flat", 15, speed=FLAT), job("late", 1, speed=LINEAR)))) == {
        "flat": tuple(range(1, 15))
    }


def test_a_gang_that_would_hardly_be_faster_gets_none() -> None:
    assert moved(plan(snapshot_of(job("early", 15), job("late", 1, speed=FLAT)))) == {}
    assert moved(plan(snapshot_of(job("early", 9), job("late", 7)))) == {}


def test_each_waits_until_it_has_made_up_for_its_last_resize() -> None:
    early, late = job("early", 15), job("late", 1)
    policy = replace(FIFO, restart_cost_s=30.0)
    for gang, costs in ((early, 10), (late, 1)):
        others = [other for other in (early, late) if other is not gang]
        soon = replace(gang, size_changed_at=NOW - timedelta(seconds=30 * costs - 1))
        assert moved(plan(snapshot_of(soon, *others, policy=policy))) == {}
        assert next_balance([soon, *others], policy, NOW) == NOW + timedelta(seconds=1)
        done = replace(gang, size_changed_at=NOW - timedelta(seconds=30 * costs))
        assert moved(plan(snapshot_of(done, *others, policy=policy)))
    assert next_balance([early, late], policy, NOW) is None


@pytest.mark.parametrize(
    "late",
    [
        job("late", 1, project="other"),
        job("late", 1, gang=Gang((GangRole("worker", 1, ResourceRequest(2000, 2**30, 1), 16),))),
    ],
    ids=["of another project", "with another request"],
)
def test_nothing_moves_to_a_gang(late: RunningGang) -> None:
    assert moved(plan(snapshot_of(job("early", 15), late))) == {}


def test_nothing_moves_where_elastic_gangs_are_not_shrunk() -> None:
    jobs = (job("early", 15), job("late", 1))
    assert moved(plan(snapshot_of(*jobs, policy=replace(FIFO, shrinks=False)))) == {}
    assert moved(plan(replace(snapshot_of(*jobs), moves_replicas=False))) == {}


def test_a_waiting_job_has_the_better_claim() -> None:
    gang = Gang((GangRole("worker", 4, ResourceRequest(1000, 2**30, 1)),))
    waits = QueuedGang(JobId("waits"), "waits", "p", "u", 50, NOW, gang, gang.shape())
    snapshot = snapshot_of(job("early", 15), job("late", 1), queued=[waits])
    made = plan(snapshot)
    assert {shrink.for_job for shrink in made.shrinks} == {"waits"}
    assert plan(apply_plan(snapshot, made)).shrinks == ()


def test_the_shorter_job_gets_more_in_orders_by_length_alone() -> None:
    long, short = (
        job(name, size, estimate=Estimate(left_s, left_s, left_s))
        for name, size, left_s in (("long", 8, 36_000.0), ("short", 8, 600.0))
    )
    assert moved(plan(snapshot_of(long, short))) == {}
    by_length = Policy(order=QueueOrder.SHORTEST_FIRST, is_fair=False)
    (giver,) = moved(plan(snapshot_of(long, short, policy=by_length))).items()
    assert giver[0] == "long"
    assert 2 <= len(giver[1]) <= 6
