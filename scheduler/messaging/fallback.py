"""What a scheduler process does by itself while the broker is away or no beat sends messages.

The broker only spreads the work and makes it quick; nothing depends on it. Where two processes do the same because
neither receives messages, the leases in the database keep them apart, as always.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import structlog

from scheduler.messaging.work_queue import PendingDeduplicator

log = structlog.get_logger(__name__)

_CHECK_S: Final = 0.5
# A process that has received no task at all for so many seconds has no beat: it runs each task that is late by so many
# intervals.
_SILENT_S: Final = 5.0
_SILENT_INTERVALS: Final = 3.0
# Workers share the messages: although a beat is alive, one task may bring no message here for a while, by chance or
# because another worker takes all.
_UNLUCKY_S: Final = 30.0
_UNLUCKY_INTERVALS: Final = 20.0
_STOP_WITHIN_S: Final = 20.0


class LocalTaskPool:
    """A few threads for tasks without a message. Equal pending tasks are run once."""

    def __init__(self, count: int) -> None:
        self._pool = ThreadPoolExecutor(count, thread_name_prefix="local-tasks")
        self._deduplicator = PendingDeduplicator(is_local=True)

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

    def __init__(self, every: Mapping[str, float], run_task: Callable[[str], None]) -> None:
        self._every = dict(every)
        self._run_task = run_task
        now_s = time.monotonic()
        self._last_message_s = dict.fromkeys(self._every, now_s)
        self._last_run_s = dict.fromkeys(self._every, now_s)
        self._is_active = False
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fallback-beat", daemon=True)
        self.last_turn_s = now_s

    @property
    def is_active(self) -> bool:
        """Whether it runs tasks because no beat sends messages."""
        return self._is_active

    def note_message(self, name: str) -> None:
        """A message has brought the task ``name``."""
        self._last_message_s[name] = time.monotonic()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(5.0)

    def _run(self) -> None:
        while not self._stopping.wait(_CHECK_S):
            self.last_turn_s = now_s = time.monotonic()
            missed = [name for name, every_s in self._every.items() if self._is_missed(name, every_s, now_s)]
            if bool(missed) != self._is_active:
                self._is_active = bool(missed)
                log.info("beat.missed" if missed else "beat.back")
            for name in missed:
                if now_s - self._last_run_s[name] >= self._every[name]:
                    self._last_run_s[name] = now_s
                    self._run_task(name)

    def _is_missed(self, name: str, every_s: float, now_s: float) -> bool:
        silent_s = now_s - self._last_message_s[name]
        if now_s - max(self._last_message_s.values()) > _SILENT_S:
            return silent_s > max(_SILENT_S, _SILENT_INTERVALS * every_s)
        return silent_s > max(_UNLUCKY_S, _UNLUCKY_INTERVALS * every_s)
