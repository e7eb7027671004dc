"""Parses and checks what a study searches: parameters, constraints, initial points."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Final

from trainmaster.spec.errors import FieldError, Path
from trainmaster.spec.fields import kind_of
from trainmaster.studies.constraints import Constraint, parse_constraint
from trainmaster.studies.mistakes import StudyMistakes
from trainmaster.studies.model import Algorithm, Metric, Parameter, ParameterType, Value
from trainmaster.studies.space import (
    COUNTED,
    Space,
    cycles,
    grid_count,
    grid_values,
    in_order,
    spread,
    takes,
    value_faults,
)
from trainmaster.studies.trial_schedulers import PARAMETER_NAME

_MAX_PARAMETERS: Final = 200
_MAX_CONSTRAINTS: Final = 50
_MAX_INITIAL: Final = 1_000
# Points sampled to find one that satisfies the constraints; enough if one point in thousands does.
_TRIED_POINTS: Final = 20_000
_TRIED_VALUES: Final = 400_000
_LEAST_POINTS: Final = 1_000
_MANY_POINTS: Final = 10**15  # larger counts are shown as "more than"


class SearchSpaceReader:
    """``space``: ``None`` if a parameter or constraint is invalid."""

    def __init__(self, mistakes: StudyMistakes) -> None:
        self._mistakes = mistakes
        self._add = mistakes.add
        self.parameters: dict[str, Parameter] = {}
        self.constraints: tuple[Constraint, ...] = ()
        self.space: Space | None = None
        self.initial: tuple[dict[str, Value], ...] = ()

    def read(self, document: Mapping[str, Any]) -> SearchSpaceReader:
        self.parameters, are_valid = self._parameters(document)
        self.constraints = self._constraints(document, self.parameters)
        if are_valid:
            self.space = self._space(self.parameters, self.constraints, document.get("initial"))
        self.initial = self._initial(document, self.space, self.parameters)
        return self

    def check_algorithm(self, algorithm: Algorithm, metrics: tuple[Metric, ...]) -> None:
        """Check whether the algorithm fits the space, if that is valid."""
        space = self.space
        if space is None:
            return
        place: Path = ("algorithm",)
        if algorithm is Algorithm.GRID:
            endless = [
                name
                for name, parameter in space.parameters.items()
                if parameter.type is ParameterType.FLOAT and parameter.steps is None and parameter.min != parameter.max
            ]
            for name in endless:
                self._add(("parameters", name), "is a float without steps in a grid", "add `steps: 5` to min and max")
            count = math.prod(grid_count(parameter) or 1 for parameter in space.parameters.values())
            if not endless and count > COUNTED:
                many = f"{count:,}" if count < _MANY_POINTS else f"more than {_MANY_POINTS:,}"
                self._add(place, f"the grid has {many} points", "remove values, or write algorithm: qmc")
            elif not endless and space.constraints and count <= _TRIED_POINTS and next(space.grid(), None) is None:
                self._add(("constraints",), "no point of the grid satisfies all of them", "write more steps or values")
        if algorithm is Algorithm.CMA_ES:
            if len(metrics) > 1:
                self._add(place, "cma-es supports only one metric, but the study has several", "write algorithm: tpe")
            if space.is_conditional:
                self._add(place, "cma-es does not support conditional parameters", "write algorithm: tpe")

    def _parameters(self, document: Mapping[str, Any]) -> tuple[dict[str, Parameter], bool]:
        """The valid parameters, and whether all are valid."""
        parameters: dict[str, Parameter] = {}
        raw = document.get("parameters")
        if raw is None or raw == {}:
            self._add(
                ("parameters",), "is missing", "write them like `parameters: {lr: {type: float, min: 0.001, max: 0.1}}`"
            )
            return parameters, False
        if not isinstance(raw, dict):
            self._add(("parameters",), f"must be a mapping of parameters, not {kind_of(raw)}")
            return parameters, False
        if len(raw) > _MAX_PARAMETERS:
            self._add(("parameters",), f"has {len(raw)} parameters; the maximum is {_MAX_PARAMETERS}")
            return parameters, False
        for name, item in raw.items():
            place: Path = ("parameters", name)
            if not PARAMETER_NAME.fullmatch(name):
                self._add(
                    place, "is not a parameter name: letters, digits, '_', '-' and '.', starting with a letter or '_'"
                )
            parameter = self._mistakes.validate(Parameter, item, place)
            if parameter is not None:
                parameters[name] = parameter
                if not math.isfinite(abs(parameter.min or 0) + abs(parameter.max or 0)):
                    self._add(place, "has a range whose width is infinite as a float", "narrow it")
        invalid = {name for name in raw if name not in parameters}
        self._parents(parameters, invalid, is_grid=document.get("algorithm") == Algorithm.GRID)
        self._unknown_parents(raw, invalid)
        return parameters, not invalid and not self._mistakes.are_in("parameters")

    def _parents(self, parameters: Mapping[str, Parameter], invalid: set[str], *, is_grid: bool) -> None:
        for name, parameter in parameters.items():
            for parent, values in parameter.when.items():
                place: Path = ("parameters", name, "when", parent)
                if parent in invalid:
                    continue
                if parent not in parameters:
                    self._add(place, "is not a parameter of the study")
                elif parent == name:
                    self._add(place, "is the parameter itself")
                else:
                    foreign = next((value for value in values if not takes(parameters[parent], value)), None)
                    if foreign is not None:
                        self._add(place, f"{foreign!r} is not a value of {parent}")
                    elif values and not _can_equal(parameters[parent], values, is_grid=is_grid):
                        message = f"{parent} is a float in a range, which is practically never exactly {values[0]!r}"
                        self._add(place, message, f"make {parent} discrete, integer or categorical, or omit this")
                    if not values:
                        self._add(place, "has no values")
        for cycle in cycles(parameters):
            if len(cycle) > 1:  # a parameter that depends on itself is reported above
                self._add(("parameters",), f"{', '.join(cycle)} depend on each other in a cycle")

    def _unknown_parents(self, raw: Mapping[str, Any], invalid: Iterable[str]) -> None:
        """Report unknown parents of invalid parameters, too: this mistake does not depend on the others."""
        for name in invalid:
            when = raw[name].get("when") if isinstance(raw[name], dict) else None
            for parent in when if isinstance(when, dict) else ():
                if str(parent) not in raw:
                    self._add(("parameters", name, "when", str(parent)), "is not a parameter of the study")

    def _constraints(self, document: Mapping[str, Any], parameters: Mapping[str, Parameter]) -> tuple[Constraint, ...]:
        raw = document.get("constraints", [])
        raw = [raw] if isinstance(raw, str) else raw
        if not isinstance(raw, list) or len(raw) > _MAX_CONSTRAINTS:
            self._add(("constraints",), f"must be a list of at most {_MAX_CONSTRAINTS} comparisons")
            return ()
        names = document.get("parameters")
        known = {str(name) for name in names} if isinstance(names, dict) else set()
        constraints = []
        for number, text in enumerate(raw):
            place: Path = ("constraints", number)
            if not isinstance(text, str):
                self._add(place, f"must be text, not {kind_of(text)}", 'write it like "layers * width <= 1024"')
                continue
            try:
                constraint = parse_constraint(text)
            except FieldError as error:
                self._add(place, error.message, error.hint)
                continue
            unknown = sorted(constraint.names - known)
            if unknown:
                message = "is not a parameter" if len(unknown) == 1 else "are not parameters"
                self._add(place, f"{', '.join(unknown)} {message} of the study")
            elif not constraint.names:
                self._add(place, f"{text!r} has no parameter")
            elif constraint.names <= parameters.keys():
                constraints.append(constraint)
        return tuple(constraints)

    def _space(
        self, parameters: Mapping[str, Parameter], constraints: tuple[Constraint, ...], initial: Any
    ) -> Space | None:
        space = Space(in_order(parameters), constraints)
        points = initial[:_MAX_INITIAL] if isinstance(initial, list) else []
        if not constraints or any(isinstance(point, dict) and space.fault(point) is None for point in points):
            return space
        unmet, tried_count = _unmet(space)
        if unmet is None:
            return space
        text = repr(unmet[0].text) if unmet else "all of them"
        if tried_count:  # a very small feasible region that no sample hit is possible
            message = f"hardly any point satisfies {text}: none of {tried_count:,} points spread over the ranges does"
            self._add(("constraints",), message, "widen the ranges, or give a feasible point under `initial`")
        elif unmet:
            self._add(("constraints",), f"no point of the ranges satisfies {text}", "widen the ranges")
        else:
            message = f"contradict each other: no point of the ranges satisfies {text}"
            self._add(("constraints",), message, "omit one of them")
        return None

    def _initial(
        self, document: Mapping[str, Any], space: Space | None, parameters: Mapping[str, Parameter]
    ) -> tuple[dict[str, Value], ...]:
        raw = document.get("initial", [])
        if not isinstance(raw, list) or len(raw) > _MAX_INITIAL:
            self._add(("initial",), f"must be a list of at most {_MAX_INITIAL} points")
            return ()
        points: list[dict[str, Value]] = []
        for number, item in enumerate(raw):
            if not isinstance(item, dict):
                self._add(("initial", number), f"must be a mapping, not {kind_of(item)}", "write it like {lr: 0.01}")
                continue
            # Without a valid space, only each value by itself is checked.
            named = document.get("parameters")
            names = named.keys() if isinstance(named, dict) else item.keys()
            faults = value_faults(parameters, names, item) if space is None else space.faults(item)
            for name, sentence in faults:
                self._add(("initial", number, name) if name else ("initial", number), sentence)
            points.append(dict(item) if space is None or faults else space.written(item))
        return tuple(points)


def _can_equal(parent: Parameter, values: Iterable[Value], *, is_grid: bool) -> bool:
    """Whether a trial's parent can have exactly one of these values; a float only in a grid or with an empty range."""
    if parent.type is not ParameterType.FLOAT or parent.min == parent.max:
        return True
    return is_grid and any(value in grid_values(parent) for value in values)


def _unmet(space: Space) -> tuple[list[Constraint] | None, int]:
    """The constraints that no point satisfies, and the number of points tried (0: all points of the space).

    ``None`` instead of a list: a point satisfies all constraints. Small spaces are enumerated; larger ones are sampled
    by an even (quasi-random) sequence over the parameters of the constraints, with fewer points where each takes
    longer, so that invalid studies cannot keep the server busy.
    """
    near = space.of_names({name for constraint in space.constraints for name in constraint.names})
    if near.size is not None and near.size <= _TRIED_POINTS:
        points: Iterable[Mapping[str, Any]] = near.grid()
        most = 0
    else:
        dimensions = len(near.parameters)
        most = max(_LEAST_POINTS, min(_TRIED_POINTS, _TRIED_VALUES // (dimensions + 4 * len(space.constraints))))
        points = (near.from_unit(spread(dimensions, number)) for number in range(most))
    unmet, met = list(space.constraints), list[Constraint]()
    for point in points:
        satisfied = [constraint for constraint in unmet if constraint.holds(point)]
        if len(satisfied) == len(unmet) and all(constraint.holds(point) for constraint in met):
            return None, most
        met += satisfied
        unmet = [constraint for constraint in unmet if constraint not in satisfied]
    return unmet, most
