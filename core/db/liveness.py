"""Liveness probe of the PostgreSQL server: a hanging server must not block the threads that wait for it.

A slow statement and a frozen (or unreachable) server look the same to the waiting thread. So after ``SILENCE_S`` the
thread probes once with a fresh connection: success means that the statement is slow, and the wait goes on; failure
means that the server is away. From then on all callers fail at once, and a background thread probes until the server is
back. While the server responds, nothing here runs.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator
from typing import Any, Final

import psycopg
import structlog

log = structlog.get_logger(__name__)

# A statement may be silent this long before the server is probed; longer than all but reports take on a busy server.
SILENCE_S: Final = 2.0
# For one probe, in whole seconds; generous, since a machine short of CPU connects slowly.
PROBE_TIMEOUT_S: Final = 3
PROBE_INTERVAL_S: Final = 0.5
# Above the server's own statement_timeout (60 s): then this connection alone is dead, as after a lost firewall state.
_LOST_AFTER_S: Final = 75.0


class ServerLiveness:
    """What is known of one server. Thread-safe.

    Args:
        knock: sends a probe over a new connection; raises ``psycopg.Error`` if there is no response in time.
    """

    def __init__(self, knock: Callable[[], None]) -> None:
        self._knock = knock
        self._lock = threading.Lock()
        self._is_away = False
        self._asking: _Answer | None = None
        self._thread: threading.Thread | None = None

    @property
    def is_away(self) -> bool:
        """True while the server is known not to respond; reading it is free."""
        return self._is_away

    def may_wait(self) -> bool:
        """Whether a late response may still come."""
        return not self._is_away and self.answers()

    def answers(self) -> bool:
        """Probe, and return whether the server responded, within ``PROBE_TIMEOUT_S``. Concurrent callers share it."""
        with self._lock:
            if self._is_away:
                return False
            asking, is_first = self._asking, False
            if asking is None:
                asking, is_first = _Answer(), True
                self._asking = asking
        if not is_first:
            asking.done.wait(2 * PROBE_TIMEOUT_S)
            return asking.is_well
        try:
            asking.is_well = self._is_well()
            if not asking.is_well:
                self.declare_away()
        finally:
            with self._lock:
                self._asking = None
            asking.done.set()
        return asking.is_well

    def suspect(self) -> None:
        """A connection attempt failed: probe in the background, and declare the server away if the probe fails."""
        with self._lock:
            if self._thread is not None and self._thread.is_alive():
                return
            self._thread = threading.Thread(target=self._watch, name="database-pulse", daemon=True)
            self._thread.start()

    def declare_away(self) -> None:
        """The server does not respond: until it does, no caller waits for it."""
        with self._lock:
            is_new, self._is_away = not self._is_away, True
        if is_new:
            log.warning("database.away")
        self.suspect()

    def _watch(self) -> None:
        while not self._is_well():
            with self._lock:
                is_new, self._is_away = not self._is_away, True
            if is_new:
                log.warning("database.away")
            time.sleep(PROBE_INTERVAL_S)  # noqa: TID251 (polling is the only way to notice a server's return)
        with self._lock:
            was_away, self._is_away = self._is_away, False
            self._thread = None
        if was_away:
            log.info("database.back")

    def _is_well(self) -> bool:
        try:
            self._knock()
        except psycopg.OperationalError as error:
            # A server that refuses (too many connections, no such user) is alive.
            return error.sqlstate is not None and not error.sqlstate.startswith("57P")
        except psycopg.Error:
            return True
        return True


class _Answer:
    def __init__(self) -> None:
        self.done = threading.Event()
        self.is_well = False


class ServerNotResponding(psycopg.OperationalError):
    """The server is away, or this connection is dead."""


class WatchedConnection(psycopg.Connection[Any]):
    """A connection that gives up when its server stops responding, while a slow statement may take its time.

    ``may_wait``: called after each ``SILENCE_S`` without data from the server; set after connecting.
    """

    may_wait: Callable[[], bool] | None = None

    def wait(self, gen: Any, *args: Any, **options: Any) -> Any:
        may_wait = self.may_wait
        return super().wait(gen if may_wait is None else self._watched(gen, may_wait), *args, **options)

    def _watched(self, gen: Any, may_wait: Callable[[], bool]) -> Generator[Any, Any, Any]:
        """``gen`` unchanged; the driver yields nothing ten times a second while the server is silent."""
        began = queried_at = time.monotonic()
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                if not ready and (now := time.monotonic()) - queried_at >= SILENCE_S:
                    if now - began > _LOST_AFTER_S or not may_wait():
                        self.close()
                        raise ServerNotResponding("the server does not answer")
                    queried_at = time.monotonic()
                wanted = gen.send(ready)
        except StopIteration as done:
            return done.value


def make_probe(*arguments: Any, **parameters: Any) -> Callable[[], None]:
    """The probe of :class:`ServerLiveness`: a new connection and the smallest query."""

    def knock() -> None:
        with WatchedConnection.connect(
            *arguments, autocommit=True, **{**parameters, "connect_timeout": PROBE_TIMEOUT_S}
        ) as connection:
            connection.may_wait = _never
            connection.execute("select 1")

    return knock


def _never() -> bool:
    return False
