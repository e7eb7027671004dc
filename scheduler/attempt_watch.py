"""A thread that polls live attempts through the executor and wakes up the reconciler when something has changed.

Polling costs a few file reads and no database access, so that an exit is noticed within a fraction of a second. Where
the driver pushes changes (``ReportsChanges``), a second thread receives its hints, and attempts are polled on a hint.
Nothing is decided here: without this thread the resync finds the same, later.
"""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import structlog

from core.domain.errors import ExecutorTryAgain
from core.domain.ids import AttemptId
from executors.base import Executor, ReportsChanges
from scheduler.control.attempts.reconcile_result import Fingerprint, ReconcileOutcome, ReconcileResult, fingerprint

log = structlog.get_logger(__name__)

# Polling interval while an attempt starts or ends; grows by a half with every poll that finds nothing.
_CHANGING_S: Final = 0.03
_POLL_BACKOFF: Final = 1.5
# The same where the driver pushes changes.
_CHANGING_PUSHED_S: Final = 1.0
# A hint may arrive during a reconcile, and be newer than what the reconcile has observed. A hint for an attempt that
# another process watches is dropped after this time.
_HINT_TTL_S: Final = 10.0
_LISTEN_S: Final = 1.0
# The replicas of a starting gang cause one hint each: polls of one attempt are at least so far apart.
_MIN_GAP_S: Final = 0.03
# All polling together takes at most this share of a core: 0.75 s of every minute, of the 3 s that the idle control
# plane may cost. Up to a dozen replicas the limit has no effect.
_CPU_SHARE: Final = 0.0125
# Where only the detail of a waiting replica has changed, reconciles are at least so far apart.
DETAIL_ONLY_GAP_S: Final = 1.0
# No reconcile followed a wake-up: the wake-up was lost, or every worker is busy.
_NOTIFY_AGAIN_S: Final = 1.0


@dataclass(slots=True)
class _Watched:
    fingerprint: Fingerprint
    recheck_at: datetime | None
    interval_s: float
    due_s: float
    reconciled_s: float
    polled_s: float = 0.0


