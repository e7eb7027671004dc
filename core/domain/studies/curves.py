"""Learning curves: the study's metric by a trial's steps.

A :class:`Curve` comes from reports in any order, thinned for storage; a :class:`Trace` grows with the reports, and has
the aggregates that stopping rules query.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import neg
from typing import Final

from trainmaster.studies import Goal

# points of a stored curve
STORED_POINTS: Final = 200
# Entries of one trace, 48 bytes each. The newest stay unmerged, so that an attempt that resumes a little earlier finds
# each step; a run of older ones holds at most this fraction of all reports up to it. 10^9 reports fit.
MAX_ENTRIES: Final = 10_000
_NEWEST: Final = 2_000
_FINENESS: Final = 500


@dataclass(frozen=True, slots=True)
class Curve:
    """``steps`` grow; each has one finite value. ``number``: the trial's. ``is_over``: it ran to its own end."""

    number: int
    steps: tuple[int, ...]
    values: tuple[float, ...]
    is_over: bool = False

    def __bool__(self) -> bool:
        return bool(self.steps)


def make_curve(number: int, points: Sequence[tuple[int, float]], *, is_over: bool = False) -> Curve:
    """A curve from points in any order: the last value of a step counts; NaN and infinities are left out."""
    by_step = {step: value for step, value in points if math.isfinite(value)}
    steps = sorted(by_step)
    return Curve(number, tuple(steps), tuple(by_step[step] for step in steps), is_over)


def step_of(curve: Curve, value: float | None) -> int:
    """The first step at which ``value`` was reported; the last step if it never was, and 0 for an empty curve."""
    found = next((step for step, own in zip(curve.steps, curve.values, strict=True) if own == value), None)
    return found if found is not None else max(curve.steps, default=0)


def thinned(curve: Curve) -> Curve:
    """At most ``STORED_POINTS`` of its points, the first and the last among them."""
    count = len(curve.steps)
    if count <= STORED_POINTS:
        return curve
    chosen = sorted({round(place * (count - 1) / (STORED_POINTS - 1)) for place in range(STORED_POINTS)})
    return Curve(
        curve.number, tuple(curve.steps[i] for i in chosen), tuple(curve.values[i] for i in chosen), curve.is_over
    )


