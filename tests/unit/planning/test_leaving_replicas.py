"""Replicas that leave an elastic gang hold resources until they are gone, and are no job of their own."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from core.domain.ids import JobId, NodeId
from core.domain.sharing.resources import Amounts, Gang, GangRole, ResourceRequest
from scheduler.planning import Account, NodeSnapshot, Policy, QueuedGang, Quota, RunningGang, Snapshot, plan
from scheduler.planning.queue.shares import Shares

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
MODEL = "h100-80gb-hbm3"


def gang(replicas: int, **more) -> Gang:
    return Gang((GangRole("worker", replicas, ResourceRequest(100, 2**27, 1, ()), **more),))


def snapshot(jobs: int) -> Snapshot:
    whole = Amounts(64_000, 2**37, {MODEL: 4})
    wide = gang(1, most=2)
    place = ("worker", NodeId("a"))
    stays = RunningGang(
        JobId("wide"),
        "wide",
        "vision",
        50,
        wide,
        (place,),
        gpu_models=(MODEL,),
        user="ann",
        started_at=NOW,
        indices=(0,),
    )
    leaves = RunningGang(
        JobId("wide~leaving"), "wide", "vision", 50, wide, (place,), NOW + timedelta(seconds=30), (MODEL,), "ann",
        started_at=NOW, is_stopping=True, is_part=True, indices=(1,),
    )  # fmt: skip
    waits = QueuedGang(JobId("next"), "next", "vision", "ann", 50, NOW, gang(1), gang(1).shape())
    account = Account("vision", quota=Quota(limit={"jobs": jobs}))
    nodes = (NodeSnapshot(NodeId("a"), {}, whole, Amounts(63_800, 2**37 - 2**28, {MODEL: 2})),)
    return Snapshot(NOW, nodes, (waits,), (stays, leaves), policy=Policy(), accounts=(account,))


def test_a_part_that_leaves_counts_as_no_job_and_still_holds_its_gpu() -> None:
    held = Shares(snapshot(2)).occupied_by_project["vision"]
    assert (held["jobs"], held["gpu_milli"]) == (1, 2000)


def test_a_limit_of_jobs_counts_an_elastic_job_that_shrinks_once() -> None:
    assert [start.job_id for start in plan(snapshot(2)).starts] == ["next"]
    assert plan(snapshot(1)).starts == ()
