"""Jobs that give their places to others, over a real database and the fake engine."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from sqlalchemy import update

from core.db.engine import unit_of_work
from core.db.repositories.planning import StoredPolicy, write_policy
from core.db.tables import Attempt, BookingRow, Event, Job, Node, Project, Replica, Usage, WaitReason
from core.domain.errors import RowsLocked
from core.domain.ids import AttemptId, JobId
from executors.fake import Script
from scheduler.control.attempts.completion_rules import DEADLINE_SLACK
from scheduler.control.attempts.decide import KILL_SLACK
from scheduler.control.planning import tick
from scheduler.planning import plan
from scheduler.planning.model import Plan, Preempt, PreemptCode, Shrink

FOREVER = Script(run_for=timedelta(hours=9))


def set_policy(plane, **settings) -> None:
    with unit_of_work(plane.sessions) as session:
        now = plane.engine.now
        write_policy(session, settings, previous=StoredPolicy(None, {}), by="ann", now=now)  # type: ignore[arg-type]


def say(monkeypatch: pytest.MonkeyPatch, **more) -> None:
    """The next plans say this besides what they say anyway, without preemptions of their own."""

    def planned(snapshot) -> Plan:
        return replace(plan(snapshot), **{"preempts": (), "shrinks": (), **more})

    monkeypatch.setattr(tick, "plan_to_apply", planned)


def stop(job: str, for_job: str | None = "job-urgent") -> Preempt:
    return Preempt(
        JobId(job), JobId(for_job) if for_job else None, PreemptCode.PRIORITY, "job urgent has a larger priority"
    )


@pytest.fixture
def full(plane):
    """Job low has the whole node, job urgent waits for it."""
    plane.engine.script("worker", FOREVER)
    plane.submit("low", cpu=8, priority=10)
    plane.settle()
    plane.advance(400)
    plane.submit("urgent", cpu=8, priority=90)
    return plane


def test_a_preempted_job_waits_again_uncounted_and_its_place_goes_to_the_other(full, monkeypatch):
    say(monkeypatch, preempts=(stop("job-low"),))
    queued_at = full.one(Job, id="job-low").queued_at
    full.ticker.tick()
    attempt = full.one(Attempt, job_id="job-low")
    assert attempt.stop["cause"] == "preempt"
    assert attempt.stop["for_job"] == "job-urgent"
    assert ("reconcile", attempt.id) in full.wakeups
    say(monkeypatch)
    full.settle()
    full.advance(31)  # its grace
    assert full.state("job-urgent") == "running"
    low = full.one(Job, id="job-low")
    assert (low.state, low.restart_count, low.not_before, low.queued_at) == ("queued", 0, None, queued_at)
    assert low.preempt_count == 1
    assert low.preemption["sentence"] == "Job urgent has a larger priority."
    assert low.waiting_since is not None
    assert "Job urgent has a larger priority." in low.wait_reason["sentence"]
    assert low.run_s == pytest.approx(low.attained_gpu_s)  # without GPUs, the gang's seconds
    assert 400 <= low.run_s < 500
    reported = [event.reason for event in full.all(Event, job_id="job-low", kind="job.requeued")]
    assert reported == ["Job urgent has a larger priority."]


def test_a_drained_node_is_emptied_and_takes_work_again_when_it_is_opened(plane):
    plane.engine.script("worker", FOREVER)
    plane.submit("low", cpu=8)
    plane.settle()
    plane.advance(5)
    with unit_of_work(plane.sessions) as session:
        session.execute(update(Node).values(is_cordoned=True, is_draining=True))
    plane.settle()
    assert plane.one(Attempt, job_id="job-low").stop["cause"] == "preempt"
    plane.advance(31)
    low = plane.one(Job, id="job-low")
    assert (low.state, low.restart_count, low.preempt_count) == ("queued", 0, 1)
    assert "being drained" in low.preemption["sentence"]
    with unit_of_work(plane.sessions) as session:
        session.execute(update(Node).values(is_cordoned=False, is_draining=False))
    plane.settle()
    assert plane.state("job-low") == "running"


def test_it_starts_again_when_there_is_room_and_the_story_is_over(full, monkeypatch):
    say(monkeypatch, preempts=(stop("job-low"),))
    full.ticker.tick()
    say(monkeypatch)
    full.settle()
    full.advance(31)
    full.want("job-urgent", "cancel")
    full.settle()
    full.advance(31)
    assert full.state("job-low") == "running"
    low = full.one(Job, id="job-low")
    assert low.preemption is None
    assert low.attempt_count == 2


def test_replicas_get_the_grace_that_the_policy_gives(full, monkeypatch):
    set_policy(full, grace_s=77.0)
    say(monkeypatch, preempts=(stop("job-low"),))
    graces = []
    executor_stop = full.control.executor.stop
    monkeypatch.setattr(
        full.control.executor, "stop", lambda key, *, grace: (graces.append(grace), executor_stop(key, grace=grace))
    )
    full.ticker.tick()
    full.reconciler.reconcile(AttemptId(full.one(Attempt, job_id="job-low").id))
    assert graces == [timedelta(seconds=77)]


@pytest.mark.parametrize(("wanted", "state"), [("pause", "paused"), ("cancel", "cancelled")])
def test_what_its_user_wants_meanwhile_counts_more(full, monkeypatch, wanted, state):
    say(monkeypatch, preempts=(stop("job-low"),))
    full.ticker.tick()
    full.want("job-low", wanted)
    say(monkeypatch)
    full.settle()
    full.advance(31)
    assert full.state("job-low") == state


def test_a_job_with_an_earlier_user_request_is_not_preempted(full, monkeypatch):
    loaded = plan

    def planned(snapshot) -> Plan:
        full.want("job-low", "pause")  # between the snapshot and the write
        return replace(loaded(snapshot), preempts=(stop("job-low"),), shrinks=())

    monkeypatch.setattr(tick, "plan_to_apply", planned)
    full.ticker.tick()
    assert full.one(Attempt, job_id="job-low").stop is None


def test_no_job_is_preempted_for_a_job_that_waits_no_more(full, monkeypatch):
    def planned(snapshot) -> Plan:
        made = replace(plan(snapshot), preempts=(stop("job-low"),), shrinks=())
        full.want("job-urgent", "cancel")
        return made

    monkeypatch.setattr(tick, "plan_to_apply", planned)
    full.ticker.tick()
    assert full.one(Attempt, job_id="job-low").stop is None


def test_of_several_that_are_to_make_room_all_or_none_are_stopped(plane, monkeypatch):
    plane.engine.script("worker", FOREVER)
    plane.submit("one", cpu=4, priority=10)
    plane.submit("two", cpu=4, priority=10)
    plane.settle()
    plane.submit("urgent", cpu=8, priority=90)

    def planned(snapshot) -> Plan:
        plane.want("job-two", "pause")
        return replace(plan(snapshot), preempts=(stop("job-one"), stop("job-two")), shrinks=())

    monkeypatch.setattr(tick, "plan_to_apply", planned)
    plane.ticker.tick()
    assert plane.one(Attempt, job_id="job-one").stop is None


def test_a_plan_that_is_applied_twice_stops_once(full, monkeypatch):
    say(monkeypatch, preempts=(stop("job-low"),))
    full.ticker.tick()
    full.ticker.tick()
    assert full.story("job-low").count("attempt.stopping") == 1


def test_a_job_that_is_being_started_can_be_stopped(plane, monkeypatch):
    plane.submit("low", cpu=8, priority=10)
    plane.ticker.tick()
    assert plane.one(Attempt, job_id="job-low").state == "placed"
    plane.submit("urgent", cpu=8, priority=90)
    say(monkeypatch, preempts=(stop("job-low"),))
    plane.ticker.tick()
    say(monkeypatch)
    plane.engine.script("worker", FOREVER)
    plane.settle()
    assert (plane.state("job-low"), plane.state("job-urgent")) == ("queued", "running")


def test_a_control_plane_that_dies_after_the_write_is_followed_by_one_that_acts(full, monkeypatch):
    say(monkeypatch, preempts=(stop("job-low"),))
    full.ticker.tick()
    say(monkeypatch)
    full.start()
    full.settle()
    full.advance(31)
    assert full.state("job-urgent") == "running"


# Elastic gangs


def shrink(job: str, *indices: int) -> Shrink:
    return Shrink(JobId(job), "worker", indices, JobId("job-urgent"), "Job urgent needs the place.")


@pytest.fixture
def wide(plane):
    """An elastic gang of four has the whole node, job urgent waits for half of it."""
    plane.engine.script("worker", FOREVER)
    plane.submit("elastic", workers={"min": 2, "max": 4}, cpu=2, priority=10)
    plane.settle()
    plane.submit("urgent", cpu=4, priority=90)
    return plane


def members(plane, job: str) -> list[str]:
    attempt = plane.one(Attempt, job_id=job)
    return [f"{one['role']}-{one['index']}" for one in attempt.layout]


def test_an_elastic_gang_gives_replicas_and_goes_on_in_the_same_attempt(wide, monkeypatch):
    say(monkeypatch, shrinks=(shrink("job-elastic", 2, 3),))
    wide.ticker.tick()
    say(monkeypatch)
    wide.settle()
    attempt = wide.one(Attempt, job_id="job-elastic")
    assert (attempt.state, attempt.number) == ("running", 1)
    assert attempt.world_reason == (
        "worker-2 and worker-3 give their places: Job urgent needs the place. 2 of 2 to 4 workers go on."
    )
    wide.advance(31)
    assert wide.state("job-urgent") == "running"
    assert wide.one(Attempt, job_id="job-elastic").number == 1
    assert {r.state for r in wide.all(Replica, job_id="job-elastic")} == {"running", "stopped"}
    assert wide.one(Job, id="job-elastic").restart_count == 0


def test_it_grows_back_when_there_is_room_again(wide, monkeypatch):
    say(monkeypatch, shrinks=(shrink("job-elastic", 2, 3),))
    wide.ticker.tick()
    say(monkeypatch)
    wide.settle()
    wide.advance(31)
    wide.want("job-urgent", "cancel")
    wide.settle()
    wide.advance(31)
    wide.advance(31)
    assert len([r for r in wide.all(Replica, job_id="job-elastic") if r.state == "running"]) == 4
    assert wide.one(Attempt, job_id="job-elastic").state == "running"


def test_no_gang_is_taken_below_its_least(wide, monkeypatch):
    say(monkeypatch, shrinks=(shrink("job-elastic", 1, 2, 3),))
    wide.ticker.tick()
    assert all(r.removal is None for r in wide.all(Replica, job_id="job-elastic"))


def test_a_place_is_free_only_when_the_engine_shows_that_its_replica_is_gone(wide, monkeypatch):
    say(monkeypatch, shrinks=(shrink("job-elastic", 2, 3),))
    monkeypatch.setattr(wide.control.executor, "stop", lambda *_args, **_more: None)
    wide.ticker.tick()
    say(monkeypatch)
    wide.settle()
    assert wide.state("job-urgent") == "queued"
    assert len([r for r in wide.all(Replica, job_id="job-elastic") if r.memory_bytes]) == 4


# With the planner's own preemptions


def test_a_larger_priority_takes_the_place_after_the_guaranteed_run_time(plane):
    plane.engine.script("worker", FOREVER)
    plane.submit("low", cpu=8, priority=10)
    plane.settle()
    plane.submit("urgent", cpu=8, priority=90)
    plane.advance(60)
    assert plane.state("job-low") == "running"
    report = plane.ticker.tick()
    assert report.recheck_at == plane.one(Attempt, job_id="job-low").started_at + timedelta(seconds=300)
    plane.advance(241)
    plane.advance(31)
    assert (plane.state("job-low"), plane.state("job-urgent")) == ("queued", "running")


def test_the_newest_replicas_of_an_elastic_gang_give_their_places(wide):
    wide.settle()
    wide.advance(31)
    assert wide.state("job-urgent") == "running"
    assert wide.one(Attempt, job_id="job-elastic").number == 1
    left = {r.index for r in wide.all(Replica, job_id="job-elastic") if r.state == "running"}
    assert left == {0, 1}


def test_what_is_guaranteed_is_given_back(plane):
    plane.engine.script("worker", FOREVER)
    with unit_of_work(plane.sessions) as session:
        session.add(
            Project(id="project-2", name="vision", created_at=plane.engine.now, quota={"guaranteed": {"gpus": 1}})
        )
    plane.submit("borrower", gpus=1, priority=50)
    plane.submit("other", gpus=1, priority=50)
    plane.settle()
    plane.advance(301)
    plane.submit("owner", gpus=1, priority=10)
    with unit_of_work(plane.sessions) as session:
        session.execute(update(Job).where(Job.id == "job-owner").values(project_id="project-2"))
    plane.settle()
    plane.advance(31)
    assert plane.state("job-owner") == "running"
    assert sorted([plane.state("job-borrower"), plane.state("job-other")]) == ["queued", "running"]


def test_booked_nodes_are_given_over_when_their_time_comes(plane):
    plane.engine.script("worker", FOREVER)
    now = plane.engine.now
    with unit_of_work(plane.sessions) as session:
        session.add(Project(id="project-2", name="vision", created_at=now, quota={}))
        session.flush()
        session.add(
            BookingRow(
                id="booking-1", name="demo", project_id="project-2", nodes=["node-0"], created_by="ann", created_at=now,
                begins_at=now + timedelta(hours=1), ends_at=now + timedelta(hours=2),
            )
        )  # fmt: skip
    plane.submit("tenant", cpu=2)
    plane.settle()
    assert plane.state("job-tenant") in ("queued", "running")
    plane.submit("short", cpu=2, max_run_time="10m")
    plane.settle()
    assert plane.state("job-short") == "running"
    report = plane.ticker.tick()
    assert report.recheck_at is not None
    assert report.recheck_at <= now + timedelta(hours=1)


# Usage


def test_what_a_project_has_had_is_written_once_and_fades(plane):
    plane.engine.script("worker", FOREVER)
    plane.submit("half", cpu=4)
    plane.settle()
    plane.ticker.tick()
    rows = {(row.project_id, row.user_id): row for row in plane.all(Usage)}
    assert set(rows) == {("project-1", ""), ("project-1", "user-1")}
    assert rows["project-1", ""].share == pytest.approx(0.5)
    plane.engine.advance(timedelta(days=7))
    plane.start()  # killed, and begun again: nothing is lost, nothing counts twice
    plane.ticker.tick()
    plane.want("job-half", "cancel")
    plane.settle()
    plane.advance(31)
    plane.ticker.tick()
    row = next(row for row in plane.all(Usage) if not row.user_id)
    assert row.share == 0
    assert row.value == pytest.approx(0.25, rel=0.01)


def test_a_preempted_job_keeps_its_remaining_run_time_while_it_waits(full, monkeypatch):
    # Ten seconds a step, and 60 of 100 steps left when it was last heard, about a minute before it ended.
    now_s = full.engine.now.timestamp()
    progress = {"step": 40, "steps": 100, "_pace": [[now_s - 100, 30], [now_s - 50, 35], [now_s, 40]]}
    with unit_of_work(full.sessions) as session:
        session.execute(update(Replica).where(Replica.job_id == "job-low").values(progress=progress))
    say(monkeypatch, preempts=(stop("job-low"),))
    full.ticker.tick()
    say(monkeypatch)
    full.settle()
    full.advance(31)
    seen: list[object] = []
    monkeypatch.setattr(tick, "plan_to_apply", lambda snapshot: (seen.append(snapshot), plan(snapshot))[1])
    full.submit("third", cpu=8)
    full.ticker.tick()
    low = next(job for job in seen[-1].queued if job.job_id == "job-low")
    assert low.estimate.source == "its own progress"
    ended_after_s = full.one(Attempt, job_id="job-low").ended_at.timestamp() - now_s
    assert low.estimate.likely_s == pytest.approx(600 - ended_after_s, abs=1)


# What is promised


def test_a_promised_start_stays_while_the_one_before_it_starts_and_is_as_late_as_its_end_may_be(plane):
    plane.engine.script("worker", replace(FOREVER, ends_after_term=None))
    plane.submit("first", cpu=8, max_run_time="10m")
    plane.ticker.tick()
    assert plane.one(Attempt, job_id="job-first").started_at is None
    plane.submit("second", cpu=8)
    plane.ticker.tick()
    limit = timedelta(minutes=10) + DEADLINE_SLACK + timedelta(seconds=30) + KILL_SLACK
    assert started_event(plane) == plane.engine.now + limit
    plane.settle()
    plane.advance(30)
    started_at = plane.one(Attempt, job_id="job-first").started_at
    assert started_event(plane) == started_at + limit
    # Its program heeds nothing: it is gone by the moment that was told.
    plane.advance((started_at + timedelta(minutes=10) - plane.engine.now).total_seconds())
    assert plane.state("job-second") == "queued"
    while plane.engine.now < started_at + limit:
        plane.advance(15)
    assert plane.state("job-second") == "running"


def started_event(plane) -> datetime:
    (reported,) = plane.all(WaitReason)
    return datetime.fromisoformat(reported.numbers["expected_start"])


def test_locked_rows_of_one_job_do_not_stop_other_preemptions(plane, monkeypatch):
    plane.engine.script("worker", FOREVER)
    for name in ("one", "two"):
        plane.submit(name, cpu=4)
    plane.settle()
    say(monkeypatch, preempts=(stop("job-one", None), stop("job-two", None)))
    plane.submit("news", gpus=64)  # so that the tick looks
    real = tick.preempt_for

    def take(session, claim, **seen):
        if claim.preempts[0].job_id == "job-one":
            raise RowsLocked("The database is away or busy; try again in a moment.")
        return real(session, claim, **seen)

    monkeypatch.setattr(tick, "preempt_for", take)
    assert plane.ticker.tick().preempted == 1
    assert plane.one(Attempt, job_id="job-one").stop is None
    assert plane.one(Attempt, job_id="job-two").stop["cause"] == "preempt"
