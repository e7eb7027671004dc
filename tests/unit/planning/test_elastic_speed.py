"""Elastic gangs by their measured speed: who gets the next replica, and who returns one first."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from core.domain.ids import JobId, NodeId
from core.domain.jobs.speed_curve import SpeedCurve, SpeedPoint
from core.domain.sharing.policy import Policy
from core.domain.sharing.resources import Amounts, Gang, GangRole, ResourceRequest
from scheduler.planning import GrowingGang, NodeSnapshot, Plan, QueuedGang, RunningGang, Snapshot, plan

NOW = datetime(2026, 1, 5, 12, tzinfo=UTC)
GANG = Gang((GangRole("worker", 1, ResourceRequest(1000, 2**30, 1), 8),))
LINEAR = SpeedCurve((SpeedPoint(2, 10, 60), SpeedPoint(4, 20, 60)))
WEAK = SpeedCurve((SpeedPoint(2, 10, 60), SpeedPoint(4, 13, 60)))
FLAT = SpeedCurve((SpeedPoint(2, 10, 60), SpeedPoint(4, 10.2, 60)))


def running(name: str, replicas: int, speed: SpeedCurve, age_s: float) -> tuple[RunningGang, GrowingGang]:
    queued_at = NOW - timedelta(seconds=age_s)
    node = NodeId("n0")
    view = RunningGang(
        JobId(name), name, "p", 50, GANG, (("worker", node),) * replicas, gpu_models=("H100",) * replicas, user="u",
        queued_at=queued_at, started_at=queued_at, indices=tuple(range(replicas)), speed=speed,
    )  # fmt: skip
    missing = tuple(range(replicas, 8))
    return view, GrowingGang(JobId(name), 50, queued_at, GANG, missing, (((node, "H100"),) * replicas), speed)


def planned(free: int, *jobs: tuple[RunningGang, GrowingGang], queued: tuple[QueuedGang, ...] = ()) -> Plan:
    whole = Amounts(64_000, 2**40, {"H100": 16})
    node = NodeSnapshot(NodeId("n0"), {}, whole, replace(whole, gpus={"H100": free}))
    views, growing = zip(*jobs, strict=True)
    policy = Policy(is_fair=False)
    return plan(Snapshot(NOW, (node,), queued, views, growing, policy=policy))


def replicas_added(made: Plan) -> dict[str, int]:
    return {grow.job_id: len(grow.placements) for grow in made.grows}


def test_the_replica_goes_to_the_gang_that_it_speeds_up_most_not_to_the_oldest() -> None:
    old, young = running("old", 4, WEAK, 900), running("young", 4, LINEAR, 60)
    assert replicas_added(planned(2, old, young)) == {"young": 2}


def test_a_gang_whose_measured_speed_has_saturated_gets_none_though_room_is_free() -> None:
    assert replicas_added(planned(8, running("flat", 4, FLAT, 900))) == {}
    assert replicas_added(planned(8, running("weak", 4, WEAK, 900))) == {"weak": 4}


def test_a_start_is_no_larger_than_an_earlier_job_of_the_name_was_fast() -> None:
    whole = Amounts(64_000, 2**40, {"H100": 8})
    node = NodeSnapshot(NodeId("n0"), {}, whole, whole)
    job = QueuedGang(JobId("again"), "again", "p", "u", 50, NOW, GANG, GANG.shape(), speed=FLAT)
    (start,) = plan(Snapshot(NOW, (node,), (job,))).starts
    assert len(start.placements) == 2  # with four replicas it was hardly faster


def test_without_measurements_the_smaller_gang_grows_first() -> None:
    large, small = running("large", 5, SpeedCurve(), 900), running("small", 2, SpeedCurve(), 60)
    assert replicas_added(planned(3, large, small)) == {"small": 3}


def test_a_waiting_job_gets_the_replicas_that_lose_the_least_speed() -> None:
    gang = Gang((GangRole("worker", 1, ResourceRequest(1000, 2**30, 2)),))
    waits = QueuedGang(JobId("waits"), "waits", "p", "u", 50, NOW, gang, gang.shape())
    old, young = running("old", 4, WEAK, 900), running("young", 4, LINEAR, 60)
    made = planned(0, young, old, queued=(waits,))
    assert [(shrink.job_id, shrink.indices) for shrink in made.shrinks] == [("old", (2, 3))]
    assert not made.preempts
