"""Rings at a given time: the earliest counts, each is rung once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from scheduler.messaging.wakeups import Timers

NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)


class Timer:
    """One that goes off when it is told to."""

    made: list[Timer]
    are_no_threads = False

    def __init__(self, wait_s: float, work: Callable[..., None], args: tuple[Any, ...]) -> None:
        self.wait_s, self.work, self.args = wait_s, work, args
        self.is_started = self.is_cancelled = self.daemon = False
        self.made.append(self)

    def start(self) -> None:
        if self.are_no_threads:
            raise RuntimeError("can't start new thread")
        self.is_started = True

    def cancel(self) -> None:
        self.is_cancelled = True

    def go_off(self) -> None:
        assert self.is_started
        self.work(*self.args)


class Clock:
    def __init__(self) -> None:
        self.sent: list[tuple[str, str]] = []
        self.timers = Timers(lambda topic, key: self.sent.append((topic, key)), lambda: NOW)

    def set(self, key: str, seconds: float) -> None:
        self.timers.set("endpoint", key, NOW + timedelta(seconds=seconds))


@pytest.fixture
def timers(monkeypatch: pytest.MonkeyPatch) -> list[Timer]:
    monkeypatch.setattr(Timer, "made", [], raising=False)
    monkeypatch.setattr(threading, "Timer", Timer)
    return Timer.made


def test_the_earliest_timer_fires_once_and_then_the_next_may_be_set(timers: list[Timer]) -> None:
    clock = Clock()
    clock.set("a", 5)
    clock.set("a", 1)
    clock.set("a", 9)
    assert [(one.wait_s, one.is_cancelled) for one in timers] == [(5, True), (1, False)]
    timers[0].go_off()  # it was cancelled too late
    assert clock.sent == []
    timers[1].go_off()
    assert clock.sent == [("endpoint", "a")]
    clock.set("a", -5)  # over already: at once
    assert timers[2].wait_s == 0
    clock.set("b", 2)
    clock.timers.close()
    assert [one.is_cancelled for one in timers[2:]] == [True, True]


def test_what_finds_no_thread_is_in_nobodys_way(timers: list[Timer], monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    clock.set("b", 5)
    with monkeypatch.context() as here:
        here.setattr(Timer, "are_no_threads", True)
        clock.set("a", 1)
        clock.set("b", 1)
    clock.set("a", 2)
    assert [(one.wait_s, one.is_started, one.is_cancelled) for one in timers] == [
        (5, True, False),  # the later one is better than none
        (1, False, False),
        (1, False, False),
        (2, True, False),
    ]
    timers[0].go_off()
    timers[3].go_off()
    assert clock.sent == [("endpoint", "b"), ("endpoint", "a")]


def test_once_closed_nothing_is_set(timers: list[Timer]) -> None:
    clock = Clock()
    clock.timers.close()
    clock.set("a", 1)
    assert timers == []


def test_what_is_far_away_takes_no_place_unless_that_is_wanted(timers: list[Timer]) -> None:
    clock = Clock()
    clock.set("a", 60)
    assert timers == []
    clock.timers.set("tick", "", NOW + timedelta(seconds=60), max_ahead=None)
    assert [timer.wait_s for timer in timers] == [60]
