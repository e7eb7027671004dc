"""Work without messages, while the broker or the beat is away. Both only spread the work and make it quick; nothing
depends on them: where two processes do the same because neither receives messages, the leases in the database keep them
apart, as always.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

import structlog

from core.work_queue import WorkQueue

log = structlog.get_logger(__name__)

CHECK_S: Final = 0.5
# A process that has received no task at all for so many seconds has no beat: it runs each task that is late by so many
# intervals.
SILENT_S: Final = 5.0
_SILENT_INTERVALS: Final = 3.0
# Workers share the messages: although a beat is alive, one task may bring no message here for a while, by chance or
# because another worker takes all.
_UNLUCKY_S: Final = 30.0
_UNLUCKY_INTERVALS: Final = 20.0


class Fallback:
    """Runs tasks in this process, in a few threads; equal pending ones once.

    While no broker takes messages, :meth:`submit` is given their tasks. While no beat sends any, the fallback is its
    own beat, for each task for which no message came for too long.

    Args:
        every: the interval of each periodic task, in seconds.
        run_task: runs a task with its key; it must not raise.
    """

    def __init__(
        self,
        every: Mapping[str, float],
        run_task: Callable[[str, str], None],
        *,
        workers: int,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._queue = WorkQueue[tuple[str, str]](lambda batch: run_task(*batch[0]), workers=workers)
        self._every = dict(every)
        self._clock_s = clock_s
        now_s = clock_s()
        self._last_message_s = dict.fromkeys(self._every, now_s)
        self._last_run_s = dict.fromkeys(self._every, now_s)
        self.is_active = False  # whether it runs tasks because no beat sends messages
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fallback-beat", daemon=True)
        self.last_turn_s = now_s

    def submit(self, task: str, key: str = "") -> None:
        """Run the task soon; returns at once."""
        self._queue.submit((task, key))

    def note_message(self, name: str) -> None:
        """A message has brought the task ``name``."""
        self._last_message_s[name] = self._clock_s()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Finish the tasks that run; pending ones are left to other processes."""
        self._stopping.set()
        self._thread.join(5.0)
        self._queue.close()

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
                    self.submit(name)

    def missed_tasks(self) -> list[str]:
        """The tasks for which no message came for too long."""
        now_s = self._clock_s()
        return [name for name, every_s in self._every.items() if self._is_missed(name, every_s, now_s)]

    def _is_missed(self, name: str, every_s: float, now_s: float) -> bool:
        silent_s = now_s - self._last_message_s[name]
        if now_s - max(self._last_message_s.values()) > SILENT_S:
            return silent_s > max(SILENT_S, _SILENT_INTERVALS * every_s)
        return silent_s > max(_UNLUCKY_S, _UNLUCKY_INTERVALS * every_s)
