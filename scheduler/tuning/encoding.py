"""Encoding of points as rows of numbers: the position of each value in its parameter's range, on its scale."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from trainmaster.studies import Parameter, ParameterType, Scale, Space
from trainmaster.studies.space import bounds, value_at

# The largest number below 1: positions are below 1.
_LAST: Final = math.nextafter(1.0, 0.0)
# Position of a parameter that the point lacks.
_NOWHERE: Final = 0.5

Rows = NDArray[np.float64]


class UnitCube:
    """The space as a unit cube. A categorical parameter is encoded by the value's number instead, which
    has no order.
    """

    def __init__(self, space: Space) -> None:
        self.space = space
        self.is_categorical: NDArray[np.bool_] = np.array(
            [parameter.type is ParameterType.CATEGORICAL for parameter in space.parameters.values()], dtype=bool
        )
        # Number of values of each categorical parameter; 0 for numbers.
        self.choices = [
            len(parameter.values) if parameter.type is ParameterType.CATEGORICAL else 0
            for parameter in space.parameters.values()
        ]

    def rows(self, points: Sequence[Mapping[str, Any]]) -> Rows:
        """Encode points; shape (points, parameters)."""
        rows = [
            [_position(parameter, point.get(name)) for name, parameter in self.space.parameters.items()]
            for point in points
        ]
        return np.array(rows, dtype=np.float64).reshape(len(points), len(self.choices))

    def point(self, row: NDArray[np.float64]) -> dict[str, Any]:
        """Decode the nearest point; inactive parameters are left out."""
        point: dict[str, Any] = {}
        for (name, parameter), position in zip(self.space.parameters.items(), row, strict=True):
            if self.space.is_active(name, point):
                point[name] = _value(parameter, float(position))
        return point


def _position(parameter: Parameter, value: Any) -> float:
    if value is None:
        return _NOWHERE
    if parameter.type is ParameterType.CATEGORICAL:
        equal_choices = (
            position
            for position, choice in enumerate(parameter.values)
            if choice == value and type(choice) is type(value)
        )
        exact = next(equal_choices, None)
        return float(parameter.values.index(value) if exact is None else exact)
    if parameter.type is ParameterType.DISCRETE:
        ordered = sorted(parameter.values)
        return (ordered.index(value) + 0.5) / len(ordered)
    low, high = bounds(parameter)
    if parameter.scale is Scale.REVERSE_LOG:
        value = min(high, max(low, low + high - value))
    if parameter.type is ParameterType.INTEGER:  # an integer covers half a unit below and above it
        low, high = low - 0.5, high + 0.5
    if parameter.scale is not Scale.LINEAR:
        value, low, high = math.log(value), math.log(low), math.log(high)
    # Halves first: the difference of two large numbers may be infinite.
    position = _NOWHERE if low == high else (value / 2 - low / 2) / (high / 2 - low / 2)
    position = 1 - position if parameter.scale is Scale.REVERSE_LOG else position
    return min(1.0, max(0.0, position))


def _value(parameter: Parameter, position: float) -> Any:
    if parameter.type is ParameterType.CATEGORICAL:
        return parameter.values[int(position)]
    position = min(_LAST, max(0.0, position))
    if parameter.type is ParameterType.DISCRETE:
        ordered = sorted(parameter.values)
        return ordered[int(position * len(ordered))]
    return value_at(parameter, position)