class AttemptWatch:
    """Call :meth:`note_reconciled` after every reconcile; :meth:`start` begins the thread, :meth:`stop` ends it.

    Args:
        every: how often a running attempt is polled; ``None``: only at its ``recheck_at``.
        clock_s: seconds that never go back.
    """

    def __init__(
        self,
        executor: Executor,
        every: timedelta | None,
        notify: Callable[[AttemptId], None],
        clock: Callable[[], datetime],
        *,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._executor = executor
        self._every_s = every.total_seconds() if every is not None else None
        self._notify = notify
        self._clock = clock
        self._clock_s = clock_s
        self._watched: dict[AttemptId, _Watched] = {}
        self._heap: list[tuple[float, AttemptId]] = []
        self._hinted: dict[AttemptId, float] = {}  # hints that no poll has followed, oldest first
        self._cost_s = 0.001  # of one poll, smoothed
        self._wake = threading.Condition()
        self._is_stopping = False
        self._source = executor if isinstance(executor, ReportsChanges) else None
        self._threads: list[threading.Thread] = []

    def note_reconciled(self, attempt_id: AttemptId, result: ReconcileResult) -> None:
        """Take over what the last reconcile of the attempt has observed."""
        with self._wake:
            if result.outcome is ReconcileOutcome.BUSY:
                return  # the process that holds its lease watches it
            is_hinted = self._hinted.pop(attempt_id, None) is not None
            if result.outcome is ReconcileOutcome.ENDED:
                self._watched.pop(attempt_id, None)
                return
            if self._source is not None:
                changing_s = min(_CHANGING_PUSHED_S, self._steady_s())
            else:
                changing_s = _CHANGING_S if self._every_s is not None else _CHANGING_PUSHED_S
            interval_s = changing_s if result.is_changing else self._steady_s()
            now_s = self._clock_s()
            due_s = now_s + (0.0 if is_hinted else interval_s)
            if result.recheck_at is not None:
                left_s = (result.recheck_at - self._clock()).total_seconds()
                due_s = min(due_s, now_s + max(0.0, left_s))
            self._watched[attempt_id] = _Watched(result.fingerprint, result.recheck_at, interval_s, due_s, now_s)
            heapq.heappush(self._heap, (due_s, attempt_id))
            self._wake.notify()

    def hint(self, attempt_id: AttemptId) -> None:
        """The attempt may have changed: poll it now, if it is watched here."""
        with self._wake:
            now_s = self._clock_s()
            self._hinted.pop(attempt_id, None)
            self._hinted[attempt_id] = now_s
            while self._hinted[oldest := next(iter(self._hinted))] < now_s - _HINT_TTL_S:
                del self._hinted[oldest]
            watched = self._watched.get(attempt_id)
            if watched is None:
                return  # another process watches it, or its reconcile is running and will note it
            due_s = max(now_s, watched.polled_s + max(_MIN_GAP_S, self._cost_s / _CPU_SHARE))
            if due_s < watched.due_s:
                watched.due_s = due_s
                heapq.heappush(self._heap, (due_s, attempt_id))
                self._wake.notify()

    @property
    def count(self) -> int:
        """Number of attempts that are watched here."""
        return len(self._watched)

    def start(self) -> None:
        self._threads = [threading.Thread(target=self._run, name="watch", daemon=True)]
        if self._source is not None:
            self._threads.append(
                threading.Thread(target=self._listen, args=(self._source,), name="watch hints", daemon=True)
            )
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        with self._wake:
            self._is_stopping = True
            self._wake.notify()
        for thread in self._threads:
            thread.join(5.0)

    def _listen(self, source: ReportsChanges) -> None:
        while not self._is_stopping:
            try:
                for attempt_id in source.wait_for_change(_LISTEN_S):
                    self.hint(attempt_id)
            except Exception:
                log.exception("watch.failed")
                with self._wake:
                    self._wake.wait_for(lambda: self._is_stopping, _LISTEN_S)

    def _steady_s(self) -> float:
        if self._every_s is None:
            return 5.0
        return max(self._every_s, len(self._watched) * self._cost_s / _CPU_SHARE)

    def _run(self) -> None:
        while True:
            attempt_id = self._next()
            if attempt_id is None:
                return
            try:
                self._poll(attempt_id)
            except Exception:
                log.exception("watch.failed", attempt=attempt_id)

    def _next(self) -> AttemptId | None:
        """The next attempt that is due; blocks until one is. ``None``: stop."""
        with self._wake:
            while not self._is_stopping:
                while self._heap:
                    due_s, attempt_id = self._heap[0]
                    watched = self._watched.get(attempt_id)
                    if watched is not None and watched.due_s == due_s:
                        break
                    heapq.heappop(self._heap)  # gone, or rescheduled since
                if not self._heap:
                    self._wake.wait()
                elif (left_s := self._heap[0][0] - self._clock_s()) > 0:
                    self._wake.wait(left_s)
                else:
                    return heapq.heappop(self._heap)[1]
        return None

    def _poll(self, attempt_id: AttemptId) -> None:
        with self._wake:
            watched = self._watched.get(attempt_id)
            self._hinted.pop(attempt_id, None)
        if watched is None:
            return
        is_timer_due = watched.recheck_at is not None and watched.recheck_at <= self._clock()
        has_changed, is_early = False, False
        if not is_timer_due and self._every_s is not None:
            begin_s = time.perf_counter()
            try:
                observed = fingerprint(self._executor.observe(attempt_id))
                has_changed = observed != watched.fingerprint
                # The replicas of a starting gang report one by one, each with several details.
                is_early = (
                    has_changed
                    and _phases(observed) == _phases(watched.fingerprint)
                    and self._clock_s() - watched.reconciled_s < DETAIL_ONLY_GAP_S
                )
            except ExecutorTryAgain:
                # The reconcile meets the same error and logs it. Where the driver pushes changes, waiting misses
                # nothing, and a thousand reconciles would not bring the engine back.
                has_changed = self._source is None
            except Exception:  # noqa: BLE001 - a bug, which the reconcile meets, too, and logs
                has_changed = True
            self._cost_s += 0.1 * (time.perf_counter() - begin_s - self._cost_s)
        has_changed = has_changed and not is_early
        if is_timer_due or has_changed:
            self._notify(attempt_id)
        with self._wake:
            if self._watched.get(attempt_id) is not watched:
                return  # rescheduled during the poll
            watched.polled_s = self._clock_s()
            if is_timer_due or has_changed:
                watched.interval_s = _NOTIFY_AGAIN_S
            elif is_early:
                watched.interval_s = min(DETAIL_ONLY_GAP_S, watched.interval_s * _POLL_BACKOFF)
            else:
                watched.interval_s = min(self._steady_s(), watched.interval_s * _POLL_BACKOFF)
            watched.due_s = self._clock_s() + watched.interval_s
            if watched.recheck_at is not None and not is_timer_due:
                left_s = (watched.recheck_at - self._clock()).total_seconds()
                watched.due_s = min(watched.due_s, self._clock_s() + max(0.0, left_s))
            heapq.heappush(self._heap, (watched.due_s, attempt_id))


def _phases(observed: Fingerprint) -> frozenset[tuple[str, int, int, str]]:
    return frozenset(entry[:4] for entry in observed)
