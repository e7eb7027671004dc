"""Trial schedulers, in Ray Tune's sense: rules that stop, promote or replace trials. Pure functions.

Early stopping (median, ASHA, Hyperband, patience, decay curve; Vizier's automated stopping) over learning curves, ASHA
promotions and PBT exploits over results. Search algorithms, which suggest the points of new trials, are in
``scheduler.tuning``.

A curve is what a trial reported of the study's metric, by its own steps. Values are negated where needed, so that lower
is better.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, MutableMapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cached_property
from statistics import median
from typing import Final

from trainmaster.studies import Fidelity, Goal, Population, Stopping, StoppingRule

from core.domain.studies.curves import Curve, Trace

# The number of Hyperband's brackets: the number of rungs if the rule has a maximum step, at most this; otherwise this
# default.
_MOST_BRACKETS: Final = 5
_BRACKETS: Final = 3
# Exponents of the power law that are tried: value = a + b * step^-c.
_DECAYS: Final = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0)
# fewer points give no forecast
_DECAY_POINTS: Final = 8
# Tolerance of the forecast, in standard deviations of its residuals.
_DECAY_DOUBT: Final = 2.0
# A longer curve is subsampled evenly to so many points for the fit.
_FITTED: Final = 200


@dataclass(frozen=True, slots=True)
class EarlyStop:
    """Why a trial is stopped early; ``sentence`` is shown to users."""

    step: int
    sentence: str


def decide_early_stops(
    rule: Stopping,
    goal: Goal,
    running: Sequence[Curve],
    others: Sequence[Curve],
    passed: MutableMapping[int, int] | None = None,
) -> dict[int, EarlyStop]:
    """Which of the trials of ``running`` are stopped here, by number; they are compared with each other and with
    ``others``, running or over. Deterministic, whatever the order of ``others``.
    """
    traces = [[Trace.of(curve, goal) for curve in curves] for curves in (running, others)]
    return decide_early_stops_of_traces(rule, traces[0], traces[1], {} if passed is None else passed)


def decide_early_stops_of_traces(
    rule: Stopping, running: Sequence[Trace], others: Sequence[Trace], passed: MutableMapping[int, int]
) -> dict[int, EarlyStop]:
    """The same for traces.

    ``passed``: number -> rung at which the trial was last allowed to go on; updated here, and to be passed to the next
    call.
    """
    field = _Field({curve.number: curve for curve in (*others, *running) if curve}, rule, passed)
    found: dict[int, EarlyStop] = {}
    for curve in running:
        if curve and curve.steps[-1] >= rule.min_steps:
            verdict = field.early_stop(curve)
            if verdict is not None:
                found[curve.number] = verdict
    return found


def brackets_of(rule: Stopping) -> int:
    """The number of Hyperband's brackets: later brackets begin to halve later, each among its own trials.

    It depends on the rule alone, so that a trial stays in its bracket whatever the others do.
    """
    if rule.max_steps is None:
        return _BRACKETS
    count, rung = 1, max(1, rule.min_steps) * rule.reduction
    while rung <= rule.max_steps and count < _MOST_BRACKETS:
        count, rung = count + 1, rung * rule.reduction
    return count


class _Field:
    """All curves together, and cached aggregates over them."""

    def __init__(self, curves: Mapping[int, Trace], rule: Stopping, passed: MutableMapping[int, int]) -> None:
        self.curves = curves
        self._rule = rule
        self._passed = passed
        self._reached: dict[tuple[int, int, int], list[float]] = {}

    def early_stop(self, curve: Trace) -> EarlyStop | None:
        match self._rule.rule:
            case StoppingRule.ASHA:
                return self._halved(curve, max(1, self._rule.min_steps), brackets=1)
            case StoppingRule.HYPERBAND:
                brackets = brackets_of(self._rule)
                first = max(1, self._rule.min_steps) * self._rule.reduction ** (curve.number % brackets)
                return self._halved(curve, first, brackets=brackets)
            case StoppingRule.MEDIAN:
                return self._below_median(curve)
            case StoppingRule.PATIENCE:
                return _out_of_patience(curve, self._rule)
            case StoppingRule.DECAY_CURVE:
                return self._decayed(curve)

    @cached_property
    def _finished(self) -> list[Trace]:
        return [curve for curve in self.curves.values() if curve.is_over]

    @cached_property
    def _best_finished(self) -> float:
        return min(curve.lows[-1] for curve in self._finished)

    @cached_property
    def _furthest(self) -> int:
        return max(curve.steps[-1] for curve in self._finished)

    def _halved(self, curve: Trace, first_rung: int, *, brackets: int) -> EarlyStop | None:
        """Asynchronous successive halving: at each rung a trial goes on only if it is in the best 1/``reduction``.

        Li et al., "A System for Massively Parallel Hyperparameter Tuning", 2020; the stopping variant, as in Optuna and
        Ray. A trial is judged once per rung, when it arrives there: later arrivals do not revoke the decision. A trial
        that passed several rungs between two passes is judged at the last of them.
        """
        rule, rung = self._rule, first_rung
        if rung > curve.steps[-1]:
            return None
        while rung * rule.reduction <= curve.steps[-1]:
            rung *= rule.reduction
        own = curve.low_until(rung)
        if own is None or self._passed.get(curve.number, 0) >= rung:
            return None
        reached = self._at_rung(rung, brackets, curve.number % brackets)
        survivors = max(1, len(reached) // rule.reduction)
        better = bisect_left(reached, own)
        if better >= survivors and len(reached) >= max(rule.reduction, rule.min_trials):
            place = f"number {better + 1} of {len(reached)} trials"
            return EarlyStop(rung, f"at step {rung} it was {place}, and the best {survivors} go on")
        self._passed[curve.number] = rung
        return None

    def _at_rung(self, rung: int, brackets: int, bracket: int) -> list[float]:
        """The values of the bracket's trials at the rung, the best first."""
        key = (rung, brackets, bracket)
        if key not in self._reached:
            own = (curve for curve in self.curves.values() if curve.number % brackets == bracket)
            self._reached[key] = sorted(low for curve in own if (low := curve.low_until(rung)) is not None)
        return self._reached[key]

    def _below_median(self, curve: Trace) -> EarlyStop | None:
        """Its best is worse than the median of the others' means up to the same step (Golovin et al., "Google Vizier",
        2017).
        """
        step = curve.steps[-1]
        others = (other for other in self.curves.values() if other.number != curve.number and other.steps[-1] >= step)
        means = [mean for other in others if (mean := other.mean_until(step)) is not None]
        if len(means) < self._rule.min_trials or curve.lows[-1] <= median(means):
            return None
        return EarlyStop(step, f"up to step {step} its best was worse than the median of {len(means)} other trials")

    def _decayed(self, curve: Trace) -> EarlyStop | None:
        """Its curve, extrapolated as a power law, ends significantly worse than the best value of another trial."""
        if len(curve.steps) < _DECAY_POINTS or len(self._finished) < self._rule.min_trials:
            return None
        end = self._rule.max_steps or self._furthest
        step = curve.steps[-1]
        if step >= end:
            return None
        forecast, doubt = _forecast(curve, end)
        likely = min(forecast - _DECAY_DOUBT * doubt, curve.lows[-1])
        if likely <= self._best_finished:
            return None
        return EarlyStop(step, f"its curve is not expected to reach the best trial's value by step {end}")


