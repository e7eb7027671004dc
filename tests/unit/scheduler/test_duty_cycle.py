from __future__ import annotations

import threading
from datetime import UTC, datetime
from typing import ClassVar

import pytest

from core.wakeups import TOPIC_TICK
from scheduler.control.planning.tick import TickReport
from scheduler.messaging.work_queue import DutyCycle
from scheduler.tick_runner import TickRunner

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
    clock, ticks, wakeups, sent = Clock(), [], [], threading.Event()

    def notify(topic: str) -> None:
        wakeups.append(topic)
        sent.set()

    def tick() -> TickReport:
        ticks.append(clock.now_s)
        clock.now_s += 0.2
        return TickReport()

    runner = TickRunner(tick, notify, lambda: NOW, duty_cycle=DutyCycle(clock))
    for _ in range(4):
        runner.run()
    assert ticks == [100.0]
    assert sent.wait(60)
    assert wakeups == [TOPIC_TICK]
    clock.now_s += 0.2
    runner.run()
    assert len(ticks) == 2


def test_a_timer_without_a_thread_does_not_block_a_later_one():
    class Timer(threading.Timer):
        started: ClassVar[list[float]] = []
        has_room = False

        def start(self):
            if not self.has_room:
                raise RuntimeError("can't start new thread")
            self.started.append(self.interval)

    clock = Clock()

    def tick() -> TickReport:
        clock.now_s += 0.5
        return TickReport(recheck_at=NOW)

    runner = TickRunner(tick, lambda _: None, lambda: NOW, duty_cycle=DutyCycle(clock), make_timer=Timer)
    runner.run()  # no timer for its recheck
    runner.run()  # nor for its rest
    Timer.has_room = True
    runner.run()
    clock.now_s += 0.5
    runner.run()
    assert Timer.started == [0.5, 0.0]
    runner.run()  # each is set already
    clock.now_s += 0.5
    runner.run()
    assert len(Timer.started) == 2
