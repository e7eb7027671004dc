"""Results of a study's trials: the best, the Pareto front, and the progress of the best."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from trainmaster.studies import Goal

# So many equal results of different points are hardly a coincidence.
_SUSPICIOUS: Final = 4


@dataclass(frozen=True, slots=True)
class TrialResult:
    """One trial with its final values, one for each metric of the study in order."""

    number: int
    values: tuple[float, ...]

    def costs(self, goals: Sequence[Goal]) -> tuple[float, ...]:
        """The values with the sign changed where needed, so that lower is better."""
        return tuple(value if goal is Goal.MINIMIZE else -value for value, goal in zip(self.values, goals, strict=True))


def values_of(reported: Mapping[str, float | None] | None, names: Sequence[str]) -> tuple[float, ...] | None:
    """The values of the study's metrics in order; ``None``: one is missing, or not finite."""
    found = [(reported or {}).get(name) for name in names]
    values = [value for value in found if value is not None and math.isfinite(value)]
    return tuple(values) if len(values) == len(found) else None


def equal_words(results: Iterable[tuple[Mapping[str, Any], tuple[float, ...]]]) -> str:
    """A warning if all points of a study gave exactly the same result; empty: they did not, or are few.

    ``results``: each trial's parameters and values.
    """
    points: set[str] = set()
    same: tuple[float, ...] | None = None
    for parameters, values in results:
        same = values if same is None else same
        if values != same:
            return ""
        if len(points) < _SUSPICIOUS:
            points.add(json.dumps(parameters, sort_keys=True))
    if len(points) < _SUSPICIOUS:
        return ""
    return (
        "All its results are exactly the same, though the parameters differ: see whether the script reads its "
        "parameters."
    )


def best(results: Sequence[TrialResult], goals: Sequence[Goal]) -> TrialResult | None:
    """The best by the first metric; the first of equal ones."""
    return min(results, key=lambda result: (result.costs(goals)[0], result.number), default=None)


def pareto(results: Sequence[TrialResult], goals: Sequence[Goal]) -> list[TrialResult]:
    """The non-dominated results, by number. With one metric: the best and its equals."""
    # Sorted by cost, no result is dominated by a later one, so each is compared with the front alone.
    ordered = sorted(results, key=lambda result: (result.costs(goals), result.number))
    front: list[tuple[tuple[float, ...], TrialResult]] = []
    for result in ordered:
        costs = result.costs(goals)
        if not any(_dominates(other, costs) for other, _ in front):
            front.append((costs, result))
    return sorted((result for _, result in front), key=lambda result: result.number)


def _dominates(left: Sequence[float], right: Sequence[float]) -> bool:
    return left != right and all(a <= b for a, b in zip(left, right, strict=True))


def best_so_far(results: Sequence[TrialResult], goal: Goal) -> list[tuple[int, float]]:
    """(number, value) of each trial that improved the best value of the first metric, in order of numbers."""
    curve: list[tuple[int, float]] = []
    for result in sorted(results, key=lambda result: result.number):
        value = result.values[0]
        if not curve or (value < curve[-1][1] if goal is Goal.MINIMIZE else value > curve[-1][1]):
            curve.append((result.number, value))
    return curve


def regret(results: Sequence[TrialResult], goal: Goal) -> list[tuple[int, float]]:
    """(number, distance of the best so far from the overall best), never negative, in order of numbers."""
    curve = best_so_far(results, goal)
    return [(number, abs(value - curve[-1][1])) for number, value in curve]
