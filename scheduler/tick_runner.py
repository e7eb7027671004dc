"""Runs ticks with rests between them, and wakes the tick up when a rest or a back-off ends."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import datetime

from core.wakeups import TOPIC_TICK
from scheduler.control.planning.tick import TickReport
from scheduler.messaging.work_queue import DutyCycle

_MAX_TIMERS = 100


class TickRunner:
    """:meth:`run` is for one thread; timers notify in threads of their own.

    Args:
        tick: plans, and starts the jobs that can start.
        notify: sends a wake-up; called with the topic of the tick.
        duty_cycle: decides how long ticks rest.
        make_timer: as ``threading.Timer``.
    """

    def __init__(
        self,
        tick: Callable[[], TickReport],
        notify: Callable[[str], None],
        clock: Callable[[], datetime],
        *,
        duty_cycle: DutyCycle | None = None,
        make_timer: Callable[[float, Callable[[datetime | None], None], tuple[datetime | None]], threading.Timer] = (
            threading.Timer
        ),
    ) -> None:
        self._tick = tick
        self._notify = notify
        self._clock = clock
        self._duty_cycle = duty_cycle or DutyCycle()
        self._make_timer = make_timer
        self._timers: set[datetime] = set()
        self._is_resting = False
        self._timer_lock = threading.Lock()

    def run(self) -> None:
        """Tick, or wake the tick up after its rest."""
        left_s = self._duty_cycle.rest_s
        if left_s > 0:
            self._notify_after_rest(left_s)
            return
        with self._duty_cycle.run():
            report = self._tick()
        if report.recheck_at is not None:
            self._notify_at(report.recheck_at)

    def _notify_at(self, at: datetime) -> None:
        """Wake the tick up when a back-off ends, instead of up to an interval later."""
        with self._timer_lock:
            if at in self._timers or len(self._timers) > _MAX_TIMERS:
                return
            self._timers.add(at)
        self._start_timer(max(0.0, (at - self._clock()).total_seconds()), at)

    def _notify_after_rest(self, left_s: float) -> None:
        """Wake the tick up after its rest, once for all wake-ups that came meanwhile."""
        with self._timer_lock:
            if self._is_resting:
                return
            self._is_resting = True
        self._start_timer(left_s, None)

    def _start_timer(self, left_s: float, at: datetime | None) -> None:
        timer = self._make_timer(left_s, self._end_timer, (at,))
        timer.daemon = True
        try:
            timer.start()
        except RuntimeError:
            self._forget_timer(at)  # no thread could be started: the beat's next message does the same

    def _end_timer(self, at: datetime | None) -> None:
        self._forget_timer(at)
        self._notify(TOPIC_TICK)

    def _forget_timer(self, at: datetime | None) -> None:
        with self._timer_lock:
            if at is None:
                self._is_resting = False
            else:
                self._timers.discard(at)
