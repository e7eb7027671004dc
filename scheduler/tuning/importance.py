"""Which parameters matter, by PED-ANOVA: how differently the best tenth of the trials lies along each from all of them."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import optuna
from optuna.importance import PedAnovaImportanceEvaluator
from trainmaster.studies import Goal, Space

from scheduler.tuning.engine import distributions_of, frozen
from scheduler.tuning.request import Observation

FEWEST: Final = 10
# Of more, so many that lie evenly over the study: the answer changes little, and takes a fraction of a second.
_MOST: Final = 2_000
# The evaluator wants five trials among the best at least.
_BEST: Final = 5
_QUANTILE: Final = 0.1


@dataclass(frozen=True, slots=True)
class ParameterImportance:
    """``importance``: all of a study are 1 together; ``None``: too few trials have it. ``trials``: those with the parameter
    that the figure comes from.
    """

    name: str
    importance: float | None
    trials: int


@dataclass(frozen=True, slots=True)
class Importance:
    """The most important first. ``reason``: why it is not known; then ``parameters`` is empty."""

    trials: int
    parameters: Sequence[ParameterImportance] = ()
    reason: str = ""


def importance(space: Space, goals: Sequence[Goal], results: Sequence[Observation], metric: int | None) -> Importance:
    """Of one metric, by its place; ``None``: of the only one, or of being good in all of several."""
    count = len(results)
    if count < FEWEST:
        return Importance(count, reason=f"Not known: {count} trials have a result, and {FEWEST} are needed.")
    places = range(len(goals)) if metric is None else [metric]
    if all(len({trial.values[place] for trial in results}) == 1 for place in places):
        return Importance(count, reason=f"Not known: all {count} results are the same.")
    sample = _evenly(results)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of experimental classes, and of few trials in a branch
        study = optuna.create_study(
            directions=["minimize" if goals[place] is Goal.MINIMIZE else "maximize" for place in places]
        )
        distributions = distributions_of(space)
        for result in sample:
            trial = frozen(space, distributions, result.parameters, [result.values[place] for place in places], {})
            study._storage.create_new_trial(study._study_id, template_trial=trial)  # noqa: SLF001 (as for proposals)
        quantile = min(0.5, max(_QUANTILE, _BEST / len(sample)))
        found = PedAnovaImportanceEvaluator(target_quantile=quantile).evaluate(study)
    return _weighed(space, len(results), sample, found)


def _weighed(space: Space, count: int, sample: Sequence[Observation], found: Mapping[str, float]) -> Importance:
    trials = {name: sum(name in trial.parameters for trial in sample) for name in space.parameters}
    # A parameter that few trials have says as little as few trials do.
    known = {name: max(0.0, value) for name, value in found.items() if trials[name] >= FEWEST and math.isfinite(value)}
    total = sum(known.values())
    if total <= 0:
        return Importance(count, reason="Not known: the best trials lie like all others along every parameter.")
    weights = [
        ParameterImportance(name, known.get(name, 0.0) / total if trials[name] >= FEWEST else None, trials[name])
        for name in space.parameters
    ]
    return Importance(
        count, sorted(weights, key=lambda weight: (weight.importance is None, -(weight.importance or 0), weight.name))
    )


def _evenly(results: Sequence[Observation]) -> Sequence[Observation]:
    if len(results) <= _MOST:
        return results
    return [results[round(place * (len(results) - 1) / (_MOST - 1))] for place in range(_MOST)]
