"""The clock: rings for everything periodically, so that a lost bell costs only time.

Any number of beats may run. One of them leads, by a lease in the database, and rings; the others stand by. A leader
that is killed is followed within the lease's time, and until then each worker's own clock (``scheduler.messaging.fallback``) does
what it misses.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Final, Protocol

import structlog

from core.db import leases
from core.db.engine import SessionFactory, unit_of_work
from core.domain.errors import TrainmasterError

log = structlog.get_logger(__name__)

BEAT_LEASE: Final = leases.BEAT
_TURN_S: Final = 1.0


class IsLeader(Protocol):
    """Whether this beat is the one that rings."""

    def __call__(self) -> bool: ...


def always_leader() -> bool:
    """For a beat that has its workers for itself."""
    return True


class LeaderElection:
    """One of many, by the lease ``beat``. Renewed three times in its life; not to be called by two threads."""

    def __init__(self, sessions: SessionFactory, holder: str, ttl: timedelta, clock: Callable[[], datetime]) -> None:
        self._sessions = sessions
        self._holder = holder
        self._ttl = ttl
        self._clock = clock
        self._lease: leases.HeldLease | None = None
        self._until_s = 0.0  # by this machine's own monotonic clock: nobody moves that
        self._ask_at_s = 0.0

    def __call__(self) -> bool:
        now_s = time.monotonic()
        if now_s >= self._ask_at_s:
            self._ask_at_s = now_s + self._ttl.total_seconds() / 3
            self._ask(now_s)
        return self._lease is not None and now_s < self._until_s

    def resign(self) -> None:
        """Let the next one lead at once."""
        if self._lease is None:
            return
        try:
            with unit_of_work(self._sessions) as session:
                leases.release(session, self._lease, now=self._clock())
        except TrainmasterError:
            pass  # it expires by itself
        self._lease = None

    def _ask(self, now_s: float) -> None:
        was_leading = self._lease is not None
        try:
            with unit_of_work(self._sessions) as session:
                self._lease = leases.acquire(session, BEAT_LEASE, holder=self._holder, now=self._clock(), ttl=self._ttl)
        except TrainmasterError:
            return  # while the database is away the lease that we have goes on until its time is over
        if self._lease is not None:
            self._until_s = now_s + self._ttl.total_seconds()
        if was_leading != (self._lease is not None):
            log.info("beat.leads" if self._lease is not None else "beat.stands_by")


class Beat:
    """Calls ``ring`` with each name of ``every`` in its time, in seconds, as long as ``leads``."""

    def __init__(
        self, ring: Callable[[str], None], every: Mapping[str, float], is_leader: IsLeader = always_leader
    ) -> None:
        self._notify = ring
        self._every = dict(every)
        self._leads = is_leader
        self._stopping = threading.Event()
        self.last_turn_s = time.monotonic()
        self.is_leading = False

    def run(self) -> None:
        """Until ``stop``. What fails is told and tried again when its time comes."""
        due_s = dict.fromkeys(self._every, time.monotonic())
        while not self._stopping.is_set():
            self.last_turn_s = now_s = time.monotonic()
            self.is_leading = self._leads()
            for name, at_s in due_s.items():
                if at_s > now_s:
                    continue
                # From now, not from when it was due: after a pause nothing is made up for.
                due_s[name] = now_s + self._every[name]
                if self.is_leading:
                    self._notify(name)
            self._stopping.wait(min(_TURN_S, max(0.0, min(due_s.values()) - time.monotonic())))

    def stop(self) -> None:
        self._stopping.set()