class Trace:
    """An incremental curve. Values are negated where needed, so that lower is better. ``number``: the trial's.
    ``is_over``: it ran to its own end.

    Simple equivalent: all reports of a trial sorted by step, the last report of a step winning, and from these the
    minimum, sum and count up to each step. Here a report beyond the last step is appended. A report for an earlier step
    (late, or after a resume from a checkpoint) is inserted in place, and only the aggregates after it are recomputed.
    Older reports of a long curve are merged into runs, so that 100,000 of them take no more than 10,000: the minimum
    and mean at a step are then those of the preceding run's end, at most a five-hundredth earlier.

    Entry ``i`` ends at ``steps[i]`` with the reported value ``values[i]``; ``lows[i]``, ``sums[i]`` and ``counts[i]``
    cover all reports up to there. Modified by :meth:`add` alone.
    """

    __slots__ = ("_least", "_sign", "counts", "goal", "is_over", "lows", "number", "steps", "sums", "values")

    def __init__(self, number: int, goal: Goal, *, is_over: bool = False) -> None:
        self.number = number
        self.goal = goal
        self.is_over = is_over
        self._sign = 1.0 if goal is Goal.MINIMIZE else -1.0
        self.steps, self.counts = array("q"), array("q")
        self.values, self.lows, self.sums = array("d"), array("d"), array("d")
        self._least = array("d")  # minimum of each entry's own run

    @classmethod
    def of(cls, curve: Curve, goal: Goal) -> Trace:
        found = cls(curve.number, goal, is_over=curve.is_over)
        found.add(zip(curve.steps, curve.values, strict=True))
        return found

    def __bool__(self) -> bool:
        return bool(self.steps)

    def add(self, points: Iterable[tuple[int, float]]) -> None:
        """Add (step, value) in order of arrival; NaN and infinities are left out."""
        reported = {step: value * self._sign for step, value in points if math.isfinite(value)}
        if not reported:
            return
        steps = sorted(reported)
        if not self.steps or steps[0] > self.steps[-1]:
            self._append([(step, reported[step], reported[step], reported[step], 1) for step in steps])
        else:
            self._append(self._merged(reported, self._cut(steps[0])))
        if len(self.steps) > MAX_ENTRIES:
            self._thin()

    def low_until(self, step: int) -> float | None:
        """The minimum up to ``step``, inclusive; ``None``: the trial has not come so far, or reported nothing until
        then.
        """
        if self.steps[-1] < step:
            return None
        place = bisect_right(self.steps, step)
        return self.lows[place - 1] if place else None

    def mean_until(self, step: int) -> float | None:
        """The mean up to ``step``, inclusive."""
        place = bisect_right(self.steps, step)
        return self.sums[place - 1] / self.counts[place - 1] if place else None

    def value_at(self, step: int) -> float | None:
        """The last value up to ``step``; ``None``: the trial has not come so far, or reported nothing until then."""
        if self.steps[-1] < step:
            return None
        place = bisect_right(self.steps, step)
        return self.values[place - 1] if place else None

    @property
    def best_place(self) -> int:
        """The index of the entry in which the overall minimum was first reported."""
        return bisect_left(self.lows, -self.lows[-1], key=neg)

    def _append(self, entries: Iterable[tuple[int, float, float, float, int]]) -> None:
        """Append runs (step, value, minimum, sum, count)."""
        steps, values, least, sums, counts = zip(*entries, strict=True)
        low = (self.lows[-1],) if self.lows else ()
        sum_, count = (self.sums[-1], self.counts[-1]) if self.sums else (0.0, 0)
        self.lows.extend(list(accumulate((*low, *least), min))[len(low) :])
        self.sums.extend(list(accumulate(sums, initial=sum_))[1:])
        self.counts.extend(list(accumulate(counts, initial=count))[1:])
        self.steps.extend(steps)
        self.values.extend(values)
        self._least.extend(least)

    def _cut(self, step: int) -> list[tuple[int, float, float, float, int]]:
        """Remove and return the runs that end at ``step`` or later."""
        place = bisect_left(self.steps, step)
        sums = array("d", [self.sums[place - 1] if place else 0.0]) + self.sums[place:]
        counts = array("q", [self.counts[place - 1] if place else 0]) + self.counts[place:]
        tail = [
            (self.steps[i], self.values[i], self._least[i], sums[at + 1] - sums[at], counts[at + 1] - counts[at])
            for at, i in enumerate(range(place, len(self.steps)))
        ]
        for column in (self.steps, self.values, self._least, self.lows, self.sums, self.counts):
            del column[place:]
        return tail

    @staticmethod
    def _merged(
        reported: dict[int, float], tail: list[tuple[int, float, float, float, int]]
    ) -> list[tuple[int, float, float, float, int]]:
        """``tail`` merged with newly reported values. If a run of several ends at a step that is reported again, both
        values count: the old value is no longer known.
        """
        runs = {run[0]: run for run in tail}
        for step, value in reported.items():
            old = runs.get(step)
            if old is None or old[4] == 1:
                runs[step] = (step, value, value, value, 1)
            else:
                runs[step] = (step, value, min(value, old[2]), old[3] + value, old[4] + 1)
        return [runs[step] for step in sorted(runs)]

    def _thin(self) -> None:
        """Merge older entries into runs, each of a small fraction of all reports up to it."""
        first_new = len(self.steps) - _NEWEST
        runs, least, entries = [], array("d"), 0
        low = math.inf
        for place in range(first_new):
            low = min(low, self._least[place])
            size = self.counts[place + 1] - entries  # of the run including the next entry
            if size > max(1, self.counts[place] // _FINENESS) or place + 1 == first_new:
                runs.append(place)
                least.append(low)
                low, entries = math.inf, self.counts[place]
        places = [*runs, *range(first_new, len(self.steps))]
        self._least = least + self._least[first_new:]
        self.steps, self.counts = (array("q", map(old.__getitem__, places)) for old in (self.steps, self.counts))
        self.values, self.lows, self.sums = (
            array("d", map(old.__getitem__, places)) for old in (self.values, self.lows, self.sums)
        )
