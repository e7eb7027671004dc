"""One job that the planner cannot plan is set aside; all others are planned."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from math import inf, nan

import pytest

from core.domain.ids import JobId, NodeId
from core.domain.sharing.resources import Amounts, Gang, GangRole, ResourceRequest
from scheduler.control.planning.estimates import Estimates, finite
from scheduler.control.planning.poison_jobs import FilteredPlan, PoisonJobFilter
from scheduler.control.planning.running import plannable_limit_s
from scheduler.planning import plan
from scheduler.planning.forecast.durations import JobTraits
from scheduler.planning.model import Estimate, NodeSnapshot, Plan, QueuedGang, Snapshot, WaitReasonCode

NOW = datetime(2026, 11, 21, 14, 0, tzinfo=UTC)
SMALL = Gang((GangRole("worker", 1, ResourceRequest(1, 1)),))
WHOLE = Amounts(20, 20)


def queue() -> Snapshot:
    jobs = [QueuedGang(JobId(f"j{n:02}"), f"j{n:02}", "p", "u", 50, NOW, SMALL, SMALL.shape()) for n in range(40)]
    return Snapshot(NOW, (NodeSnapshot(NodeId("n0"), {}, WHOLE, WHOLE),), tuple(jobs))


class Fails:
    """The planner, which fails with some jobs."""

    def __init__(self, *broken: str) -> None:
        self.broken = {*broken}
        self.calls = 0

    def __call__(self, snapshot: Snapshot) -> Plan:
        self.calls += 1
        if not self.broken.isdisjoint(job.job_id for job in snapshot.queued):
            raise OverflowError("too far")
        return plan(snapshot)


def test_poison_jobs_are_isolated_with_a_reason_and_the_others_start() -> None:
    snapshot = queue()
    generations = {job.job_id: 1 for job in snapshot.queued}
    planned = PoisonJobFilter().plan(snapshot, generations, Fails("j03", "j17"))
    made = planned.plan
    assert planned.snapshot.queued == tuple(job for job in snapshot.queued if job.job_id not in {"j03", "j17"})
    assert len(made.starts) == 20
    assert made.waits.keys() | {start.job_id for start in made.starts} == generations.keys()
    for job_id in (JobId("j03"), JobId("j17")):
        assert made.waits[job_id].code is WaitReasonCode.NEVER_FITS
        assert "the planner fails with this job (OverflowError)" in made.waits[job_id].sentence


def test_the_next_plan_fails_no_more_and_a_job_that_was_changed_is_tried_again() -> None:
    snapshot, planner = queue(), Fails("j03")
    aside, generations = PoisonJobFilter(), {job.job_id: 1 for job in snapshot.queued}
    aside.plan(snapshot, generations, planner)
    assert planner.calls < 20
    planner.calls = 0
    aside.plan(snapshot, generations, planner)
    assert planner.calls == 1
    made = aside.plan(snapshot, generations | {JobId("j03"): 2}, plan).plan
    assert JobId("j03") in {start.job_id for start in made.starts}


def test_a_gang_without_members_is_not_started() -> None:
    snapshot = queue()
    first, *others = snapshot.queued
    empty = replace(first, gang=Gang(()), shape=Gang(()).shape())
    made = PoisonJobFilter().plan(replace(snapshot, queued=(empty, *others)), {first.job_id: 1}, plan).plan
    assert made.waits[first.job_id].sentence == "asks for no replicas at all, so there is nothing to start"
    assert len(made.starts) == 20


def test_one_that_failed_for_a_reason_that_has_ended_is_tried_again_some_minutes_later() -> None:
    snapshot, planner, aside = queue(), Fails("j03"), PoisonJobFilter()
    generations = {job.job_id: 1 for job in snapshot.queued}
    aside.plan(snapshot, generations, planner)
    planner.broken.clear()
    soon = replace(snapshot, now=NOW + timedelta(minutes=4))
    assert JobId("j03") in aside.plan(soon, generations, planner).plan.waits
    assert len(aside.without_known(soon, generations).queued) == 39
    late = replace(snapshot, now=NOW + timedelta(minutes=5))
    assert aside.without_known(late, generations) is late
    assert JobId("j03") in {start.job_id for start in aside.plan(late, generations, planner).plan.starts}


@pytest.mark.parametrize("waiting", [1, 3, 20, 40])
@pytest.mark.parametrize("least", [0, 1])  # with an empty queue too, or as soon as anybody waits
def test_an_error_that_no_waiting_job_causes_is_raised_and_isolates_no_job(waiting: int, least: int) -> None:
    def failing(seen: Snapshot) -> Plan:
        if len(seen.queued) >= least:
            raise ValueError("a node")
        return plan(seen)

    whole, aside = queue(), PoisonJobFilter()
    snapshot = replace(whole, queued=whole.queued[:waiting])
    generations = {job.job_id: 1 for job in snapshot.queued}
    with pytest.raises(ValueError, match="a node"):
        aside.plan(snapshot, generations, failing)
    assert aside.plan(snapshot, generations, plan) == FilteredPlan(snapshot, plan(snapshot))


def test_no_job_is_isolated_for_a_plan_that_also_fails_without_it() -> None:
    snapshot, aside = queue(), PoisonJobFilter()
    generations = {job.job_id: 1 for job in snapshot.queued}

    def failing(seen: Snapshot) -> Plan:
        if len(seen.queued) > 30 or any(job.job_id == "j03" for job in seen.queued):
            raise ValueError("a job, and too many others")
        return plan(seen)

    with pytest.raises(ValueError, match="too many others"):
        aside.plan(snapshot, generations, failing)
    assert aside.without_known(snapshot, generations) is snapshot


def test_poison_jobs_are_isolated_where_no_other_job_waits() -> None:
    snapshot = replace(queue(), queued=queue().queued[:2])
    generations = {job.job_id: 1 for job in snapshot.queued}
    planned = PoisonJobFilter().plan(snapshot, generations, Fails("j00", "j01"))
    assert (planned.snapshot.queued, planned.plan.waits.keys()) == ((), generations.keys())


def test_times_that_are_none_are_not_planned_with() -> None:
    assert finite(Estimate(1.0, 1.0, inf)) is finite(Estimate(nan, 1.0, 1.0)) is None
    assert finite(Estimate(1.0, 1.0, 2.0)) == Estimate(1.0, 1.0, 2.0)
    assert finite(Estimate(8e10, 60.0, 9e10)) == Estimate(1e9, 60.0, 1e9)
    assert (plannable_limit_s(1e12), plannable_limit_s(nan), plannable_limit_s(3600.0)) == (None, None, 3600.0)


def test_what_a_job_says_of_its_own_end_stays_in_sight() -> None:
    reported = {"done_at": "6000-01-01T00:00:00+00:00"}
    estimates = Estimates(_progress={"attempt": reported})
    own = estimates.of_running("attempt", JobTraits("p", "u", "job", "", "shape"), 0.0, None, NOW)
    assert own is not None
    assert (own.likely_s, own.late_s) == (1e9, 1e9)
