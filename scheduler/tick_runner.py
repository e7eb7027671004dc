"""Runs ticks with rests between them, and wakes the tick up when a rest or a back-off ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Final

from core.wakeups import TOPIC_TICK
from scheduler.control.planning.tick import TickReport

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
            duration_s = ended_s - began_s
            self._due_s = ended_s + min(duration_s, _MAX_REST_S) if duration_s >= _MIN_RUN_S else 0.0


class TickRunner:
    """For one thread.

    Args:
        tick: plans, and starts the jobs that can start.
        set_timer: sends a wake-up at a time; called with the topic of the tick, an empty key and the time.
        duty_cycle: decides how long ticks rest.
    """

    def __init__(
        self,
        tick: Callable[[], TickReport],
        set_timer: Callable[[str, str, datetime], None],
        clock: Callable[[], datetime],
        *,
        duty_cycle: DutyCycle | None = None,
    ) -> None:
        self._tick = tick
        self._set_timer = set_timer
        self._clock = clock
        self._duty_cycle = duty_cycle or DutyCycle()

    def run(self) -> None:
        """Tick, or wake the tick up after its rest, once for all wake-ups that came meanwhile."""
        rest_s = self._duty_cycle.rest_s
        if rest_s > 0:
            self._set_timer(TOPIC_TICK, "", self._clock() + timedelta(seconds=rest_s))
            return
        with self._duty_cycle.run():
            report = self._tick()
        if report.recheck_at is not None:  # a back-off ends, instead of up to an interval later
            self._set_timer(TOPIC_TICK, "", report.recheck_at)
