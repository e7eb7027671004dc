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

from scheduler.tuning.engine import frozen
from scheduler.tuning.propose import Observed

FEWEST: Final = 10
# Of more, so many that lie evenly over the study: the answer changes little, and takes a fraction of a second.
_MOST: Final = 2_000
# The evaluator wants five trials among the best at least.
_BEST: Final = 5
_QUANTILE: Final = 0.1


@dataclass(frozen=True, slots=True)
class Weight:
    """``importance``: all of a study are 1 together. ``trials``: how many have the parameter."""

    name: str
    importance: float
    trials: int


@dataclass(frozen=True, slots=True)
class Importance:
    """The most important first. ``reason``: why it is not known; then ``parameters`` is empty."""

    trials: int
    parameters: Sequence[Weight] = ()
    reason: str = ""


def importance(space: Space, goals: Sequence[Goal], results: Sequence[Observed], metric: int | None) -> Importance:
    """Of one metric, by its place; ``None``: of the only one, or of being good in all of several."""
    count = len(results)
    if count < FEWEST:
        return Importance(count, reason=f"Not known: {count} trials have a result, and {FEWEST} are needed.")
    places = range(len(goals)) if metric is None else [metric]
    if all(len({one.values[place] for one in results}) == 1 for place in places):
        return Importance(count, reason=f"Not known: all {count} results are the same.")
    kept = _evenly(results)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of experimental classes, and of few trials in a branch
        study = optuna.create_study(
            directions=["minimize" if goals[place] is Goal.MINIMIZE else "maximize" for place in places]
        )
        for one in kept:
            trial = frozen(space, one.parameters, [one.values[place] for place in places], {})
            study._storage.create_new_trial(study._study_id, template_trial=trial)  # noqa: SLF001 (as for proposals)
        quantile = min(0.5, max(_QUANTILE, _BEST / len(kept)))
        found = PedAnovaImportanceEvaluator(target_quantile=quantile).evaluate(study)
    return _weighed(space, results, found)


def _weighed(space: Space, results: Sequence[Observed], found: Mapping[str, float]) -> Importance:
    total = sum(value for value in found.values() if math.isfinite(value))
    if total <= 0:
        return Importance(len(results), reason="Not known: the best trials lie like all others along every parameter.")
    weights = [
        Weight(name, max(0.0, found.get(name, 0.0)) / total, sum(name in one.parameters for one in results))
        for name in space.parameters
    ]
    return Importance(len(results), sorted(weights, key=lambda one: (-one.importance, one.name)))


def _evenly(results: Sequence[Observed]) -> Sequence[Observed]:
    if len(results) <= _MOST:
        return results
    return [results[round(place * (len(results) - 1) / (_MOST - 1))] for place in range(_MOST)]
