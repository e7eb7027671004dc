from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from core.wakeups import TOPIC_TICK
from scheduler.control.planning.tick import TickReport
from scheduler.tick_runner import DutyCycle, TickRunner

NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def ran(pace: DutyCycle, clock: Clock, took_s: float) -> float:
    with pace.run():
        clock.now_s += took_s
    return pace.rest_s


def test_what_took_long_rests_as_long_again():
    clock = Clock()
    pace = DutyCycle(clock)
    assert pace.rest_s == 0
    assert ran(pace, clock, 0.5) == pytest.approx(0.5)
    clock.now_s += 0.3
    assert pace.rest_s == pytest.approx(0.2)
    clock.now_s += 0.3
    assert pace.rest_s == 0


def test_a_rest_has_an_end_however_long_the_run_was():
    clock = Clock()
    assert ran(DutyCycle(clock), clock, 60.0) == pytest.approx(1.0)


def test_a_short_run_needs_no_rest():
    clock = Clock()
    assert ran(DutyCycle(clock), clock, 0.01) == 0


def test_a_run_that_fails_rests_too():
    clock = Clock()
    pace = DutyCycle(clock)
    with pytest.raises(ZeroDivisionError), pace.run():
        clock.now_s += 0.4
        _ = 1 // 0
    assert pace.rest_s == pytest.approx(0.4)


def test_wakeups_during_a_rest_cause_one_tick_after_it():
    clock, ticks, timers = Clock(), [], []

    def tick() -> TickReport:
        ticks.append(clock.now_s)
        clock.now_s += 0.5
        return TickReport(recheck_at=NOW + timedelta(seconds=7))

    def set_timer(topic: str, key: str, at: datetime) -> None:
        timers.append((topic, key, (at - NOW).total_seconds()))

    runner = TickRunner(tick, set_timer, lambda: NOW, duty_cycle=DutyCycle(clock))
    runner.run()
    runner.run()
    assert ticks == [100.0]
    assert timers == [(TOPIC_TICK, "", 7.0), (TOPIC_TICK, "", 0.5)]
    clock.now_s += 0.5
    runner.run()
    assert len(ticks) == 2
