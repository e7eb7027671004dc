"""What a job is told when its promised start is not met."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from core.domain.ids import JobId, NodeId
from core.domain.sharing.policy import Policy, QueueOrder
from scheduler.control.planning.promises import Delay, PlannedState, Promise, check_promise
from scheduler.planning import Booking, Estimate, QueuedGang, Snapshot, plan
from scheduler.planning.forecast.start_times import StartCode, StartForecast
from tests.unit.planning.test_reasons import NOW, gang, job, node, runs

LATER = NOW + timedelta(minutes=10)


def minutes(count: float) -> datetime:
    return NOW + timedelta(minutes=count)


def expected(early: float, likely: float, late: float) -> StartForecast:
    return StartForecast(JobId("me"), 1, StartCode.EXPECTED, "", minutes(early), minutes(likely), minutes(late))


def state(snapshot: Snapshot) -> PlannedState:
    return PlannedState(snapshot, plan(snapshot))


RUNNING = replace(runs("long", 8, "a", None), estimate=Estimate(1200, 600, 2400), started_at=NOW)
BEFORE = Snapshot(
    NOW,
    (node("a", free=0), node("b", free=0, labels={"disk": "ssd"})),
    (job("me", gang(1, 8)),),
    (RUNNING,),
    policy=Policy(order=QueueOrder.ATTAINED_SERVICE, time_slice_s=None),
)
PROMISE = Promise(NOW, minutes(15), minutes(20), minutes(30))


def delay_in(after: Snapshot, start: StartForecast, promise: Promise = PROMISE) -> Delay | None:
    return check_promise(promise, start, state(replace(after, now=LATER)), state(BEFORE))[1]


def urgent(name: str = "urgent", **more) -> QueuedGang:
    return replace(job(name, gang(1, 8)), priority=90, **more)


@pytest.mark.parametrize(
    ("after", "cause", "because"),
    [
        (
            replace(BEFORE, queued=(*BEFORE.queued, urgent())),
            "priority",
            "job urgent of priority 90 came before it in the queue",
        ),
        (
            replace(BEFORE, queued=(*BEFORE.queued, urgent(project="secret"), urgent("u2", project="secret"))),
            "priority",
            "a job of another project and 1 more of priority 90 came before it in the queue",
        ),
        (
            replace(BEFORE, queued=(*BEFORE.queued, job("old", gang(1, 8), age=9))),
            "queue",
            "job old came before it in the queue",
        ),
        (replace(BEFORE, policy=Policy(is_fair=False)), "policy", "the planner's policy was changed"),
        (
            replace(
                BEFORE, nodes=(replace(BEFORE.nodes[0], is_schedulable=False, why_not="is not ready"), BEFORE.nodes[1])
            ),
            "node",
            "node a is not ready",
        ),
        (replace(BEFORE, nodes=BEFORE.nodes[1:]), "node", "node a has left the cluster"),
        (
            replace(BEFORE, running=(replace(RUNNING, estimate=Estimate(1500, 600, 2400)),)),
            "running",
            "job long runs longer than was expected",
        ),
        (
            replace(BEFORE, bookings=(Booking("k", "course", "x", frozenset({NodeId("a")}), NOW, minutes(99)),)),
            "reservation",
            "nodes were reserved for a project",
        ),
        (
            BEFORE,
            "running",
            "job long runs longer than was expected",
        ),
        (
            replace(BEFORE, running=(replace(RUNNING, estimate=Estimate(600, 60, 1400)),)),
            "forecast",
            "jobs that run or are before it in the queue are expected to take longer now",
        ),
    ],
    ids=[
        "priority",
        "other-project",
        "queue",
        "policy",
        "not-ready",
        "removed",
        "longer",
        "booked",
        "still",
        "forecast",
    ],
)
def test_the_event_names_what_has_changed(after: Snapshot, cause: str, because: str) -> None:
    delay = delay_in(after, expected(40, 60, 80))
    assert delay is not None
    assert delay.cause == cause
    assert delay.sentence == (
        f"Expected start moved from 12:20 (12:15–12:30) UTC to 13:00 (12:40–13:20) UTC, because {because}."
    )


def test_a_start_inside_its_interval_is_no_event_and_a_closer_one_is_the_new_promise() -> None:
    assert delay_in(BEFORE, expected(20, 30, 50)) is None
    assert delay_in(BEFORE, expected(20, 32, 50)) is None  # a tenth of the promised wait
    assert delay_in(BEFORE, expected(20, 34, 50)) is not None
    planned = state(replace(BEFORE, now=LATER))
    wider, _ = check_promise(PROMISE, expected(10, 20, 50), planned, None)
    assert wider.late == PROMISE.late
    closer, _ = check_promise(PROMISE, expected(10, 15, 20), planned, None)
    assert closer.late == minutes(20)
    first, none = check_promise(None, expected(10, 15, 20), planned, None)
    assert (first.late, none) == (minutes(20), None)
    assert Promise.from_json(first.to_json()) == first


def test_a_job_gets_an_event_at_most_every_five_minutes() -> None:
    recent = replace(PROMISE, event_at=LATER - timedelta(minutes=4))
    assert delay_in(BEFORE, expected(40, 60, 80), recent) is None
    unknown = StartForecast(JobId("me"), 1, StartCode.NOT_KNOWN, "")
    delay = delay_in(BEFORE, unknown, replace(recent, event_at=LATER - timedelta(minutes=6)))
    assert delay is not None
    assert "to a time that is not known, because" in delay.sentence
    restarted = check_promise(PROMISE, unknown, state(replace(BEFORE, now=LATER)), None)[1]
    assert restarted is not None
    assert restarted.cause == "unknown"


def test_released_nodes_are_named_with_the_job_that_has_them() -> None:
    alone = replace(BEFORE, nodes=BEFORE.nodes[:1])
    before = state(alone)
    assert before.reserved_nodes(JobId("me")) == ("a",)
    promise, none = check_promise(None, expected(15, 20, 30), before, None)
    assert (promise.nodes, none) == (("a",), None)
    other = replace(runs("quick", 8, "a", None), started_at=NOW, is_preemptible=False)
    ahead = state(replace(alone, now=LATER, queued=(*alone.queued, urgent()), running=(other,)))
    _, delay = check_promise(promise, expected(15, 20, 30), ahead, before)
    assert delay is not None
    assert delay.sentence == (
        "What becomes free on a is not kept for this job any more (expected start: 12:20 (12:15–12:30) UTC), "
        "because job urgent of priority 90 came before it in the queue."
    )
    overtaken = state(replace(alone, now=LATER, running=(other,)))
    _, started = check_promise(promise, expected(40, 60, 80), overtaken, before)
    assert started is not None
    assert started.cause == "started"
    assert started.sentence.endswith("because job quick was started on a.")
