"""When a trial that goes badly is ended early. Pure functions over curves; none knows a clock or a trial's job.

A curve is what a trial reported of the study's metric, by its own steps. Values are turned first so that less is better.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
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

    def turned(self, goal: Goal) -> Curve:
        """With values of which less is better."""
        if goal is Goal.MINIMIZE:
            return self
        return Curve(self.number, self.steps, tuple(-value for value in self.values), self.is_over)

    def best_until(self, step: int) -> float | None:
        """The least value up to ``step``, included; ``None``: it has not come so far, or told nothing until then."""
        if not self.steps or self.steps[-1] < step:
            return None
        return min(self.values[: bisect_right(self.steps, step)], default=None)

    def mean_until(self, step: int) -> float | None:
        """The mean up to ``step``, included."""
        seen = self.values[: bisect_right(self.steps, step)]
        return sum(seen) / len(seen) if seen else None


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
    if not curve or curve.steps[-1] < rule.min_steps:
        return None
    own = curve.turned(goal)
    rest = [other.turned(goal) for other in others if other and other.number != curve.number]
    match rule.rule:
        case StoppingRule.ASHA:
            return _halved(own, rest, rule.min_steps, rule)
        case StoppingRule.HYPERBAND:
            return _bracketed(own, rest, rule)
        case StoppingRule.MEDIAN:
            return _below_median(own, rest, rule)
        case StoppingRule.PATIENCE:
            return _out_of_patience(own, rule)
        case StoppingRule.DECAY_CURVE:
            return _decayed(own, rest, rule)


def _halved(curve: Curve, others: Sequence[Curve], first_rung: int, rule: Stopping) -> Verdict | None:
    """Asynchronous successive halving: at each rung a trial goes on only if it is among the best one in ``reduction``.

    Li et al., "A System for Massively Parallel Hyperparameter Tuning", 2020; with stopping, as Optuna and Ray have it.
    """
    rung = max(1, first_rung)
    while rung <= curve.steps[-1]:
        own = curve.best_until(rung)
        reached = [value for other in others if (value := other.best_until(rung)) is not None]
        if own is not None and len(reached) + 1 >= max(rule.reduction, rule.min_trials):
            kept = max(1, (len(reached) + 1) // rule.reduction)
            better = sum(value < own for value in reached)
            if better >= kept:
                return Verdict(
                    rung,
                    f"at step {rung} it was number {better + 1} of {len(reached) + 1} trials, and the best {kept} go on",
                )
        rung *= rule.reduction
    return None


def _bracketed(curve: Curve, others: Sequence[Curve], rule: Stopping) -> Verdict | None:
    """Hyperband: brackets that begin to halve later and later, each among its own trials."""
    longest = max(other.steps[-1] for other in (curve, *others))
    rungs = 1 + max(0, int(math.log(max(1.0, longest / max(1, rule.min_steps)), rule.reduction)))
    brackets = min(_MOST_BRACKETS, max(2, rungs))
    bracket = curve.number % brackets
    own = [other for other in others if other.number % brackets == bracket]
    return _halved(curve, own, max(1, rule.min_steps) * rule.reduction**bracket, rule)


def _below_median(curve: Curve, others: Sequence[Curve], rule: Stopping) -> Verdict | None:
    """Its best is worse than the median of the others' means up to the same step (Golovin et al., "Google Vizier", 2017)."""
    step = curve.steps[-1]
    means = [mean for other in others if other.steps[-1] >= step and (mean := other.mean_until(step)) is not None]
    own = min(curve.values)
    if len(means) < rule.min_trials or own <= median(means):
        return None
    return Verdict(step, f"up to step {step} its best was worse than the median of {len(means)} other trials")


def _out_of_patience(curve: Curve, rule: Stopping) -> Verdict | None:
    best_at = min(range(len(curve.values)), key=lambda place: (curve.values[place], place))
    waited = len(curve.values) - 1 - best_at
    if waited < rule.patience:
        return None
    return Verdict(curve.steps[-1], f"it has not become better in {waited} reports since step {curve.steps[best_at]}")


def _decayed(curve: Curve, others: Sequence[Curve], rule: Stopping) -> Verdict | None:
    """Its own curve, gone on with as a power law, ends surely worse than the best that another trial has reached."""
    finished = [other for other in others if other.is_over]
    if len(curve.steps) < _DECAY_POINTS or len(finished) < rule.min_trials:
        return None
    end = rule.max_steps or max(other.steps[-1] for other in finished)
    step = curve.steps[-1]
    if step >= end:
        return None
    forecast, doubt = _forecast(curve, end)
    likely = min(forecast - _DECAY_DOUBT * doubt, *curve.values)
    best = min(min(other.values) for other in finished)
    if likely <= best:
        return None
    return Verdict(step, f"its curve is not expected to reach the best trial's value by step {end}")


def _forecast(curve: Curve, end: int) -> tuple[float, float]:
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
