"""The search space: which parameters a trial has, which values they may take, and points of it. Pure; no chance in it."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Final

from trainmaster.studies.constraints import Constraint, parse_constraint
from trainmaster.studies.model import Parameter, ParameterType, Scale, StudySpec

Point = dict[str, Any]
# A space with more points is as good as infinite.
COUNTED: Final = 1_000_000
_SHOWN_CHARS: Final = 60  # of a value that is at fault
# The plastic number's relatives: evenly spread points without any table.
# Roberts, "The unreasonable effectiveness of quasirandom sequences", 2018.
_ROOT_STEPS: Final = 40


@dataclass(frozen=True)
class Space:
    """``parameters`` in the order in which they are drawn: a parent before those that depend on it."""

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
        """How many points there are at most; ``None``: more than anybody counts."""
        count = 1
        for parameter in self.parameters.values():
            values = value_count(parameter)
            if values is None or (count := count * values) > COUNTED:
                return None
        return count

    def is_active(self, name: str, chosen: Mapping[str, Any]) -> bool:
        """Whether a trial with the parents' values ``chosen`` has the parameter ``name``."""
        when = self.parameters[name].when
        return all(parent in chosen and _is_among(chosen[parent], values) for parent, values in when.items())

    def holds(self, point: Mapping[str, Any]) -> bool:
        """Whether ``point`` satisfies all constraints."""
        return all(constraint.holds(point) for constraint in self.constraints)

    def from_unit(self, unit: Sequence[float]) -> Point:
        """The point at ``unit``, one number in [0, 1) for each parameter in order; those that are not active are left out."""
        point: Point = {}
        for (name, parameter), place in zip(self.parameters.items(), unit, strict=True):
            if self.is_active(name, point):
                point[name] = value_at(parameter, place)
        return point

    def grid(self) -> Iterator[Point]:
        """Every point of the grid that satisfies the constraints, each once."""
        found = (self.grid_point(place) for place in range(self.grid_size))
        return (point for point in found if point is not None)

    @cached_property
    def grid_size(self) -> int:
        """How many places the grid has; not all of them are points."""
        return math.prod(len(values) for values in self._axes.values())

    def grid_point(self, place: int) -> Point | None:
        """The point at ``place``, from 0; ``None``: it breaks a constraint, or another place has the same point.

        The last parameter changes from place to place, and one that is not active has room for its first value alone.
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
        """The part of it that decides over these parameters: they, and those that they depend on; without constraints."""
        wanted, left = set[str](), set(names)
        while left:
            name = left.pop()
            wanted.add(name)
            left |= self.parameters[name].when.keys() - wanted
        return Space({name: one for name, one in self.parameters.items() if name in wanted})

    def written(self, point: Mapping[str, Any]) -> Point:
        """A point without fault as a proposal would write it: whole numbers as such, in the order of the parameters."""
        return {name: _written(one, point[name]) for name, one in self.parameters.items() if name in point}

    def fault(self, point: Mapping[str, Any]) -> tuple[str, str] | None:
        """What is wrong with a point that somebody gives: the parameter at fault (empty: the whole) and a sentence."""
        return next(self._faults(point), None)

    def faults(self, point: Mapping[str, Any]) -> list[tuple[str, str]]:
        """All that is wrong with it."""
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
                yield name, "is not active with these values of its parents"
            elif name not in point and is_active:
                is_whole = False
                yield name, "is missing"
        # What is no point breaks no constraint.
        for one in self.constraints if is_whole else ():
            if not one.holds(point):
                yield "", f"breaks the constraint {one.text}"


def value_faults(
    parameters: Mapping[str, Parameter], names: Collection[str], point: Mapping[str, Any]
) -> list[tuple[str, str]]:
    """What is wrong with a point's values, each by itself. ``names``: of all parameters that there are to be."""
    unknown = [(name, "is no parameter of the study") for name in point if name not in names]
    known = ((name, parameters[name], point[name]) for name in parameters if name in point)
    return [
        *unknown,
        *((name, f"{_shown(value)} is not in its range") for name, one, value in known if not takes(one, value)),
    ]


def _shown(value: Any) -> str:
    """As it was written, a long one cut."""
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARS else f"{text[: _SHOWN_CHARS - 1]}…"


def circles(parameters: Mapping[str, Parameter]) -> list[list[str]]:
    """Those that depend on each other in a circle, as written; a parameter that merely depends on one of them is none."""
    found: list[list[str]] = []
    below = {name: [parent for parent in one.when if parent in parameters] for name, one in parameters.items()}
    reached = {name: _reached(below, name) for name in below}
    for name in below:
        if name in reached[name] and not any(name in circle for circle in found):
            found.append([other for other in below if other in reached[name] and name in reached[other]])
    return found


