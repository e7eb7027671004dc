"""A thread that watches live attempts through the executor and rings when something has changed.

A look costs a few file reads and no database, so that an exit is seen within a fraction of a second. Where the driver
tells of changes itself (``TellsChanges``) a second thread listens to it, and looks are made when there is something to
see. Nothing is decided here: without it beat finds the same, later.
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
from executors.base import Executor, TellsChanges
from scheduler.control.attempts.reconcile_result import Fingerprint, Look, Verdict, fingerprint

log = structlog.get_logger(__name__)

# While an attempt starts or ends; grows by a half with every look that finds nothing.
_HOT_S: Final = 0.03
_HOT_GROWTH: Final = 1.5
# The same where the driver tells of changes.
_HOT_TOLD_S: Final = 1.0
# A hint may come while a reconcile is at the attempt, and be newer than what that has seen. One for an attempt that
# another process watches is forgotten after a while.
_HINT_KEPT_S: Final = 10.0
_LISTEN_S: Final = 1.0
# A gang that starts is told of replica by replica: looks at one attempt are at least so far apart.
_LEAST_GAP_S: Final = 0.03
# All looks together take at most this share of a core: 0.75 s of every minute, of the 3 s that the control plane may
# cost while nothing happens. Up to a dozen replicas that is no limit.
_SHARE: Final = 0.0125
# Where only the words on what a replica waits for have changed, a reconcile may be this young.
_WORDS_APART_S: Final = 1.0
# Rung and no answer: the ring was lost, or every worker is busy.
_RING_AGAIN_S: Final = 1.0


@dataclass(slots=True)
class _Watched:
    seen: Fingerprint
    next_look: datetime | None
    interval_s: float
    due_s: float
    noted_s: float
    looked_s: float = 0.0


class Watch:
    """Call :meth:`note` after every reconcile; :meth:`start` begins the thread, :meth:`stop` ends it.

    Args:
        every: how often an attempt that runs is looked at; ``None`` only keeps its appointments (``next_look``).
    """

    def __init__(
        self,
        executor: Executor,
        every: timedelta | None,
        ring: Callable[[AttemptId], None],
        clock: Callable[[], datetime],
    ) -> None:
        self._executor = executor
        self._every_s = every.total_seconds() if every is not None else None
        self._ring = ring
        self._clock = clock
        self._watched: dict[AttemptId, _Watched] = {}
        self._heap: list[tuple[float, AttemptId]] = []
        self._hinted: dict[AttemptId, float] = {}  # hints that no look has followed, oldest first
        self._cost_s = 0.001  # of one look, smoothed
        self._wake = threading.Condition()
        self._is_stopping = False
        self._source = executor if isinstance(executor, TellsChanges) else None
        self._threads: list[threading.Thread] = []

    def note(self, attempt_id: AttemptId, look: Look) -> None:
        """What the last reconcile saw of the attempt."""
        with self._wake:
            if look.verdict is Verdict.BUSY:
                return  # whoever holds it watches it
            is_hinted = self._hinted.pop(attempt_id, None) is not None
            if look.verdict is Verdict.GONE:
                self._watched.pop(attempt_id, None)
                return
            if self._source is not None:
                hot_s = min(_HOT_TOLD_S, self._steady_s())
            else:
                hot_s = _HOT_S if self._every_s is not None else _HOT_TOLD_S
            interval_s = hot_s if look.is_hot else self._steady_s()
            now_s = time.monotonic()
            due_s = now_s + (0.0 if is_hinted else interval_s)
            if look.next_look is not None:
                left_s = (look.next_look - self._clock()).total_seconds()
                due_s = min(due_s, now_s + max(0.0, left_s))
            self._watched[attempt_id] = _Watched(look.seen, look.next_look, interval_s, due_s, now_s)
            heapq.heappush(self._heap, (due_s, attempt_id))
            self._wake.notify()

    def hint(self, attempt_id: AttemptId) -> None:
        """Something may have changed: look at it now, if it is watched here."""
        with self._wake:
            now_s = time.monotonic()
            self._hinted.pop(attempt_id, None)
            self._hinted[attempt_id] = now_s
            while self._hinted[oldest := next(iter(self._hinted))] < now_s - _HINT_KEPT_S:
                del self._hinted[oldest]
            watched = self._watched.get(attempt_id)
            if watched is None:
                return  # another process watches it, or the reconcile that is at it will note it
            due_s = max(now_s, watched.looked_s + max(_LEAST_GAP_S, self._cost_s / _SHARE))
            if due_s < watched.due_s:
                watched.due_s = due_s
                heapq.heappush(self._heap, (due_s, attempt_id))
                self._wake.notify()

    @property
    def count(self) -> int:
        """Attempts that are watched here."""
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

    def _listen(self, source: TellsChanges) -> None:
        while not self._is_stopping:
            try:
                for attempt_id in source.wait_for_change(_LISTEN_S):
                    self.hint(attempt_id)
            except Exception:
                log.exception("watch.deaf")
                with self._wake:
                    self._wake.wait_for(lambda: self._is_stopping, _LISTEN_S)

    def _steady_s(self) -> float:
        if self._every_s is None:
            return 5.0
        return max(self._every_s, len(self._watched) * self._cost_s / _SHARE)

    def _run(self) -> None:
        while True:
            attempt_id = self._next()
            if attempt_id is None:
                return
            try:
                self._look(attempt_id)
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
                    heapq.heappop(self._heap)  # gone, or noted anew since
                if not self._heap:
                    self._wake.wait()
                elif (left_s := self._heap[0][0] - time.monotonic()) > 0:
                    self._wake.wait(left_s)
                else:
                    return heapq.heappop(self._heap)[1]
        return None

    def _look(self, attempt_id: AttemptId) -> None:
        with self._wake:
            watched = self._watched.get(attempt_id)
            self._hinted.pop(attempt_id, None)
        if watched is None:
            return
        is_appointment = watched.next_look is not None and watched.next_look <= self._clock()
        has_changed, is_early = False, False
        if not is_appointment and self._every_s is not None:
            begin_s = time.perf_counter()
            try:
                seen = fingerprint(self._executor.observe(attempt_id))
                has_changed = seen != watched.seen
                # A gang that starts is told of replica by replica, each with several words on what it waits for.
                is_early = (
                    has_changed
                    and _phases(seen) == _phases(watched.seen)
                    and time.monotonic() - watched.noted_s < _WORDS_APART_S
                )
            except ExecutorTryAgain:
                # The reconcile meets the same error and tells it; where the driver tells of changes nothing is missed
                # by waiting, and a thousand reconciles would not bring the engine back.
                has_changed = self._source is None
            except Exception:  # noqa: BLE001 - a bug, which the reconcile meets, too, and logs
                has_changed = True
            self._cost_s += 0.1 * (time.perf_counter() - begin_s - self._cost_s)
        has_changed = has_changed and not is_early
        if is_appointment or has_changed:
            self._ring(attempt_id)
        with self._wake:
            if self._watched.get(attempt_id) is not watched:
                return  # noted anew while we looked
            watched.looked_s = time.monotonic()
            if is_appointment or has_changed:
                watched.interval_s = _RING_AGAIN_S
            elif is_early:
                watched.interval_s = min(_WORDS_APART_S, watched.interval_s * _HOT_GROWTH)
            else:
                watched.interval_s = min(self._steady_s(), watched.interval_s * _HOT_GROWTH)
            watched.due_s = time.monotonic() + watched.interval_s
            if watched.next_look is not None and not is_appointment:
                left_s = (watched.next_look - self._clock()).total_seconds()
                watched.due_s = min(watched.due_s, time.monotonic() + max(0.0, left_s))
            heapq.heappush(self._heap, (watched.due_s, attempt_id))


def _phases(seen: Fingerprint) -> frozenset[tuple[str, int, int, str]]:
    return frozenset(one[:4] for one in seen)
