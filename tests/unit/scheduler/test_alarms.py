"""Rings at a given time: the earliest counts, each is rung once."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from scheduler.alarms import Alarms


class Set:
    def __init__(self) -> None:
        self.rung: queue.Queue[tuple[str, str]] = queue.Queue()
        self.alarms = Alarms(lambda topic, key: self.rung.put((topic, key)), lambda: datetime.now(UTC))

    def at(self, key: str, seconds: float) -> None:
        self.alarms.set("endpoint", key, datetime.now(UTC) + timedelta(seconds=seconds))


@pytest.fixture
def clock() -> Iterator[Set]:
    made = Set()
    yield made
    made.alarms.close()


def test_the_earliest_is_rung_once_and_then_the_next_may_be_set(clock: Set) -> None:
    clock.at("a", 9)
    clock.at("a", 0)
    clock.at("a", 9)
    assert clock.rung.get(timeout=20) == ("endpoint", "a")
    clock.at("b", -5)  # over already
    assert clock.rung.get(timeout=20) == ("endpoint", "b")
    clock.at("a", 0)
    assert clock.rung.get(timeout=20) == ("endpoint", "a")
    assert clock.rung.empty()


def test_what_is_far_away_takes_no_place(clock: Set) -> None:
    clock.at("a", 60)
    clock.at("b", 0)
    assert clock.rung.get(timeout=20) == ("endpoint", "b")
    assert not clock.alarms._set
