"""Parameter importance by PED-ANOVA: how much the best tenth of the trials differs from all trials along each
parameter.
"""

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
from scheduler.tuning.request import ObservedTrial

MIN_RESULTS: Final = 10
# Larger studies are sampled evenly: the answer changes little and takes a fraction of a second.
_MOST: Final = 2_000
# The evaluator needs at least five trials among the best.
_BEST: Final = 5
_QUANTILE: Final = 0.1


@dataclass(frozen=True, slots=True)
class ImportanceScore:
    """``importance``: those of a study sum to 1; ``None``: too few trials have the parameter. ``trials``: number of
    trials with it.
    """

    name: str
    importance: float | None
    trials: int


@dataclass(frozen=True, slots=True)
class Importance:
    """Parameters by importance, the most important first. ``reason``: why it is unknown; then ``parameters`` is
    empty.
    """

    trials: int
    parameters: Sequence[ImportanceScore] = ()
    reason: str = ""


def importance(space: Space, goals: Sequence[Goal], results: Sequence[ObservedTrial], metric: int | None) -> Importance:
    """Importance for one metric, by its position; ``None``: for the only metric, or for the trade-off of several."""
    count = len(results)
    if count < MIN_RESULTS:
        return Importance(count, reason=f"Not known: {count} trials have a result, and {MIN_RESULTS} are needed.")
    places = range(len(goals)) if metric is None else [metric]
    if all(len({trial.values[place] for trial in results}) == 1 for place in places):
        return Importance(count, reason=f"Not known: all {count} results are the same.")
    sample = _evenly(results)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # for experimental classes, and few trials in a branch
        study = optuna.create_study(
            directions=["minimize" if goals[place] is Goal.MINIMIZE else "maximize" for place in places]
        )
        distributions = distributions_of(space)
        for result in sample:
            trial = frozen(space, distributions, result.parameters, [result.values[place] for place in places], {})
            study._storage.create_new_trial(study._study_id, template_trial=trial)  # noqa: SLF001 (as for proposals)
        quantile = min(0.5, max(_QUANTILE, _BEST / len(sample)))
        scores = PedAnovaImportanceEvaluator(target_quantile=quantile).evaluate(study)
    return _weighed(space, len(results), sample, scores)


def _weighed(space: Space, count: int, sample: Sequence[ObservedTrial], scores: Mapping[str, float]) -> Importance:
    trials = {name: sum(name in trial.parameters for trial in sample) for name in space.parameters}
    # A parameter with few trials says as little as few trials do.
    reliable = {
        name: max(0.0, value) for name, value in scores.items() if trials[name] >= MIN_RESULTS and math.isfinite(value)
    }
    total = sum(reliable.values())
    if total <= 0:
        return Importance(count, reason="Not known: the best trials lie like all others along every parameter.")
    weights = [
        ImportanceScore(name, reliable.get(name, 0.0) / total if trials[name] >= MIN_RESULTS else None, trials[name])
        for name in space.parameters
    ]
    return Importance(
        count, sorted(weights, key=lambda weight: (weight.importance is None, -(weight.importance or 0), weight.name))
    )


def _evenly(results: Sequence[ObservedTrial]) -> Sequence[ObservedTrial]:
    if len(results) <= _MOST:
        return results
    return [results[round(place * (len(results) - 1) / (_MOST - 1))] for place in range(_MOST)]
