"""The beat: sends a message for each periodic task, so that a lost wake-up costs only time.

Any number of beats may run. One of them is the leader, by a lease in the database, and sends; the others are standbys.
A standby follows a killed leader within the lease's time; until then each worker runs the tasks that it misses by
itself (``fallback.py``).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Final

import structlog

from core.db import leases
from core.db.engine import SessionFactory, unit_of_work
from core.domain.errors import TrainmasterError

log = structlog.get_logger(__name__)

_MAX_WAIT_S: Final = 1.0


class LeaderElection:
    """Leader election by the lease ``beat``, which is renewed three times within its time. For one thread."""

    def __init__(self, sessions: SessionFactory, holder: str, ttl: timedelta, clock: Callable[[], datetime]) -> None:
        self._sessions = sessions
        self._holder = holder
        self._ttl = ttl
        self._clock = clock
        self._lease: leases.LeaseGrant | None = None
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
