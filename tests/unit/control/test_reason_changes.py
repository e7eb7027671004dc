"""Which reasons a tick writes: of a shape, of one user's jobs of it, and of single jobs."""

from __future__ import annotations

from datetime import UTC, datetime

from core.domain.ids import JobId
from core.domain.sharing.resources import Gang, GangRole, ResourceRequest
from scheduler.control.planning.snapshot import PlannerInputs
from scheduler.control.planning.tick import changed_reasons
from scheduler.planning.model import Plan, QueuedGang, Reason, Snapshot, WaitReasonCode

NOW = datetime(2026, 1, 1, tzinfo=UTC)
GANG = Gang((GangRole("worker", 1, ResourceRequest(1000, 1)),))
ROOM, RACK = Reason(WaitReasonCode.NO_ROOM, "no room"), Reason(WaitReasonCode.TOPOLOGY, "no room in one rack")
QUOTA = Reason(WaitReasonCode.QUOTA, "project p has all it may", {"project": "p"})


def loaded(users: dict[str, str], written=None, own=None, preempted=None) -> PlannerInputs:
    """``users``: who has which job; all are of one shape."""
    queued = tuple(QueuedGang(JobId(job), job, "p", user, 0, NOW, GANG, "shape") for job, user in users.items())
    keys = {JobId(job): f"shape/p/{user}" for job, user in users.items()}
    return PlannerInputs(
        Snapshot(NOW, (), queued), {}, written or {}, own or {}, None, {}, preempted or {}, reason_keys=keys
    )


def waits(**reasons: Reason) -> Plan:
    return Plan(waits={JobId(job): reason for job, reason in reasons.items()})


USERS = {"a": "ann", "b": "ann", "c": "bob", "d": "bob"}


def test_equal_reasons_are_one_row():
    news = changed_reasons(loaded(USERS), waits(a=ROOM, b=ROOM, c=ROOM, d=ROOM))
    assert (dict(news.shapes), news.obsolete, dict(news.own)) == ({"shape": ROOM}, (), {})


def test_one_users_other_reason_is_one_row_more():
    news = changed_reasons(loaded(USERS), waits(a=ROOM, b=ROOM, c=QUOTA, d=QUOTA))
    assert dict(news.shapes) == {"shape": ROOM, "shape/p/bob": QUOTA}
    assert not news.own


def test_what_is_written_stays_while_it_is_anybodys():
    written = {"shape": RACK, "shape/p/ann": ROOM}
    news = changed_reasons(loaded(USERS, written), waits(a=ROOM, b=ROOM, c=RACK, d=RACK))
    assert (dict(news.shapes), news.obsolete) == ({}, ())
    news = changed_reasons(loaded(USERS, written), waits(a=ROOM, b=ROOM, c=ROOM, d=ROOM))
    assert (dict(news.shapes), news.obsolete) == ({"shape": ROOM}, ("shape/p/ann",))


def test_a_reason_with_a_project_or_user_is_never_shown_to_others():
    news = changed_reasons(loaded({"a": "ann"}), waits(a=QUOTA))
    assert dict(news.shapes) == {"shape/p/ann": QUOTA}
    both = changed_reasons(loaded(USERS), waits(a=QUOTA, b=QUOTA, c=ROOM, d=ROOM))
    assert dict(both.shapes) == {"shape": ROOM, "shape/p/ann": QUOTA}
    share = Reason(WaitReasonCode.RESERVED, "project p has its share", {"project": "p", "before": "x"})
    before = loaded({"a": "ann"}, {"shape": share, "shape/p/ann": ROOM})
    news = changed_reasons(before, waits(a=share))
    assert (dict(news.shapes), news.obsolete) == ({"shape/p/ann": share}, ("shape",))


def test_a_job_that_differs_from_its_users_others_or_has_a_story_has_its_own():
    reported = loaded(USERS, preempted={JobId("a"): "It was stopped for another one."})
    news = changed_reasons(reported, waits(a=ROOM, b=ROOM, c=QUOTA, d=ROOM))
    assert set(news.own) == {"a", "d"}
    story = news.own[JobId("a")]
    assert story is not None
    assert story.sentence == "no room. It was stopped for another one."
    again = loaded(USERS, own={JobId("a"): ROOM})
    assert dict(changed_reasons(again, waits(a=ROOM, b=ROOM)).own) == {"a": None}
