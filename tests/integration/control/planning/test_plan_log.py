"""Records of what the planner saw and said, over a real database."""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import select

from core.db.engine import unit_of_work
from core.db.tables import Node, PlanRecord
from executors.fake import Script
from scheduler.control.planning import plan_log, tick
from scheduler.control.planning.plan_log import entry_at, prune
from scheduler.planning import plan
from tests.integration.control.conftest import Plane


@pytest.fixture
def described(plane: Plane, monkeypatch: pytest.MonkeyPatch):
    """What the planner was asked and answered, tick by tick."""
    requested = []

    def planned(snapshot):
        made = plan(snapshot)
        requested.append((snapshot, made))
        return made

    monkeypatch.setattr(tick, "plan_to_apply", planned)
    plane.engine.script("worker", Script(run_for=timedelta(hours=9)))
    return requested


def unordered(snapshot):
    names = ("nodes", "queued", "running", "growing", "accounts", "bookings")
    return snapshot.now, snapshot.policy, *({repr(one) for one in getattr(snapshot, name)} for name in names)


def live_through(plane: Plane) -> None:
    for number in range(4):
        plane.submit(f"job{number}", cpu=3, priority=10 * number)
        plane.advance(5)
    plane.want("job-job3", "cancel")
    plane.settle()
    plane.advance(40)
    plane.submit("never", gpus=64)
    plane.advance(1)


@pytest.mark.parametrize("longest", [1, 3, 50])
def test_every_tick_with_a_change_is_replayed_exactly(plane, described, monkeypatch, longest):
    monkeypatch.setattr(plan_log, "LONGEST_CHAIN", longest)
    live_through(plane)
    written = plane.all(PlanRecord)
    assert len(written) > 5
    by_time = {}
    for snapshot, made in described:
        by_time.setdefault(snapshot.now, []).append((unordered(snapshot), made))
    for record in written:
        with unit_of_work(plane.sessions) as session:
            again = entry_at(session, record.at)
        assert (unordered(again.snapshot), again.plan) in by_time[again.at]
        assert plan(again.snapshot) == again.plan


def test_between_two_records_the_earlier_one_counts_and_before_the_first_none(plane, described):
    live_through(plane)
    first = min(record.at for record in plane.all(PlanRecord))
    with unit_of_work(plane.sessions) as session:
        assert entry_at(session, first - timedelta(seconds=1)) is None
        assert entry_at(session, first + timedelta(microseconds=1)).at == first


def test_while_nothing_but_time_changes_nothing_is_written(plane, described):
    plane.submit("one", cpu=8)
    plane.settle()
    plane.submit("two", cpu=8)
    plane.settle()
    plane.ticker.tick()
    before, requested = len(plane.all(PlanRecord)), len(described)
    for _ in range(5):
        plane.engine.advance(timedelta(seconds=11))
        plane.ticker.tick()
    assert len(described) > requested
    assert len(plane.all(PlanRecord)) == before


def test_a_new_process_begins_a_chain_of_its_own(plane, described):
    plane.submit("one", cpu=8)
    plane.settle()
    plane.start()
    plane.submit("two", cpu=8)
    plane.settle()
    bases = {record.base_id for record in plane.all(PlanRecord)}
    assert len(bases) == 2


def test_a_change_of_a_node_is_logged(plane, described):
    plane.submit("one", gpus=64)
    plane.settle()
    before = len(plane.all(PlanRecord))
    with unit_of_work(plane.sessions) as session:
        session.scalars(select(Node)).one().is_cordoned = True
    plane.settle()
    assert len(plane.all(PlanRecord)) > before


@pytest.mark.parametrize(("keep", "max_bytes"), [(timedelta(seconds=1), 10**9), (timedelta(days=1), 1)])
def test_old_records_go_by_age_and_by_size_and_never_the_newest(plane, described, monkeypatch, keep, max_bytes):
    monkeypatch.setattr(plan_log, "LONGEST_CHAIN", 2)
    live_through(plane)
    now = plane.engine.now
    newest = max(plane.all(PlanRecord), key=lambda one: one.at)
    with unit_of_work(plane.sessions) as session:
        assert prune(session, now=now, keep=timedelta(days=1), max_bytes=10**9) == 0
        assert prune(session, now=now, keep=keep, max_bytes=max_bytes) > 0
    assert {record.base_id for record in plane.all(PlanRecord)} == {newest.base_id}
    with unit_of_work(plane.sessions) as session:
        assert entry_at(session, now).at == newest.at
