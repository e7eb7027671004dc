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
    seen, sent = Seen(), threading.Semaphore(0)
    watch = AttemptWatch(seen, timedelta(milliseconds=1), lambda _: sent.release(), lambda: NOW)
    watch.start()
    yield seen, sent, watch
    watch.stop()


def look(seen, **changes):
    return ReconcileResult(ReconcileOutcome.IN_SYNC, fingerprint=fingerprint(seen.observe(ATTEMPT)), **changes)


def test_a_change_sends_a_wakeup(watched):
    seen, sent, watch = watched
    watch.note_reconciled(ATTEMPT, look(seen))
    seen.phase = Phase.FAILED
    assert sent.acquire(timeout=10)


def test_a_new_detail_alone_waits_for_a_while_and_an_end_does_not(watched, monkeypatch):
    seen, sent, watch = watched
    monkeypatch.setattr("scheduler.attempt_watch.DETAIL_ONLY_GAP_S", 3600)
    watch.note_reconciled(ATTEMPT, look(seen))
    seen.detail = "It waits for its image."
    assert not sent.acquire(timeout=0.1)
    seen.phase = Phase.FAILED
    assert sent.acquire(timeout=30)


def test_a_new_detail_sends_a_wakeup_when_the_last_reconcile_is_old_enough(watched, monkeypatch):
    seen, sent, watch = watched
    monkeypatch.setattr("scheduler.attempt_watch.DETAIL_ONLY_GAP_S", 0)
    watch.note_reconciled(ATTEMPT, look(seen))
    seen.detail = "It waits for its image."
    assert sent.acquire(timeout=30)


def test_an_engine_that_is_away_sends_a_wakeup_for_the_reconcile(watched):
    seen, sent, watch = watched
    watch.note_reconciled(ATTEMPT, look(seen))
    seen.error = ExecutorTryAgain("away")
    assert sent.acquire(timeout=10)


def test_a_recheck_time_sends_a_wakeup_without_a_change(watched):
    seen, sent, watch = watched
    watch.note_reconciled(ATTEMPT, look(seen, recheck_at=NOW - timedelta(seconds=1)))
    assert sent.acquire(timeout=10)


def test_gone_or_busy_attempts_are_not_watched(watched):
    seen, sent, watch = watched
    watch.note_reconciled(ATTEMPT, look(seen))
    watch.note_reconciled(ATTEMPT, ReconcileResult(ReconcileOutcome.ENDED))
    seen.phase = Phase.FAILED
    watch.note_reconciled(AttemptId("att-2"), ReconcileResult(ReconcileOutcome.BUSY))
    looks = seen.looks
    assert not sent.acquire(timeout=0.05)
    assert seen.looks <= looks + 1


class Telling(Seen):
    """One whose engine tells what happens."""

    def __init__(self):
        super().__init__()
        self.message = queue.Queue()

    def wait_for_change(self, timeout_s):
        try:
            message = self.message.get(timeout=min(timeout_s, 0.05))
        except queue.Empty:
            return frozenset()
        if isinstance(message, Exception):
            raise message
        return frozenset({message})


@pytest.fixture
def message():
    seen, sent = Telling(), threading.Semaphore(0)
    watch = AttemptWatch(seen, timedelta(hours=1), lambda _: sent.release(), lambda: NOW)
    watch.start()
    yield seen, sent, watch
    watch.stop()


def test_a_pushed_change_is_polled_at_once_and_not_before(message):
    seen, sent, watch = message
    watch.note_reconciled(ATTEMPT, look(seen))
    looks = seen.looks
    assert not sent.acquire(timeout=0.1)
    assert seen.looks == looks
    seen.phase = Phase.FAILED
    seen.message.put(ATTEMPT)
    assert sent.acquire(timeout=0.9)


def test_a_hint_without_a_change_sends_no_wakeup(message):
    seen, sent, watch = message
    watch.note_reconciled(ATTEMPT, look(seen))
    seen.message.put(ATTEMPT)
    seen.message.put(AttemptId("att-unknown"))
    assert not sent.acquire(timeout=0.3)
    assert seen.looks >= 2


def test_a_listener_that_fails_listens_again(message):
    seen, sent, watch = message
    watch.note_reconciled(ATTEMPT, look(seen))
    seen.message.put(RuntimeError("oops"))
    seen.phase = Phase.FAILED
    seen.message.put(ATTEMPT)
    assert sent.acquire(timeout=10)


def test_where_changes_are_pushed_an_absent_engine_sends_no_wakeup(message):
    seen, sent, watch = message
    watch.note_reconciled(ATTEMPT, look(seen))
    seen.error = ExecutorTryAgain("away")
    seen.message.put(ATTEMPT)
    assert not sent.acquire(timeout=0.3)
    seen.error, seen.phase = None, Phase.FAILED
    seen.message.put(ATTEMPT)
    assert sent.acquire(timeout=10)


def test_a_hint_during_a_reconcile_is_not_lost(message):
    seen, sent, watch = message
    before = look(seen)
    seen.phase = Phase.FAILED
    watch.hint(ATTEMPT)
    watch.note_reconciled(ATTEMPT, before)
    assert sent.acquire(timeout=10)


def test_a_pending_hint_survives_another_reconcile_of_the_attempt(message):
    seen, sent, watch = message
    before = look(seen)
    watch.note_reconciled(ATTEMPT, before)
    with watch._wake:
        watch._watched[ATTEMPT].polled_s += time.monotonic() + 60.0
    watch.hint(ATTEMPT)
    seen.phase = Phase.FAILED
    watch.note_reconciled(ATTEMPT, before)
    assert sent.acquire(timeout=10)


def test_hints_for_other_processes_attempts_are_forgotten():
    now_s = 0.0
    watch = AttemptWatch(Telling(), timedelta(hours=1), lambda _: None, lambda: NOW, clock_s=lambda: now_s)
    watch.hint(AttemptId("att-old"))
    now_s = 60.0
    watch.hint(ATTEMPT)
    assert list(watch._hinted) == [ATTEMPT]
