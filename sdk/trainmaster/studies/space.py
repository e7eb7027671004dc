"""The search space: active parameters, their values, and points. Pure and deterministic."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Final

from trainmaster.studies.constraints import Constraint, parse_constraint
from trainmaster.studies.model import Parameter, ParameterType, Scale, StudySpec

Point = dict[str, Any]
# A space with more points counts as infinite.
COUNTED: Final = 1_000_000
_SHOWN_CHARS: Final = 60  # of an invalid value
# The R_d sequence, whose strides come from a generalized golden ratio; needs no tables.
# Roberts, "The unreasonable effectiveness of quasirandom sequences", 2018.
_ROOT_STEPS: Final = 40


@dataclass(frozen=True)
class Space:
    """``parameters`` are in topological order: a parent precedes the parameters that depend on it."""

    parameters: Mapping[str, Parameter]
    constraints: tuple[Constraint, ...] = ()

    @classmethod
    def of(cls, spec: StudySpec) -> Space:
        return cls(in_order(spec.parameters), tuple(parse_constraint(text) for text in spec.constraints))

    @cached_property
    def is_conditional(self) -> bool:
        return any(parameter.when for parameter in self.parameters.values())

    @cached_property
    def size(self) -> int | None:
        """Upper bound of the number of points; ``None``: more than ``COUNTED``."""
        count = 1
        for parameter in self.parameters.values():
            values = value_count(parameter)
            if values is None or (count := count * values) > COUNTED:
                return None
        return count

    def is_active(self, name: str, chosen: Mapping[str, Any]) -> bool:
        """Whether the parameter ``name`` is active in a trial with the values ``chosen``."""
        when = self.parameters[name].when
        return all(parent in chosen and _is_among(chosen[parent], values) for parent, values in when.items())

    def holds(self, point: Mapping[str, Any]) -> bool:
        """Whether ``point`` satisfies all constraints."""
        return all(constraint.holds(point) for constraint in self.constraints)

    def from_unit(self, unit: Sequence[float]) -> Point:
        """The point at ``unit``: a number in [0, 1) for each parameter, in order. Inactive parameters are left out."""
        point: Point = {}
        for (name, parameter), place in zip(self.parameters.items(), unit, strict=True):
            if self.is_active(name, point):
                point[name] = value_at(parameter, place)
        return point

    def grid(self) -> Iterator[Point]:
        """All feasible grid points, each once."""
        points = (self.grid_point(place) for place in range(self.grid_size))
        return (point for point in points if point is not None)

    @cached_property
    def grid_size(self) -> int:
        """Number of grid indices; not every index is a point."""
        return math.prod(len(values) for values in self._axes.values())

    def grid_point(self, place: int) -> Point | None:
        """The point with index ``place``, from 0; ``None``: it violates a constraint, or another index has the same
        point.

        The last parameter varies fastest. An inactive parameter has only its first digit.
        """
        digits: dict[str, int] = {}
        for name, values in reversed(self._axes.items()):
            place, digits[name] = divmod(place, len(values))
        point: Point = {}
        for name, values in self._axes.items():
            if self.is_active(name, point):
                point[name] = values[digits[name]]
            elif digits[name]:
                return None
        return point if self.holds(point) else None

    @cached_property
    def _axes(self) -> dict[str, tuple[Any, ...]]:
        return {name: grid_values(parameter) for name, parameter in self.parameters.items()}

    def of_names(self, names: Iterable[str]) -> Space:
        """The subspace of these parameters and all that they depend on, without constraints."""
        selected, left = set[str](), set(names)
        while left:
            name = left.pop()
            selected.add(name)
            left |= self.parameters[name].when.keys() - selected
        return Space({name: parameter for name, parameter in self.parameters.items() if name in selected})

    def written(self, point: Mapping[str, Any]) -> Point:
        """A valid point in canonical form: integers as ``int``, in the order of the parameters."""
        return {name: _written(parameter, point[name]) for name, parameter in self.parameters.items() if name in point}

    def fault(self, point: Mapping[str, Any]) -> tuple[str, str] | None:
        """The first error of a user's point: the parameter (empty: the whole point) and a sentence."""
        return next(self._faults(point), None)

    def faults(self, point: Mapping[str, Any]) -> list[tuple[str, str]]:
        """All errors of a user's point."""
        return list(self._faults(point))

    def _faults(self, point: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        is_whole = True
        for name, sentence in value_faults(self.parameters, self.parameters.keys(), point):
            is_whole = False
            yield name, sentence
        for name in self.parameters:
            is_active = self.is_active(name, point)
            if name in point and not is_active:
                is_whole = False
                yield name, "is inactive with these values of its parents"
            elif name not in point and is_active:
                is_whole = False
                yield name, "is missing"
        for constraint in self.constraints if is_whole else ():
            if not constraint.holds(point):
                yield "", f"violates the constraint {constraint.text}"


def value_faults(
    parameters: Mapping[str, Parameter], names: Collection[str], point: Mapping[str, Any]
) -> list[tuple[str, str]]:
    """Errors of single values of a point. ``names``: of all parameters, including invalid ones."""
    unknown = [(name, "is not a parameter of the study") for name in point if name not in names]
    outside = [
        (name, f"{_shown(point[name])} is not in its range")
        for name, parameter in parameters.items()
        if name in point and not takes(parameter, point[name])
    ]
    return [*unknown, *outside]


def _shown(value: Any) -> str:
    """``repr``, truncated."""
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARS else f"{text[: _SHOWN_CHARS - 1]}…"


def cycles(parameters: Mapping[str, Parameter]) -> list[list[str]]:
    """Groups of parameters that depend on each other in cycles (strongly connected components), as written."""
    cycles: list[list[str]] = []
    parents = {
        name: [parent for parent in parameter.when if parent in parameters] for name, parameter in parameters.items()
    }
    reachable = {name: _reachable(parents, name) for name in parents}
    for name in parents:
        if name in reachable[name] and not any(name in cycle for cycle in cycles):
            cycles.append([other for other in parents if other in reachable[name] and name in reachable[other]])
    return cycles


def _reachable(parents: Mapping[str, Sequence[str]], start: str) -> set[str]:
    """All parameters that ``start`` depends on, directly or indirectly."""
    visited: set[str] = set()
    front = list(parents[start])
    while front:
        name = front.pop()
        if name not in visited:
            visited.add(name)
            front += parents[name]
    return visited


def in_order(parameters: Mapping[str, Parameter]) -> dict[str, Parameter]:
    """Topological order: parents first, otherwise as written. Raises ``ValueError``: a cycle, or unknown parents."""
    ordered: dict[str, Parameter] = {}
    left = dict(parameters)
    while left:
        ready = [name for name, parameter in left.items() if parameter.when.keys() <= ordered.keys()]
        if not ready:
            raise ValueError(", ".join(left))
        for name in ready:
            ordered[name] = left.pop(name)
    return ordered


def value_count(parameter: Parameter) -> int | None:
    """Number of values; ``None``: infinite."""
    if not parameter.has_range:
        return len(parameter.values)
    low, high = bounds(parameter)
    if parameter.type is ParameterType.INTEGER:
        return int(high - low) + 1
    return 1 if low == high else None


def grid_count(parameter: Parameter) -> int | None:
    """Number of grid values, without computing them where possible; ``None``: infinite."""
    if parameter.has_range and parameter.steps is not None:
        return len(grid_values(parameter))
    return value_count(parameter)


def bounds(parameter: Parameter) -> tuple[float, float]:
    """Both ends of a float's or integer's range, inclusive."""
    if parameter.min is None or parameter.max is None:
        raise ValueError("a parameter without a range has no bounds")
    return parameter.min, parameter.max


def value_at(parameter: Parameter, place: float) -> Any:
    """Map ``place`` in [0, 1) to a value, on the parameter's scale."""
    if not parameter.has_range:
        return parameter.values[min(len(parameter.values) - 1, int(place * len(parameter.values)))]
    low, high = bounds(parameter)
    if parameter.type is ParameterType.INTEGER:
        if parameter.scale is not Scale.LINEAR:
            is_mirrored = parameter.scale is Scale.REVERSE_LOG
            # Each integer n stands for the interval from n - 0.5 to n + 0.5.
            value = math.exp(_between(math.log(low - 0.5), math.log(high + 0.5), 1 - place if is_mirrored else place))
            nearest = int(min(high, max(low, round(value))))
            return int(low + high) - nearest if is_mirrored else nearest
        return int(min(high, low + math.floor(place * (high - low + 1))))
    return _on_scale(parameter.scale, low, high, place)


def grid_values(parameter: Parameter) -> tuple[Any, ...]:
    """Grid values: all values; with ``steps``, so many values evenly spaced on the scale."""
    if not parameter.has_range:
        return parameter.values
    low, high = bounds(parameter)
    if parameter.type is ParameterType.INTEGER and parameter.steps is None:
        return tuple(range(int(low), int(high) + 1))
    if low == high:
        return (int(low) if parameter.type is ParameterType.INTEGER else low,)
    count = parameter.steps or 1
    values = [_even(parameter, number / max(1, count - 1)) for number in range(count)]
    return tuple(dict.fromkeys(values))


def takes(parameter: Parameter, value: Any) -> bool:
    """Whether ``value`` is valid for the parameter."""
    if not parameter.has_range:
        return _is_among(value, parameter.values)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    low, high = bounds(parameter)
    return low <= value <= high and (parameter.type is ParameterType.FLOAT or float(value).is_integer())


def _written(parameter: Parameter, value: Any) -> Any:
    if not parameter.has_range:
        return next(own for own in parameter.values if _is_among(value, (own,)))
    return int(value) if parameter.type is ParameterType.INTEGER else float(value)


def spread(dimensions: int, number: int) -> tuple[float, ...]:
    """Point ``number`` (from 0) of a low-discrepancy sequence in the unit cube."""
    return tuple((0.5 + (number + 1) * stride) % 1.0 for stride in _strides(dimensions))


@lru_cache(maxsize=64)
def _strides(dimensions: int) -> tuple[float, ...]:
    root = 2.0
    for _ in range(_ROOT_STEPS):
        root = (1 + root) ** (1 / (dimensions + 1))
    return tuple(root ** -(axis + 1) for axis in range(dimensions))


def _even(parameter: Parameter, place: float) -> Any:
    """Like ``value_at``, but for ``place`` in [0, 1]."""
    low, high = bounds(parameter)
    value = _on_scale(parameter.scale, low, high, place)
    return round(value) if parameter.type is ParameterType.INTEGER else value


def _on_scale(scale: Scale, low: float, high: float, place: float) -> float:
    """The value from ``low`` to ``high`` at ``place``, from 0 to 1 on the scale."""
    match scale:
        case Scale.LINEAR:
            value = _between(low, high, place)
        case Scale.LOG:
            value = math.exp(_between(math.log(low), math.log(high), place))
        case Scale.REVERSE_LOG:
            value = low + high - math.exp(_between(math.log(low), math.log(high), 1 - place))
    return min(high, max(low, value))


def _between(low: float, high: float, place: float) -> float:
    # Not low + place * (high - low), since the difference may overflow to infinity.
    return low * (1 - place) + high * place


def _is_among(value: Any, values: Sequence[Any]) -> bool:
    # True equals 1 in Python.
    return any(value == other and isinstance(value, bool) == isinstance(other, bool) for other in values)
