"""The decayed mean of shares."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from core.domain.sharing.usage import DecayedUsage

T0 = datetime(2026, 1, 1, tzinfo=UTC)
DAY_S = 86_400.0


def test_after_one_half_life_half_of_the_past_is_left() -> None:
    held = DecayedUsage(0.8, 0.0, T0)
    assert held.value_at(T0 + timedelta(days=1), DAY_S) == pytest.approx(0.4)
    assert DecayedUsage(0.0, 1.0, T0).value_at(T0 + timedelta(days=1), DAY_S) == pytest.approx(0.5)


def test_looking_often_changes_nothing() -> None:
    often = DecayedUsage(0.2, 0.6, T0)
    for hour in range(1, 49):
        often = often.change(0.6, T0 + timedelta(hours=hour), DAY_S)
    assert often.value == pytest.approx(DecayedUsage(0.2, 0.6, T0).value_at(T0 + timedelta(hours=48), DAY_S))


def test_a_clock_that_goes_back_counts_no_time_twice() -> None:
    held = DecayedUsage(0.2, 0.6, T0)
    back = held.change(0.1, T0 - timedelta(hours=1), DAY_S)
    assert (back.value, back.at) == (0.2, T0)