def _out_of_patience(curve: Trace, rule: Stopping) -> EarlyStop | None:
    best_at = curve.best_place
    waited = curve.counts[-1] - curve.counts[best_at]
    if waited < rule.patience:
        return None
    return EarlyStop(curve.steps[-1], f"it has not become better in {waited} reports since step {curve.steps[best_at]}")


def _forecast(curve: Trace, end: int) -> tuple[float, float]:
    """The value at step ``end`` by the best-fitting power law, and the standard deviation of its residuals."""
    fits: list[tuple[float, float]] = []
    last = len(curve.steps) - 1
    count = min(last + 1, _FITTED)
    chosen = [round(place * last / (count - 1)) for place in range(count)]
    steps, values = [max(1, curve.steps[i]) for i in chosen], [curve.values[i] for i in chosen]
    mean_y = sum(values) / count
    for decay in _DECAYS:
        places = [step**-decay for step in steps]
        mean_x = sum(places) / count
        spread = sum((x - mean_x) ** 2 for x in places)
        if spread == 0:
            continue
        slope = sum((x - mean_x) * (y - mean_y) for x, y in zip(places, values, strict=True)) / spread
        missed = [y - mean_y - slope * (x - mean_x) for x, y in zip(places, values, strict=True)]
        deviation = math.sqrt(sum(residual * residual for residual in missed) / max(1, count - 2))
        fits.append((deviation, mean_y + slope * (max(1, end) ** -decay - mean_x)))
    if not fits:
        return curve.values[-1], 0.0
    deviation, value = min(fits)
    return value, deviation


