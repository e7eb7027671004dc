"""Rings at a given time, for what would else wait for beat's next ring."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final

# Each is a thread that sleeps; who finds no room is found by beat's ring a little later.
_MOST: Final = 200
# What is further away is asked for again by then.
_AHEAD: Final = timedelta(seconds=10)


class Timers:
    """One of each topic and key at a time, the earliest. Of this process alone, and safe for threads.

    Args:
        ring: called in a thread of its own; it must not raise.
    """

    def __init__(self, ring: Callable[[str, str], None], clock: Callable[[], datetime]) -> None:
        self._notify = ring
        self._clock = clock
        self._lock = threading.Lock()
        self._set: dict[tuple[str, str], tuple[datetime, threading.Timer]] = {}
        self._is_closed = False

    def set(self, topic: str, key: str, at: datetime) -> None:
        """Ring then, or at once where that is over. More than ten seconds ahead nothing is done."""
        name = topic, key
        left = at - self._clock()
        if left > _AHEAD:
            return
        with self._lock:
            if self._is_closed:
                return
            known = self._set.get(name)
            if known is None and len(self._set) >= _MOST:
                return
            if known is not None and known[0] <= at:
                return
            timer = threading.Timer(max(0.0, left.total_seconds()), self._go_off, (name, at))
            timer.daemon = True
            try:
                timer.start()
            except RuntimeError:
                return  # no thread is to be had: beat's ring finds it, and the next one may be set
            if known is not None:
                known[1].cancel()
            self._set[name] = at, timer

    def close(self) -> None:
        """Nothing rings any more, nor is anything set."""
        with self._lock:
            self._is_closed = True
            for _, timer in self._set.values():
                timer.cancel()
            self._set.clear()

    def _go_off(self, name: tuple[str, str], at: datetime) -> None:
        with self._lock:
            known = self._set.get(name)
            if known is None or known[0] != at:
                return  # an earlier one has taken its place in this moment
            del self._set[name]
        self._notify(*name)
