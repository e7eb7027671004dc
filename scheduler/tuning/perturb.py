"""Explore step of population based training: parameters of a better trial, slightly changed."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from random import Random  # noqa: TID251 (seeded by the study)
from typing import Any, Final

from trainmaster.studies import Parameter, ParameterType, Population, Scale, Space
from trainmaster.studies.space import bounds, value_at

# Redraws of changes that break a constraint; then the parent's values remain.
_REDRAWS: Final = 200


def perturbed(space: Space, point: Mapping[str, Any], population: Population, chance: Random) -> dict[str, Any]:
    """``point`` with each parameter perturbed up or down or, with probability ``population.resample``, resampled.

    Newly active parameters are drawn, inactive ones dropped. If no change satisfies the constraints: ``point``.
    """
    for _ in range(_REDRAWS):
        moved: dict[str, Any] = {}
        for name, parameter in space.parameters.items():
            if not space.is_active(name, moved):
                continue
            if name not in point or chance.random() < population.resample:
                moved[name] = value_at(parameter, chance.random())
            else:
                moved[name] = _moved(parameter, point[name], population.perturb, chance)
        if space.holds(moved) and json.dumps(moved) != json.dumps(dict(point)):
            return moved
    return dict(point)


def _moved(parameter: Parameter, value: Any, by: float, chance: Random) -> Any:
    """A neighbour of ``value``: numbers times or divided by the factor ``1 + by``, ordered values the next one."""
    up = chance.random() < 0.5
    if parameter.type is ParameterType.CATEGORICAL:
        return value
    if not parameter.has_range:
        ordered = sorted(parameter.values, key=float)
        place = ordered.index(value) + (1 if up else -1)
        return ordered[min(len(ordered) - 1, max(0, place))]
    low, high = bounds(parameter)
    if parameter.scale is Scale.REVERSE_LOG:  # near its maximum: the distance to it is scaled by the factor
        room = low + high - value
        moved = low + high - (room / (1 + by) if up else room * (1 + by))
    else:
        step = abs(value) or (high - low)  # zero times a factor stays zero
        moved = value * (1 + by if up else 1 / (1 + by)) if value > 0 else value + (step * by if up else -step * by)
    moved = min(high, max(low, moved))
    if parameter.type is ParameterType.INTEGER:
        rounded = math.ceil(moved) if up else math.floor(moved)
        return int(min(high, max(low, rounded)))
    return moved