@dataclass(frozen=True, slots=True)
class RungResult:
    """The result of trial ``number`` at its rung, counted from 0. Lower ``cost`` is better."""

    number: int
    rung: int
    cost: float


@dataclass(frozen=True, slots=True)
class Exploit:
    """Trial ``number``, among the worst at ``step``, is replaced by a clone of one of ``parents``, the best first."""

    number: int
    step: int
    parents: tuple[int, ...]
    sentence: str


def due_promotions(fidelity: Fidelity, results: Sequence[RungResult], promoted: AbstractSet[int]) -> list[RungResult]:
    """The trials to promote to the next rung now, highest rungs first, in each the best first.

    Asynchronous successive halving (Li et al., MLSys 2020): a trial among the best of its rung is promoted as soon as
    that is known, without waiting for the whole rung.

    Args:
        results: of all trials that have one, with the rung of each.
        promoted: numbers of the trials promoted before.
    """
    found: list[RungResult] = []
    for rung in reversed(range(len(fidelity.rungs) - 1)):
        ranked = sorted(
            (result for result in results if result.rung == rung), key=lambda result: (result.cost, result.number)
        )
        best = ranked[: len(ranked) // fidelity.reduction]
        found += [result for result in best if result.number not in promoted]
    return found


def pbt_replacements(population: Population, running: Sequence[Trace], others: Sequence[Trace]) -> list[Exploit]:
    """The members to replace now, by number. ``others``: traces of ended trials.

    Population-based training (Jaderberg et al., 2017): the worst members copy the weights of the best and perturb their
    parameters.

    A member is evaluated every ``interval`` steps, by its value at that step, against all members that came as far; not
    before it has trained for an interval itself. Members that lag by an interval or more (new ones, or on slower GPUs)
    are not waited for, but count for the size of the quantile while they run. Trials that have trained to the end leave
    no checkpoint to clone. Deterministic.
    """
    every = {curve.number: curve for curve in (*others, *running) if curve}
    found: dict[int, Exploit] = {}
    for curve in sorted((curve for curve in running if curve), key=lambda trace: (trace.steps[-1], trace.number)):
        step = curve.steps[-1] // population.interval * population.interval
        if step < curve.steps[0] + population.interval - 1:
            continue
        costs = {trace.number: cost for trace in every.values() if (cost := trace.value_at(step)) is not None}
        late = {trace.number for trace in running if trace and trace.steps[-1] <= step - population.interval}
        behind = len(late - costs.keys() - found.keys())
        few = min(int((len(costs) + behind) * population.quantile), len(costs) // 2)
        if not few:
            continue
        ranked = sorted(costs, key=lambda number: (costs[number], number))
        best, worst = ranked[:few], ranked[-few:]
        # Ties are not worse.
        if curve.number not in worst or costs[curve.number] <= costs[best[-1]]:
            continue
        parents = tuple(number for number in best if not every[number].is_over)
        if not parents:
            continue
        place = ranked.index(curve.number) + 1
        sentence = f"it was {place} of {len(ranked)} at step {step}"
        found[curve.number] = Exploit(curve.number, step, parents, sentence)
    return [found[number] for number in sorted(found)]
