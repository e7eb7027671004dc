"""When what has failed is tried again: each time later, as a disk that fails does not get well from being read."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from datetime import datetime, timedelta

from scheduler.control.attempts.backoff import copy_delay


class BackoffTracker:
    """How often each key has failed in a row, and until when it rests. Of one process: a new one tries at once.

    Many threads may use it.
    """

    def __init__(self, clock: Callable[[], datetime]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._failures: dict[Hashable, tuple[int, datetime]] = {}

    def is_due(self, key: Hashable) -> bool:
        with self._lock:
            failure = self._failures.get(key)
        return failure is None or failure[1] <= self._clock()

    def note_failure(self, key: Hashable) -> tuple[int, timedelta]:
        """How often it has failed in a row, this time too, and for how long it rests now."""
        with self._lock:
            count = self._failures[key][0] + 1 if key in self._failures else 1
            wait = copy_delay(count)
            self._failures[key] = count, self._clock() + wait
        return count, wait

    def forget(self, key: Hashable) -> None:
        """It has got on, or there is nothing left to do."""
        with self._lock:
            self._failures.pop(key, None)
