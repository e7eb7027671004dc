"""One-shot timers for wake-ups that would otherwise wait for the next message of the beat."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final

# Each timer is a sleeping thread; beyond this number the beat's next message does the same a little later.
_MAX_TIMERS: Final = 200
# What is further away is set again before then.
_MAX_AHEAD: Final = timedelta(seconds=10)


class Timers:
    """At most one timer per topic and key, the earliest. Of this process alone; thread-safe.

    Args:
        notify: called in a thread of its own; it must not raise.
    """

    def __init__(self, notify: Callable[[str, str], None], clock: Callable[[], datetime]) -> None:
        self._notify = notify
        self._clock = clock
        self._lock = threading.Lock()
        self._set: dict[tuple[str, str], tuple[datetime, threading.Timer]] = {}
        self._is_closed = False

    def set(self, topic: str, key: str, at: datetime) -> None:
        """Notify at ``at``, or at once where that is past. A time more than ten seconds ahead is ignored."""
        name = topic, key
        left = at - self._clock()
        if left > _MAX_AHEAD:
            return
        with self._lock:
            if self._is_closed:
                return
            known = self._set.get(name)
            if known is None and len(self._set) >= _MAX_TIMERS:
                return
            if known is not None and known[0] <= at:
                return
            timer = threading.Timer(max(0.0, left.total_seconds()), self._fire, (name, at))
            timer.daemon = True
            try:
                timer.start()
            except RuntimeError:
                return  # no thread could be started: the beat's next message does the same
            if known is not None:
                known[1].cancel()
            self._set[name] = at, timer

    def close(self) -> None:
        """Cancel all timers; none can be set any more."""
        with self._lock:
            self._is_closed = True
            for _, timer in self._set.values():
                timer.cancel()
            self._set.clear()

    def _fire(self, name: tuple[str, str], at: datetime) -> None:
        with self._lock:
            known = self._set.get(name)
            if known is None or known[0] != at:
                return  # an earlier timer has replaced it at this moment
            del self._set[name]
        self._notify(*name)
