"""The beat: sends a message for each periodic task, so that a lost wake-up costs only time.

Any number of beats may run. One of them is the leader, by a lease in the database, and sends; the others are standbys.
A standby follows a killed leader within the lease's time; until then each worker's :class:`FallbackBeat` runs the tasks
that it misses, as a :class:`LocalTaskPool` does while the broker is away. The broker only spreads the work and makes it
quick; nothing depends on it: where two processes do the same because neither receives messages, the leases in the
database keep them apart, as always.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Final

import structlog

from core.db import leases
from core.db.engine import SessionFactory, unit_of_work
from core.domain.errors import TrainmasterError
from scheduler.messaging.work_queue import MessageDeduplicator

log = structlog.get_logger(__name__)

_MAX_WAIT_S: Final = 1.0
CHECK_S: Final = 0.5
# A process that has received no task at all for so many seconds has no beat: it runs each task that is late by so many
# intervals.
SILENT_S: Final = 5.0
_SILENT_INTERVALS: Final = 3.0
# Workers share the messages: although a beat is alive, one task may bring no message here for a while, by chance or
# because another worker takes all.
_UNLUCKY_S: Final = 30.0
_UNLUCKY_INTERVALS: Final = 20.0
_STOP_WITHIN_S: Final = 20.0


class LeaderElection:
    """Leader election by the lease ``beat``, which is renewed three times within its time. For one thread."""

    def __init__(self, sessions: SessionFactory, holder: str, ttl: timedelta, clock: Callable[[], datetime]) -> None:
        self._sessions = sessions
        self._holder = holder
        self._ttl = ttl
        self._clock = clock
        self._lease: leases.HeldLease | None = None
        self._until_s = 0.0  # by the monotonic clock, which an administrator cannot set
        self._acquire_at_s = 0.0

    def __call__(self) -> bool:
        now_s = time.monotonic()
        if now_s >= self._acquire_at_s:
            self._acquire_at_s = now_s + self._ttl.total_seconds() / 3
            self._acquire(now_s)
        return self._lease is not None and now_s < self._until_s

    def resign(self) -> None:
        """Let a standby lead at once."""
        if self._lease is None:
            return
        try:
            with unit_of_work(self._sessions) as session:
                leases.release(session, self._lease, now=self._clock())
        except TrainmasterError:
            pass  # it expires by itself
        self._lease = None

    def _acquire(self, now_s: float) -> None:
        was_leading = self._lease is not None
        try:
            with unit_of_work(self._sessions) as session:
                now = self._clock()
                self._lease = leases.acquire(session, leases.BEAT, holder=self._holder, now=now, ttl=self._ttl)
        except TrainmasterError:
            return  # while the database is away, a lease that was acquired before lasts until its time is over
        if self._lease is not None:
            self._until_s = now_s + self._ttl.total_seconds()
        if was_leading != (self._lease is not None):
            log.info("beat.elected" if self._lease is not None else "beat.standby")


class Beat:
    """Calls ``notify`` with each name of ``every`` at its interval, in seconds, while ``is_leader()``: a beat that is
    alone with its worker always is.
    """

    def __init__(
        self, notify: Callable[[str], None], every: Mapping[str, float], is_leader: Callable[[], bool] = lambda: True
    ) -> None:
        self._notify = notify
        self._every = dict(every)
        self._is_leader = is_leader
        self._stopping = threading.Event()
        self.last_turn_s = time.monotonic()
        self.is_leading = False

    def run(self) -> None:
        """Run until ``stop``. ``notify`` logs its own failures; the next interval tries again."""
        due_s = dict.fromkeys(self._every, time.monotonic())
        while not self._stopping.is_set():
            self.last_turn_s = now_s = time.monotonic()
            self.is_leading = self._is_leader()
            for name, at_s in due_s.items():
                if at_s > now_s:
                    continue
                # From now, not from when it was due: after a pause, missed intervals are not caught up.
                due_s[name] = now_s + self._every[name]
                if self.is_leading:
                    self._notify(name)
            self._stopping.wait(min(_MAX_WAIT_S, max(0.0, min(due_s.values()) - time.monotonic())))

    def stop(self) -> None:
        self._stopping.set()


class LocalTaskPool:
    """A few threads for tasks without a message. Equal pending tasks are run once."""

    def __init__(self, count: int) -> None:
        self._pool = ThreadPoolExecutor(count, thread_name_prefix="local-tasks")
        self._deduplicator = MessageDeduplicator(is_local=True)

    def submit(self, name: str, key: str, work: Callable[[], None]) -> None:
        """Run ``work`` soon, in a thread; it must not raise."""
        if not self._deduplicator.add(name, key):
            return

        def run() -> None:
            self._deduplicator.discard(name, key)
            work()

        try:
            self._pool.submit(run)
        except RuntimeError:  # the pool is shutting down: another process runs the task
            self._deduplicator.discard(name, key)

    def stop(self) -> None:
        """Finish the tasks that run; pending ones are left to other processes."""
        closing = threading.Thread(target=self._pool.shutdown, kwargs={"cancel_futures": True}, daemon=True)
        closing.start()
        closing.join(_STOP_WITHIN_S)


class FallbackBeat:
    """Runs each task of ``every`` (its interval in seconds) through ``run_task`` when no message for it came for too
    long.
    """

    def __init__(
        self,
        every: Mapping[str, float],
        run_task: Callable[[str], None],
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._every = dict(every)
        self._run_task = run_task
        self._clock_s = clock_s
        now_s = clock_s()
        self._last_message_s = dict.fromkeys(self._every, now_s)
        self._last_run_s = dict.fromkeys(self._every, now_s)
        self.is_active = False  # whether it runs tasks because no beat sends messages
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fallback-beat", daemon=True)
        self.last_turn_s = now_s

    def note_message(self, name: str) -> None:
        """A message has brought the task ``name``."""
        self._last_message_s[name] = self._clock_s()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(5.0)

    def _run(self) -> None:
        while not self._stopping.wait(CHECK_S):
            self.last_turn_s = now_s = self._clock_s()
            missed = self.missed_tasks()
            if bool(missed) != self.is_active:
                self.is_active = bool(missed)
                log.info("beat.missed" if missed else "beat.back")
            for name in missed:
                if now_s - self._last_run_s[name] >= self._every[name]:
                    self._last_run_s[name] = now_s
                    self._run_task(name)

    def missed_tasks(self) -> list[str]:
        """The tasks for which no message came for too long."""
        now_s = self._clock_s()
        return [name for name, every_s in self._every.items() if self._is_missed(name, every_s, now_s)]

    def _is_missed(self, name: str, every_s: float, now_s: float) -> bool:
        silent_s = now_s - self._last_message_s[name]
        if now_s - max(self._last_message_s.values()) > SILENT_S:
            return silent_s > max(SILENT_S, _SILENT_INTERVALS * every_s)
        return silent_s > max(_UNLUCKY_S, _UNLUCKY_INTERVALS * every_s)
