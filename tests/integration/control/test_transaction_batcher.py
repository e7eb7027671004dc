"""Many looks side by side: what fails or hangs for one of them is none of the others' business."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import update

from core.db.engine import unit_of_work
from core.db.tables import Attempt, Lease
from core.domain.errors import RowsLocked
from core.domain.ids import AttemptId
from executors.fake import Script
from scheduler.control.attempts.reconcile_result import ReconcileOutcome
from scheduler.control.attempts.reconciler import Reconciler
from scheduler.control.attempts.storage import transaction_batcher


@pytest.fixture
def placed(plane):
    """Three jobs that were given their places: their attempts, in order."""
    plane.engine.script("worker", Script(run_for=None))
    jobs = [plane.submit(f"j{number}") for number in range(3)]
    plane.ticker.tick()
    return [AttemptId(plane.one(Attempt, job_id=job).id) for job in jobs]


def states(plane):
    return [plane.state(f"job-j{number}") for number in range(3)]


def until(holds):
    end = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.005)


class Hanging:
    """Looks at these attempts in a thread, where the engine does not answer about ``hung`` until it is told to."""

    def __init__(self, plane, attempts, hung, monkeypatch, lease_ttl=timedelta(seconds=15)):
        monkeypatch.setattr(transaction_batcher, "SLOW_S", 0.02)
        control = replace(plane.control, create_at_once=2, lease_ttl=lease_ttl)
        self.hangs, self.answers, self.reported = threading.Event(), threading.Event(), {}
        self.reconciler = Reconciler(control)
        self.hung, self._observe = hung, control.executor.observe
        monkeypatch.setattr(control.executor, "observe", self.observe)
        self._attempts = attempts
        self._thread = threading.Thread(target=self._look, daemon=True)

    def observe(self, attempt_id, **how):
        if attempt_id in self.hung and threading.current_thread().name.startswith("reconcile"):
            self.hangs.set()
            assert self.answers.wait(30)
        return self._observe(attempt_id, **how)

    def _look(self):
        self.reconciler.reconcile_all(self._attempts, self.reported.__setitem__)

    def __enter__(self):
        self._thread.start()
        assert self.hangs.wait(30)
        until(lambda: len(self.reported) == len(self._attempts) - len(self.hung))
        return self

    def __exit__(self, *_):
        self.end()

    def end(self):
        self.answers.set()
        self._thread.join(30)
        assert not self._thread.is_alive()


def test_an_attempt_with_unreadable_rows_fails_alone(plane, placed):
    newer = {"cause": "tomorrow", "sentence": "x", "at": "2026-01-01T00:00:00+00:00"}
    with unit_of_work(plane.sessions) as session:
        session.execute(update(Attempt).where(Attempt.id == placed[1]).values(stop=newer))
    looks = plane.reconciler.reconcile_all(placed)
    assert isinstance(looks[placed[1]], ValueError)
    assert looks[placed[0]].outcome is looks[placed[2]].outcome is ReconcileOutcome.IN_SYNC
    assert states(plane) == ["running", "starting", "running"]


def test_other_passes_go_on_without_a_hanging_one_until_it_is_answered(plane, placed, monkeypatch):
    with Hanging(plane, placed, {placed[1]}, monkeypatch) as hanging:
        assert states(plane) == ["running", "starting", "running"]
        assert {look.outcome for look in hanging.reported.values()} == {ReconcileOutcome.IN_SYNC}
        again = hanging.reconciler.reconcile_all(placed)
        assert [again[name].outcome for name in placed] == [
            ReconcileOutcome.IN_SYNC,
            ReconcileOutcome.BUSY,
            ReconcileOutcome.IN_SYNC,
        ]
        hanging.end()
        assert hanging.reported[placed[1]].outcome is ReconcileOutcome.IN_SYNC
    assert states(plane) == ["running"] * 3


def test_a_few_that_hang_leave_a_thread_to_the_next(plane, placed, monkeypatch):
    """Two are looked at at once, and two hang."""
    with Hanging(plane, placed, set(placed[:2]), monkeypatch) as hanging:
        assert set(hanging.reported) == {placed[2]}
    assert states(plane) == ["running"] * 3


def test_leases_are_renewed_while_a_look_is_slow(plane, placed, monkeypatch):
    with Hanging(plane, placed, {placed[1]}, monkeypatch):
        plane.engine.advance(timedelta(seconds=6))
        until(
            lambda: plane.one(Lease, name=f"attempt:{placed[1]}").expires_at == plane.engine.now + timedelta(seconds=15)
        )


def test_a_pass_stuck_for_longer_than_a_lease_loses_it_and_writes_nothing(plane, placed, monkeypatch):
    with Hanging(plane, placed, {placed[1]}, monkeypatch, lease_ttl=timedelta(seconds=0.2)) as hanging:
        time.sleep(0.3)
        plane.engine.advance(timedelta(seconds=1))
        time.sleep(0.1)  # it could be renewed now
        other = Reconciler(replace(plane.control, holder="other"))
        assert other.reconcile(placed[1]).outcome is ReconcileOutcome.IN_SYNC
        with unit_of_work(plane.sessions) as session:  # it is at it again in this moment
            session.execute(
                update(Lease)
                .where(Lease.name == f"attempt:{placed[1]}")
                .values(holder="other", token=Lease.token + 1, expires_at=plane.engine.now + timedelta(seconds=60))
            )
        story = plane.story("job-j1")
        hanging.end()
        assert hanging.reported[placed[1]].outcome is ReconcileOutcome.BUSY
        assert plane.story("job-j1") == story


def test_locked_rows_of_one_attempt_do_not_stop_writes_of_others(plane, placed, monkeypatch):
    real = transaction_batcher.flush

    def flush(session, all_writes):
        for one in all_writes:
            if any((line.row or {}).get("row_id") == placed[1] for line in one.lines):
                raise RowsLocked("The database is away or busy; try again in a moment.")
        real(session, all_writes)

    monkeypatch.setattr(transaction_batcher, "flush", flush)
    looks = plane.reconciler.reconcile_all(placed)
    assert isinstance(looks[placed[1]], RowsLocked)
    assert looks[placed[0]].outcome is looks[placed[2]].outcome is ReconcileOutcome.IN_SYNC


def test_a_failing_callback_does_not_affect_other_attempts(plane, placed):
    reported = []

    def tell(attempt_id, _outcome):
        reported.append(attempt_id)
        raise ZeroDivisionError

    assert len(plane.reconciler.reconcile_all(placed, tell)) == 3
    assert sorted(reported) == sorted(placed)
    assert all(look.outcome is ReconcileOutcome.IN_SYNC for look in plane.reconciler.reconcile_all(placed).values())
