from __future__ import annotations

import threading
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import ClassVar

import pytest

from core.wakeups import TOPIC_TICK
from scheduler.control.planning.tick import TickReport
from scheduler.messaging.work_queue import DutyCycle
from scheduler.process import SchedulerProcess


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
    clock, ticks, sent = Clock(), [], threading.Event()
    process = SchedulerProcess.__new__(SchedulerProcess)  # without a database: the tick and its rest alone
    process._tick_duty_cycle, process._timer_lock, process._is_resting = DutyCycle(clock), threading.Lock(), False
    wakeups = []

    def notify(topic: str) -> None:
        wakeups.append(topic)
        sent.set()

    def tick() -> TickReport:
        ticks.append(clock.now_s)
        clock.now_s += 0.2
        return TickReport()

    process.control = SimpleNamespace(wakeup=SimpleNamespace(notify=notify))
    process.ticker = SimpleNamespace(tick=tick)
    for _ in range(4):
        process._tick()
    assert ticks == [100.0]
    assert sent.wait(60)
    assert wakeups == [TOPIC_TICK]
    clock.now_s += 0.2
    process._tick()
    assert len(ticks) == 2


def test_a_timer_without_a_thread_does_not_block_a_later_one(monkeypatch):
    class Timer:
        started: ClassVar[list[float]] = []
        has_room = False

        def __init__(self, rest_s, *_):
            self.rest_s = rest_s

        def start(self):
            if not self.has_room:
                raise RuntimeError("can't start new thread")
            self.started.append(self.rest_s)

    monkeypatch.setattr("scheduler.process.threading.Timer", Timer)
    process = SchedulerProcess.__new__(SchedulerProcess)
    process._timer_lock, process._is_resting, process._timers = threading.Lock(), False, set()
    at = datetime(2026, 1, 1, tzinfo=UTC)
    process._tick_after(0.5)
    process._tick_at(at)
    Timer.has_room = True
    process._tick_after(0.25)
    process._tick_at(at)
    assert Timer.started == [0.25, 0.0]
    process._tick_after(0.25)  # each is asked for already
    process._tick_at(at)
    assert len(Timer.started) == 2
