"""A scheduler process does by itself what no message brings: while the broker is away, or no beat is heard.

The broker spreads the work and makes it quick; nothing depends on it. What two processes do at once, because both heard
nothing, is kept apart by the leases in the database, as always.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import structlog

from scheduler.messaging.coalescing import PendingDeduplicator

log = structlog.get_logger(__name__)

_LOOK_S: Final = 0.5
# Whoever has heard of no task for so many seconds hears no beat: it does each that is late by so many intervals.
_SILENT_S: Final = 5.0
_SILENT_INTERVALS: Final = 3.0
# Workers share the messages: one task may bring none here for a while although beat is heard, by chance or because
# another worker takes all.
_UNLUCKY_S: Final = 30.0
_UNLUCKY_INTERVALS: Final = 20.0
_STOP_WITHIN_S: Final = 20.0


class LocalTaskPool:
    """A few threads for tasks without a message. Equal ones that still wait are one."""

    def __init__(self, count: int) -> None:
        self._pool = ThreadPoolExecutor(count, thread_name_prefix="hands")
        self._deduplicator = PendingDeduplicator(is_local=True)

    def submit(self, name: str, key: str, work: Callable[[], None]) -> None:
        """``work`` soon, in a thread; it must not raise."""
        if not self._deduplicator.add(name, key):
            return

        def run() -> None:
            self._deduplicator.discard(name, key)
            work()

        try:
            self._pool.submit(run)
        except RuntimeError:  # going down: another process does it
            self._deduplicator.discard(name, key)

    def stop(self) -> None:
        """Finish what is being done; what waits is left to others."""
        closing = threading.Thread(target=self._pool.shutdown, kwargs={"cancel_futures": True}, daemon=True)
        closing.start()
        closing.join(_STOP_WITHIN_S)


class FallbackBeat:
    """Does each of ``every`` (seconds by name) through ``do`` when nobody has rung for it for too long."""

    def __init__(self, every: Mapping[str, float], submit: Callable[[str], None]) -> None:
        self._every = dict(every)
        self._do = submit
        now_s = time.monotonic()
        self._heard_s = dict.fromkeys(self._every, now_s)
        self._done_s = dict.fromkeys(self._every, now_s)
        self._is_active = False
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="own-clock", daemon=True)
        self.last_turn_s = now_s

    @property
    def is_active(self) -> bool:
        """Whether no beat is heard."""
        return self._is_active

    def note_message(self, name: str) -> None:
        """A message has brought the task ``name``."""
        self._heard_s[name] = time.monotonic()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(5.0)

    def _run(self) -> None:
        while not self._stopping.wait(_LOOK_S):
            self.last_turn_s = now_s = time.monotonic()
            missed = [name for name, every_s in self._every.items() if self._is_silent(name, every_s, now_s)]
            if bool(missed) != self._is_active:
                self._is_active = bool(missed)
                log.info("beat.missed" if missed else "beat.heard")
            for name in missed:
                if now_s - self._done_s[name] >= self._every[name]:
                    self._done_s[name] = now_s
                    self._do(name)

    def _is_silent(self, name: str, every_s: float, now_s: float) -> bool:
        silent_s = now_s - self._heard_s[name]
        if now_s - max(self._heard_s.values()) > _SILENT_S:
            return silent_s > max(_SILENT_S, _SILENT_INTERVALS * every_s)
        return silent_s > max(_UNLUCKY_S, _UNLUCKY_INTERVALS * every_s)
