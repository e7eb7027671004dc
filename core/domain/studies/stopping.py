"""When a trial that goes badly is ended early. Pure functions over curves; none knows a clock or a trial's job.

A curve is what a trial reported of the study's metric, by its own steps. Values are turned first so that less is better.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from statistics import median
from typing import Final

from trainmaster.studies import Goal, Stopping, StoppingRule

# Hyperband's brackets: as many as there are rungs at least, and no more than this.
_MOST_BRACKETS: Final = 5
# Shapes of a learning curve that are tried: value = a + b * step^-c.
_DECAYS: Final = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0)
# A forecast from fewer points is a guess.
_DECAY_POINTS: Final = 8
# What the forecast may be wrong by, in standard deviations of what it missed so far.
_DECAY_DOUBT: Final = 2.0
# Of a curve that is kept for comparing.
KEPT_POINTS: Final = 200


@dataclass(frozen=True, slots=True)
class Curve:
    """``steps`` grow; each has one finite value. ``number``: the trial's. ``is_over``: it ran to its own end."""

    number: int
    steps: tuple[int, ...]
    values: tuple[float, ...]
    is_over: bool = False

    def __bool__(self) -> bool:
        return bool(self.steps)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Why a trial ends early: ``sentence`` is for people."""

    step: int
    sentence: str


def make_curve(number: int, points: Sequence[tuple[int, float]], *, is_over: bool = False) -> Curve:
    """A curve of points in any order: of a step that was told twice the last word counts; what is no number is left out."""
    told = {step: value for step, value in points if math.isfinite(value)}
    steps = sorted(told)
    return Curve(number, tuple(steps), tuple(told[step] for step in steps), is_over)


def thinned(curve: Curve) -> Curve:
    """At most ``KEPT_POINTS`` of its points, the first and the last among them."""
    count = len(curve.steps)
    if count <= KEPT_POINTS:
        return curve
    kept = sorted({round(place * (count - 1) / (KEPT_POINTS - 1)) for place in range(KEPT_POINTS)})
    return Curve(curve.number, tuple(curve.steps[i] for i in kept), tuple(curve.values[i] for i in kept), curve.is_over)


def judge(rule: Stopping, goal: Goal, curve: Curve, others: Sequence[Curve]) -> Verdict | None:
    """Whether the trial of ``curve`` ends here. ``others``: the curves of all others, running or over.

    The same curves always give the same answer, whatever the order of ``others``.
    """
    return judge_all(rule, goal, [curve], others).get(curve.number)


def judge_all(rule: Stopping, goal: Goal, running: Sequence[Curve], others: Sequence[Curve]) -> dict[int, Verdict]:
    """The same of each of ``running``, which are compared with each other, too; by number, of those that end."""
    every = {curve.number: curve for curve in (*others, *running) if curve}
    field = _Field({number: _Turned.of(curve, goal) for number, curve in every.items()}, rule)
    found: dict[int, Verdict] = {}
    for curve in running:
        if curve and curve.steps[-1] >= rule.min_steps:
            verdict = field.judged(field.curves[curve.number])
            if verdict is not None:
                found[curve.number] = verdict
    return found


@dataclass(frozen=True, slots=True)
class _Turned:
    """A curve of which less is better, with the least and the sum of all values up to each."""

    number: int
    steps: tuple[int, ...]
    values: tuple[float, ...]
    lows: tuple[float, ...]
    sums: tuple[float, ...]
    is_over: bool

    @classmethod
    def of(cls, curve: Curve, goal: Goal) -> _Turned:
        values = curve.values if goal is Goal.MINIMIZE else tuple(-value for value in curve.values)
        lows, sums = tuple(accumulate(values, min)), tuple(accumulate(values))
        return cls(curve.number, curve.steps, values, lows, sums, curve.is_over)

    def low_until(self, step: int) -> float | None:
        """The least value up to ``step``, included; ``None``: it has not come so far, or told nothing until then."""
        if self.steps[-1] < step:
            return None
        place = bisect_right(self.steps, step)
        return self.lows[place - 1] if place else None

    def mean_until(self, step: int) -> float | None:
        """The mean up to ``step``, included."""
        place = bisect_right(self.steps, step)
        return self.sums[place - 1] / place if place else None


class _Field:
    """All curves together, and what several of them are compared with."""

    def __init__(self, curves: Mapping[int, _Turned], rule: Stopping) -> None:
        self.curves = curves
        self._rule = rule
        self._reached: dict[tuple[int, int, int], list[float]] = {}

    def judged(self, curve: _Turned) -> Verdict | None:
        match self._rule.rule:
            case StoppingRule.ASHA:
                return self._halved(curve, max(1, self._rule.min_steps), brackets=1)
            case StoppingRule.HYPERBAND:
                brackets = self._brackets
                first = max(1, self._rule.min_steps) * self._rule.reduction ** (curve.number % brackets)
                return self._halved(curve, first, brackets=brackets)
            case StoppingRule.MEDIAN:
                return self._below_median(curve)
            case StoppingRule.PATIENCE:
                return _out_of_patience(curve, self._rule)
            case StoppingRule.DECAY_CURVE:
                return self._decayed(curve)

    @cached_property
    def _brackets(self) -> int:
        """Hyperband's: they begin to halve later and later, each among its own trials."""
        longest = max(curve.steps[-1] for curve in self.curves.values())
        rungs = 1 + max(0, int(math.log(max(1.0, longest / max(1, self._rule.min_steps)), self._rule.reduction)))
        return min(_MOST_BRACKETS, max(2, rungs))

    @cached_property
    def _finished(self) -> list[_Turned]:
        return [curve for curve in self.curves.values() if curve.is_over]

    def _halved(self, curve: _Turned, first_rung: int, *, brackets: int) -> Verdict | None:
        """Asynchronous successive halving: at each rung a trial goes on only if it is among the best one in ``reduction``.

        Li et al., "A System for Massively Parallel Hyperparameter Tuning", 2020; with stopping, as Optuna and Ray have it.
        """
        rule, rung = self._rule, first_rung
        while rung <= curve.steps[-1]:
            own = curve.low_until(rung)
            reached = self._at_rung(rung, brackets, curve.number % brackets)
            if own is not None and len(reached) >= max(rule.reduction, rule.min_trials):
                kept = max(1, len(reached) // rule.reduction)
                better = bisect_left(reached, own)
                if better >= kept:
                    place = f"number {better + 1} of {len(reached)} trials"
                    return Verdict(rung, f"at step {rung} it was {place}, and the best {kept} go on")
            rung *= rule.reduction
        return None

    def _at_rung(self, rung: int, brackets: int, bracket: int) -> list[float]:
        """What the trials of the bracket had reached there, the best first."""
        key = (rung, brackets, bracket)
        if key not in self._reached:
            own = (curve for curve in self.curves.values() if curve.number % brackets == bracket)
            self._reached[key] = sorted(low for curve in own if (low := curve.low_until(rung)) is not None)
        return self._reached[key]

    def _below_median(self, curve: _Turned) -> Verdict | None:
        """Its best is worse than the median of the others' means up to the same step (Golovin et al., "Google Vizier", 2017)."""
        step = curve.steps[-1]
        others = (one for one in self.curves.values() if one.number != curve.number and one.steps[-1] >= step)
        means = [mean for one in others if (mean := one.mean_until(step)) is not None]
        if len(means) < self._rule.min_trials or curve.lows[-1] <= median(means):
            return None
        return Verdict(step, f"up to step {step} its best was worse than the median of {len(means)} other trials")

    def _decayed(self, curve: _Turned) -> Verdict | None:
        """Its own curve, gone on with as a power law, ends surely worse than the best that another trial has reached."""
        finished = self._finished
        if len(curve.steps) < _DECAY_POINTS or len(finished) < self._rule.min_trials:
            return None
        end = self._rule.max_steps or max(one.steps[-1] for one in finished)
        step = curve.steps[-1]
        if step >= end:
            return None
        forecast, doubt = _forecast(curve, end)
        likely = min(forecast - _DECAY_DOUBT * doubt, curve.lows[-1])
        if likely <= min(one.lows[-1] for one in finished):
            return None
        return Verdict(step, f"its curve is not expected to reach the best trial's value by step {end}")


def _out_of_patience(curve: _Turned, rule: Stopping) -> Verdict | None:
    best_at = curve.values.index(curve.lows[-1])
    waited = len(curve.values) - 1 - best_at
    if waited < rule.patience:
        return None
    return Verdict(curve.steps[-1], f"it has not become better in {waited} reports since step {curve.steps[best_at]}")


def _forecast(curve: _Turned, end: int) -> tuple[float, float]:
    """The value at step ``end`` by the power law that fits best, and the standard deviation of what it misses."""
    fits: list[tuple[float, float]] = []
    count = len(curve.steps)
    for decay in _DECAYS:
        places = [max(1, step) ** -decay for step in curve.steps]
        mean_x, mean_y = sum(places) / count, sum(curve.values) / count
        spread = sum((x - mean_x) ** 2 for x in places)
        if spread == 0:
            continue
        slope = sum((x - mean_x) * (y - mean_y) for x, y in zip(places, curve.values, strict=True)) / spread
        missed = [y - mean_y - slope * (x - mean_x) for x, y in zip(places, curve.values, strict=True)]
        deviation = math.sqrt(sum(one * one for one in missed) / max(1, count - 2))
        fits.append((deviation, mean_y + slope * (max(1, end) ** -decay - mean_x)))
    if not fits:
        return curve.values[-1], 0.0
    deviation, value = min(fits)
    return value, deviation
