"""Our own limit of requests, so that one platform cannot crowd the others out of an API server."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class Pace:
    """A bucket of tokens: ``qps`` requests per second in the long run, ``burst`` at once. For many threads, in turn."""

    def __init__(self, qps: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._qps = qps
        self._burst = max(1, burst)
        self._clock = clock
        self._lock = threading.Lock()
        # When the bucket would be full again; taking one token moves it by 1/qps.
        self._full_at = clock()

    def reserve(self) -> float:
        """Take a token; how long to wait before it may be used, in seconds."""
        with self._lock:
            now = self._clock()
            self._full_at = max(self._full_at, now) + 1 / self._qps
            return max(0.0, self._full_at - now - self._burst / self._qps)
