"""Trials that go on from the checkpoints of others: successive halving's promotions, and a population's exploits.

Pure functions over curves and results. Halving as ASHA has it (Li et al., MLSys 2020): who is among the best of a rung is
promoted as soon as that is known, nobody waits for the whole rung. Populations as in Jaderberg et al., 2017: the worst
members copy the weights of the best and change their parameters a little.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from random import Random  # noqa: TID251 (seeded by the study)
from typing import Any, Final

from trainmaster.studies import Fidelity, Goal, Parameter, ParameterType, Population, Scale, Space
from trainmaster.studies.space import bounds, value_at

from core.domain.studies.stopping import Curve

# Changes that break a constraint are drawn again so often; then the parent's own values are kept.
_REDRAWS: Final = 200


@dataclass(frozen=True, slots=True)
class RungResult:
    """What trial ``number`` came to at its rung, 0 the first. Less ``cost`` is better."""

    number: int
    rung: int
    cost: float


@dataclass(frozen=True, slots=True)
class Exploit:
    """Trial ``number``, among the worst at ``step``, gives its place to an heir of one of ``parents``, the best first."""

    number: int
    step: int
    parents: tuple[int, ...]
    sentence: str


def promotions(fidelity: Fidelity, results: Sequence[RungResult], promoted: AbstractSet[int]) -> list[RungResult]:
    """Who goes on to the next rung now, the highest rungs first, in each the best first.

    Args:
        results: of all trials that have one, with the rung that each ran at.
        promoted: numbers of those that were promoted before.
    """
    found: list[RungResult] = []
    for rung in reversed(range(len(fidelity.rungs) - 1)):
        ranked = sorted((one for one in results if one.rung == rung), key=lambda one: (one.cost, one.number))
        best = ranked[: len(ranked) // fidelity.reduction]
        found += [one for one in best if one.number not in promoted]
    return found


def exploits(population: Population, goal: Goal, running: Sequence[Curve], others: Sequence[Curve]) -> list[Exploit]:
    """Members that give up their place now, by number. ``others``: curves of trials that are over.

    A member is looked at each ``interval`` steps, with what it reached by then, beside all that came as far; and not before
    it has worked an interval itself. The same curves always give the same answer.
    """
    every = {curve.number: curve for curve in (*others, *running) if curve}
    found = []
    for curve in sorted((curve for curve in running if curve), key=lambda one: one.number):
        step = curve.steps[-1] // population.interval * population.interval
        if step < curve.steps[0] + population.interval - 1:
            continue
        costs = {one.number: cost for one in every.values() if (cost := _cost_at(one, step, goal)) is not None}
        few = int(len(costs) * population.quantile)
        if not few:
            continue
        ranked = sorted(costs, key=lambda number: (costs[number], number))
        best, worst = ranked[:few], ranked[-few:]
        # Of equal ones none is worse.
        if curve.number not in worst or costs[curve.number] <= costs[best[-1]]:
            continue
        place = ranked.index(curve.number) + 1
        sentence = f"it was {place} of {len(ranked)} at step {step}"
        found.append(Exploit(curve.number, step, tuple(best), sentence))
    return found


def _cost_at(curve: Curve, step: int, goal: Goal) -> float | None:
    """The last value that it told up to ``step``, turned so that less is better; ``None``: it was not there."""
    if curve.steps[-1] < step or curve.steps[0] > step:
        return None
    value = curve.values[bisect_right(curve.steps, step) - 1]
    return value if goal is Goal.MINIMIZE else -value


def perturbed(space: Space, point: Mapping[str, Any], population: Population, chance: Random) -> dict[str, Any]:
    """``point`` with each parameter a little larger or smaller, or, with ``population.resample``, drawn anew.

    Parameters that become active are drawn, those that no longer are go. If no change satisfies the constraints, ``point``.
    """
    for _ in range(_REDRAWS):
        found: dict[str, Any] = {}
        for name, parameter in space.parameters.items():
            if not space.is_active(name, found):
                continue
            if name not in point or chance.random() < population.resample:
                found[name] = value_at(parameter, chance.random())
            else:
                found[name] = _moved(parameter, point[name], population.perturb, chance)
        if space.holds(found) and json.dumps(found) != json.dumps(dict(point)):
            return found
    return dict(point)


def _moved(parameter: Parameter, value: Any, by: float, chance: Random) -> Any:
    """A neighbour of ``value``: of numbers by the factor ``by`` up or down, of values in order the next one."""
    up = chance.random() < 0.5
    if parameter.type is ParameterType.CATEGORICAL:
        return value
    if not parameter.has_range:
        ordered = sorted(parameter.values, key=float)
        place = ordered.index(value) + (1 if up else -1)
        return ordered[min(len(ordered) - 1, max(0, place))]
    low, high = bounds(parameter)
    if parameter.scale is Scale.REVERSE_LOG:  # near its maximum: what is left up to it is changed by the factor
        room = low + high - value
        moved = low + high - (room / (1 + by) if up else room * (1 + by))
    else:
        step = abs(value) or (high - low)  # zero times a factor stays zero
        moved = value * (1 + by if up else 1 / (1 + by)) if value > 0 else value + (step * by if up else -step * by)
    moved = min(high, max(low, moved))
    if parameter.type is ParameterType.INTEGER:
        whole = math.ceil(moved) if up else math.floor(moved)
        return int(min(high, max(low, whole)))
    return moved
