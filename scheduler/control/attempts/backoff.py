"""Exponential back-off: how long to wait before a retry."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

_FIRST: Final = timedelta(seconds=1)
_LONGEST: Final = timedelta(minutes=5)


def restart_delay(ends_in_a_row: int) -> timedelta:
    """The wait after the n-th end in a row, counted from 1: none, 1 s, 2 s, 4 s … 5 min.

    The first restart is immediate: a worker that was killed by chance must train again soon.
    """
    return timedelta() if ends_in_a_row <= 1 else _doubled(ends_in_a_row - 2, _FIRST, _LONGEST)


def infrastructure_delay(ends_in_a_row: int) -> timedelta:
    """The wait after the n-th end in a row for a full volume or an unreachable registry, counted from 1: 15 s, 30 s …
    5 min. Such a state lasts for minutes at least.
    """
    return _doubled(ends_in_a_row - 1, timedelta(seconds=15), _LONGEST)


def retry_delay(tries: int) -> timedelta:
    """The wait after the n-th failed call to an engine that is away, counted from 1: 0.2 s, 0.4 s … 30 s."""
    return _doubled(tries - 1, timedelta(milliseconds=200), timedelta(seconds=30))


def copy_delay(failures: int) -> timedelta:
    """The wait after the n-th failure in a row to copy a model, counted from 1: 2 s, 4 s … 5 min."""
    return _doubled(failures - 1, timedelta(seconds=2), _LONGEST)


def _doubled(times: int, first: timedelta, longest: timedelta) -> timedelta:
    # 2**16 is beyond every limit used here: no overflow for a job that failed a thousand times.
    return min(longest, first * (1 << min(times, 16)))