def _reached(below: Mapping[str, Sequence[str]], start: str) -> set[str]:
    """All that ``start`` depends on, at however many removes."""
    seen: set[str] = set()
    front = list(below[start])
    while front:
        name = front.pop()
        if name not in seen:
            seen.add(name)
            front += below[name]
    return seen


def in_order(parameters: Mapping[str, Parameter]) -> dict[str, Parameter]:
    """Parents first, else as written. Raises ``ValueError``: they depend on each other in a circle, or on unknown ones."""
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
    """How many values it takes; ``None``: without number."""
    if not parameter.has_range:
        return len(parameter.values)
    low, high = bounds(parameter)
    if parameter.type is ParameterType.INTEGER:
        return int(high - low) + 1
    return 1 if low == high else None


def grid_count(parameter: Parameter) -> int | None:
    """How many values it has in a grid, without making them; ``None``: without number."""
    if parameter.has_range and parameter.steps is not None:
        return len(grid_values(parameter))
    return value_count(parameter)


def bounds(parameter: Parameter) -> tuple[float, float]:
    """Of a float or integer: both ends, included."""
    if parameter.min is None or parameter.max is None:
        raise ValueError("a parameter without a range has no bounds")
    return parameter.min, parameter.max


def value_at(parameter: Parameter, place: float) -> Any:
    """The value at ``place`` in [0, 1), on the parameter's scale."""
    if not parameter.has_range:
        return parameter.values[min(len(parameter.values) - 1, int(place * len(parameter.values)))]
    low, high = bounds(parameter)
    if parameter.type is ParameterType.INTEGER:
        if parameter.scale is not Scale.LINEAR:
            is_mirrored = parameter.scale is Scale.REVERSE_LOG
            # Each whole number has the room from a half below it to a half above.
            found = math.exp(_between(math.log(low - 0.5), math.log(high + 0.5), 1 - place if is_mirrored else place))
            whole = int(min(high, max(low, round(found))))
            return int(low + high) - whole if is_mirrored else whole
        return int(min(high, low + math.floor(place * (high - low + 1))))
    match parameter.scale:
        case Scale.LINEAR:
            found = _between(low, high, place)
        case Scale.LOG:
            found = math.exp(_between(math.log(low), math.log(high), place))
        case Scale.REVERSE_LOG:
            found = low + high - math.exp(_between(math.log(low), math.log(high), 1 - place))
    return min(high, max(low, found))


def grid_values(parameter: Parameter) -> tuple[Any, ...]:
    """Its values in a grid: all of them; of a float ``steps`` of them, even on its scale."""
    if not parameter.has_range:
        return parameter.values
    low, high = bounds(parameter)
    if parameter.type is ParameterType.INTEGER and parameter.steps is None:
        return tuple(range(int(low), int(high) + 1))
    if low == high:
        return (int(low) if parameter.type is ParameterType.INTEGER else low,)
    count = parameter.steps or 1
    found = [_even(parameter, number / max(1, count - 1)) for number in range(count)]
    return tuple(dict.fromkeys(found))


def takes(parameter: Parameter, value: Any) -> bool:
    """Whether ``value`` is one of the parameter's."""
    if not parameter.has_range:
        return _is_among(value, parameter.values)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    low, high = bounds(parameter)
    return low <= value <= high and (parameter.type is ParameterType.FLOAT or float(value).is_integer())


def _written(parameter: Parameter, value: Any) -> Any:
    if not parameter.has_range:
        return next(one for one in parameter.values if _is_among(value, (one,)))
    return int(value) if parameter.type is ParameterType.INTEGER else float(value)


def spread(dimensions: int, number: int) -> tuple[float, ...]:
    """Point ``number`` (from 0) of a sequence that fills the unit cube evenly."""
    return tuple((0.5 + (number + 1) * stride) % 1.0 for stride in _strides(dimensions))


@lru_cache(maxsize=64)
def _strides(dimensions: int) -> tuple[float, ...]:
    root = 2.0
    for _ in range(_ROOT_STEPS):
        root = (1 + root) ** (1 / (dimensions + 1))
    return tuple(root ** -(axis + 1) for axis in range(dimensions))


def _even(parameter: Parameter, place: float) -> Any:
    """Like ``value_at`` with both ends included."""
    low, high = bounds(parameter)
    match parameter.scale:
        case Scale.LINEAR:
            found = _between(low, high, place)
        case Scale.LOG:
            found = math.exp(_between(math.log(low), math.log(high), place))
        case Scale.REVERSE_LOG:
            found = low + high - math.exp(_between(math.log(low), math.log(high), 1 - place))
    found = min(high, max(low, found))
    return round(found) if parameter.type is ParameterType.INTEGER else found


def _between(low: float, high: float, place: float) -> float:
    # Not low + place * (high - low): the difference of two large numbers may be infinite.
    return low * (1 - place) + high * place


def _is_among(value: Any, values: Sequence[Any]) -> bool:
    # True equals 1 in Python.
    return any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in values)
