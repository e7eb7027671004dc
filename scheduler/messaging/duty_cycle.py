"""Rest between runs of long work, so that the rest of the process gets as much time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

# Seconds. Shorter runs delay nothing else.
_MIN_RUN_S: Final = 0.05
# Seconds. However long a run took, a user may wait for the next one.
_MAX_REST_S: Final = 1.0


class DutyCycle:
    """After a long run the next one is due once as much time has passed again, but a second at most.

    Ticks in immediate succession each start the few jobs for which room has become free meanwhile. With a rest between
    them, the threads that start and end jobs get the interpreter: of a long queue of short jobs twice as many have
    ended by the next tick, and half as many ticks are made.

    For one thread. ``clock_s``: seconds that never go back.
    """

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._due_s = 0.0

    @property
    def rest_s(self) -> float:
        """Seconds until the next run is due; 0: it is due."""
        return max(0.0, self._due_s - self._clock_s())

    @contextmanager
    def run(self) -> Iterator[None]:
        """Around a run, whether it fails or not."""
        began_s = self._clock_s()
        try:
            yield
        finally:
            ended_s = self._clock_s()
            took_s = ended_s - began_s
            self._due_s = ended_s + min(took_s, _MAX_REST_S) if took_s >= _MIN_RUN_S else 0.0
