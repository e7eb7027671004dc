from __future__ import annotations

import queue
import threading
import time
from datetime import UTC, datetime, timedelta

import pytest

from core.domain.errors import ExecutorTryAgain
from core.domain.ids import AttemptId, JobId
from executors.base import Observation, Phase, ReplicaKey
from scheduler.attempt_watch import AttemptWatch
from scheduler.control.attempts.reconcile_result import ReconcileOutcome, ReconcileResult, fingerprint

ATTEMPT = AttemptId("att-1")
NOW = datetime(2026, 11, 21, 7, 0, tzinfo=UTC)


class Seen:
    """An executor of which only ``observe`` is used."""

    def __init__(self):
        self.phase = Phase.RUNNING
        self.detail = ""
        self.error = None
        self.looks = 0

    def observe(self, attempt_id):
        self.looks += 1
        if self.error:
            raise self.error
        return (Observation(ReplicaKey(JobId("job-1"), attempt_id, "worker", 0), self.phase, detail=self.detail),)


@pytest.fixture
def watched():
    seen, rung = Seen(), threading.Semaphore(0)
    watch = AttemptWatch(seen, timedelta(milliseconds=1), lambda _: rung.release(), lambda: NOW)
    watch.start()
    yield seen, rung, watch
    watch.stop()


def look(seen, **changes):
    return ReconcileResult(ReconcileOutcome.IN_SYNC, fingerprint=fingerprint(seen.observe(ATTEMPT)), **changes)


def test_a_change_rings(watched):
    seen, rung, watch = watched
    watch.note_reconciled(ATTEMPT, look(seen))
    seen.phase = Phase.FAILED
    assert rung.acquire(timeout=10)


def test_new_words_alone_wait_for_a_while_and_an_end_does_not(watched, monkeypatch):
    seen, rung, watch = watched
    monkeypatch.setattr("scheduler.attempt_watch._DETAIL_ONLY_GAP_S", 3600)
    watch.note_reconciled(ATTEMPT, look(seen))
    seen.detail = "It waits for its image."
    assert not rung.acquire(timeout=0.1)
    seen.phase = Phase.FAILED
    assert rung.acquire(timeout=30)


def test_new_words_ring_when_the_last_reconcile_is_old_enough(watched, monkeypatch):
    seen, rung, watch = watched
    monkeypatch.setattr("scheduler.attempt_watch._DETAIL_ONLY_GAP_S", 0)
    watch.note_reconciled(ATTEMPT, look(seen))
    seen.detail = "It waits for its image."
    assert rung.acquire(timeout=30)


def test_an_engine_that_is_away_rings_so_that_the_reconcile_sees_it(watched):
    seen, rung, watch = watched
    watch.note_reconciled(ATTEMPT, look(seen))
    seen.error = ExecutorTryAgain("away")
    assert rung.acquire(timeout=10)


def test_an_appointment_is_kept_without_a_change(watched):
    seen, rung, watch = watched
    watch.note_reconciled(ATTEMPT, look(seen, recheck_at=NOW - timedelta(seconds=1)))
    assert rung.acquire(timeout=10)


def test_what_is_gone_or_somebody_elses_is_not_watched(watched):
    seen, rung, watch = watched
    watch.note_reconciled(ATTEMPT, look(seen))
    watch.note_reconciled(ATTEMPT, ReconcileResult(ReconcileOutcome.GONE))
    seen.phase = Phase.FAILED
    watch.note_reconciled(AttemptId("att-2"), ReconcileResult(ReconcileOutcome.BUSY))
    looks = seen.looks
    assert not rung.acquire(timeout=0.05)
    assert seen.looks <= looks + 1


class Telling(Seen):
    """One whose engine tells what happens."""

    def __init__(self):
        super().__init__()
        self.told = queue.Queue()

    def wait_for_change(self, timeout_s):
        try:
            told = self.told.get(timeout=min(timeout_s, 0.05))
        except queue.Empty:
            return frozenset()
        if isinstance(told, Exception):
            raise told
        return frozenset({told})


@pytest.fixture
def told():
    seen, rung = Telling(), threading.Semaphore(0)
    watch = AttemptWatch(seen, timedelta(hours=1), lambda _: rung.release(), lambda: NOW)
    watch.start()
    yield seen, rung, watch
    watch.stop()


def test_what_the_engine_tells_is_looked_at_at_once_and_not_before(told):
    seen, rung, watch = told
    watch.note_reconciled(ATTEMPT, look(seen))
    looks = seen.looks
    assert not rung.acquire(timeout=0.1)
    assert seen.looks == looks
    seen.phase = Phase.FAILED
    seen.told.put(ATTEMPT)
    assert rung.acquire(timeout=0.9)


def test_a_hint_without_a_change_rings_nobody(told):
    seen, rung, watch = told
    watch.note_reconciled(ATTEMPT, look(seen))
    seen.told.put(ATTEMPT)
    seen.told.put(AttemptId("att-unknown"))
    assert not rung.acquire(timeout=0.3)
    assert seen.looks >= 2


def test_a_listener_that_fails_listens_again(told):
    seen, rung, watch = told
    watch.note_reconciled(ATTEMPT, look(seen))
    seen.told.put(RuntimeError("oops"))
    seen.phase = Phase.FAILED
    seen.told.put(ATTEMPT)
    assert rung.acquire(timeout=10)


def test_where_the_engine_tells_of_changes_its_absence_rings_nobody(told):
    seen, rung, watch = told
    watch.note_reconciled(ATTEMPT, look(seen))
    seen.error = ExecutorTryAgain("away")
    seen.told.put(ATTEMPT)
    assert not rung.acquire(timeout=0.3)
    seen.error, seen.phase = None, Phase.FAILED
    seen.told.put(ATTEMPT)
    assert rung.acquire(timeout=10)


def test_a_hint_for_what_is_noted_a_moment_later_is_not_lost(told):
    seen, rung, watch = told
    before = look(seen)
    seen.phase = Phase.FAILED
    watch.hint(ATTEMPT)
    watch.note_reconciled(ATTEMPT, before)
    assert rung.acquire(timeout=10)


def test_a_hint_that_waits_for_its_turn_survives_that_the_attempt_is_noted_anew(told):
    seen, rung, watch = told
    before = look(seen)
    watch.note_reconciled(ATTEMPT, before)
    with watch._wake:
        watch._watched[ATTEMPT].polled_s += time.monotonic() + 60.0
    watch.hint(ATTEMPT)
    seen.phase = Phase.FAILED
    watch.note_reconciled(ATTEMPT, before)
    assert rung.acquire(timeout=10)


def test_hints_for_other_processes_attempts_are_forgotten(told):
    _, _, watch = told
    with watch._wake:
        watch._hinted = {AttemptId("att-old"): time.monotonic() - 60.0}
    watch.hint(ATTEMPT)
    assert list(watch._hinted) == [ATTEMPT]
