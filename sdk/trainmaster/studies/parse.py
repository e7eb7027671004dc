"""Parses what users write into the canonical :class:`~trainmaster.studies.model.StudySpec`, or reports all mistakes."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError

from trainmaster.spec.document import read_document
from trainmaster.spec.error_messages import explain_error, location_of
from trainmaster.spec.errors import FieldError, Path, SpecError, SpecMistake, join_path
from trainmaster.spec.fields import kind_of
from trainmaster.spec.model import JobSpec
from trainmaster.spec.parse import parse_spec
from trainmaster.spec.plain_data import plain_copy
from trainmaster.spec.shelltext import reason_list_loses_words, reason_words_are_lost
from trainmaster.studies.constraints import Constraint, parse_constraint
from trainmaster.studies.model import (
    Algorithm,
    Budget,
    Metric,
    Parameter,
    ParameterType,
    Stopping,
    StudySpec,
    Value,
    Winner,
)
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
from trainmaster.studies.trial_schedulers import PARAMETER_NAME, TrialSchedulers

__all__ = ["parse_study", "parse_study_text", "read_study_text"]

_MAX_PARAMETERS: Final = 200
_MAX_MISTAKES: Final = 100
_MAX_CONSTRAINTS: Final = 50
_MAX_INITIAL: Final = 1_000
# Points sampled to find one that satisfies the constraints; enough if one point in thousands does.
_TRIED_POINTS: Final = 20_000
_TRIED_VALUES: Final = 400_000
_LEAST_POINTS: Final = 1_000
_MANY_POINTS: Final = 10**15  # larger counts are shown as "more than"
# Shorthands for ``metrics``.
_SHORT: Final = ("metric", "goal")
_PARTS: Final = (
    "template",
    "parameters",
    "constraints",
    "metrics",
    "budget",
    "stopping",
    "fidelity",
    "population",
    "initial",
    "warm_start",
    "winner",
)


# Hints for missing fields; those of the job spec do not fit: a metric's name is not a display name.
_MISSING: Final[Mapping[tuple[type[BaseModel], str], str]] = {
    (Metric, "name"): "write what the trials report, such as `metric: loss`",
    (Metric, "goal"): "write `goal: minimize` or `goal: maximize`",
    (Parameter, "type"): "write float, integer, categorical or discrete",
}

_ModelT = TypeVar("_ModelT", bound=BaseModel)


def parse_study_text(text: str | bytes) -> StudySpec:
    """The spec in YAML or JSON. Raises :class:`SpecError`."""
    return parse_study(read_study_text(text))


def read_study_text(text: str | bytes) -> dict[str, Any]:
    """The fields in ``text`` as written, not validated. Raises ``SpecError``: not YAML, or not a mapping."""
    try:
        data = read_document(text)
    except SpecError as error:
        raise SpecError([_for_study(mistake) for mistake in error.mistakes]) from error
    if not isinstance(data, dict):
        raise SpecError([_not_a_study(data)])
    mistakes = not_finite(data)
    if mistakes:
        raise SpecError(mistakes)
    return data


def not_finite(raw: Any, path: str = "") -> list[SpecMistake]:
    """A mistake for each number that JSON lacks (NaN, infinity) and that would reach the server as null."""
    if isinstance(raw, float) and not math.isfinite(raw):
        return [SpecMistake(path, f"is {raw}: must be a finite number", None)]
    below: Iterable[tuple[Any, Any]] = ()
    if isinstance(raw, Mapping):
        below = raw.items()
    elif isinstance(raw, list | tuple):
        below = enumerate(raw)
    return [mistake for key, item in below for mistake in not_finite(item, f"{path}.{key}" if path else str(key))]


def parse_study(raw: Mapping[str, Any]) -> StudySpec:
    """The canonical spec of ``raw``; idempotent.

    Raises:
        SpecError: with all mistakes.
    """
    return _Reading().run(raw)


def _not_a_study(data: Any) -> SpecMistake:
    return SpecMistake(
        "", f"a study is a mapping of fields, not {kind_of(data)}", "write lines such as `name: digits-search`"
    )


def _for_study(mistake: SpecMistake) -> SpecMistake:
    """Replaces the hint for an empty document, which is about jobs."""
    if mistake.message != "is empty" or mistake.path:
        return mistake
    return SpecMistake("", "is empty", "write at least `name:`, `parameters:`, `metric:`, `goal:` and `budget:`")


class _Reading:
    """Collects mistakes. Invalid parts are left out; mistakes that only follow from them are not reported."""

    def __init__(self) -> None:
        self.mistakes: dict[SpecMistake, None] = {}

    def run(self, raw: Any) -> StudySpec:
        copy = plain_copy(raw)
        self.mistakes.update(dict.fromkeys(copy.mistakes))
        if not isinstance(copy.value, dict):
            raise SpecError(self.mistakes or [_not_a_study(copy.value)])
        written = {key: item for key, item in copy.value.items() if item is not None and not key.startswith("x-")}
        head = self._model(
            StudySpec,
            {
                **{key: item for key, item in written.items() if key not in (*_PARTS, *_SHORT)},
                # Placeholders, to validate the other fields; each of these parts is read separately below.
                "parameters": {},
                "metrics": [],
                "budget": {},
                **({} if "name" in written else {"name": "unnamed"}),
            },
            (),
        )
        if "name" not in written:
            self._add(("name",), "is missing", "write a name for people, such as `name: digits-search`")
        parameters, is_whole = self._parameters(written)
        metrics = self._metrics(written)
        template = self._template(written, head)
        budget = self._budget(written, template)
        stopping = self._stopping(written, metrics)
        schedulers = TrialSchedulers(self._model, self._add).read(written, metrics, budget)
        constraints = self._constraints(written, parameters)
        space = self._space(parameters, constraints, written.get("initial")) if is_whole else None
        initial = self._initial(written, space, parameters)
        warm_start = self._warm_start(written)
        if "template" in written and "lost_after" in written:
            self._add(("lost_after",), "is only for studies without a template", "omit it")
        elif head is not None and head.lost_after == 0:
            self._add(("lost_after",), "must be more than 0: every trial would expire at once")
        winner = self._winner(written, metrics)
        if head is not None and template is not None:
            self._commands(head, template, parameters)
        if space is not None and head is not None:
            self._algorithm(head.algorithm, space, metrics)
        if self.mistakes:
            raise SpecError(_in_order(self.mistakes, written)[:_MAX_MISTAKES])
        assert head is not None  # noqa: S101 (else there was a mistake)
        assert budget is not None  # noqa: S101
        return head.model_copy(
            update={
                "template": template,
                "parameters": dict(parameters),
                "constraints": tuple(constraint.text for constraint in constraints),
                "metrics": metrics,
                "budget": budget,
                "stopping": stopping,
                "fidelity": schedulers.fidelity,
                "population": schedulers.population,
                "initial": initial,
                "warm_start": warm_start,
                "winner": winner,
            }
        )

    def _parameters(self, written: Mapping[str, Any]) -> tuple[dict[str, Parameter], bool]:
        """The valid parameters, and whether all are valid."""
        found: dict[str, Parameter] = {}
        given = written.get("parameters")
        if given is None or given == {}:
            self._add(
                ("parameters",), "is missing", "write them like `parameters: {lr: {type: float, min: 0.001, max: 0.1}}`"
            )
            return found, False
        if not isinstance(given, dict):
            self._add(("parameters",), f"must be a mapping of parameters, not {kind_of(given)}")
            return found, False
        if len(given) > _MAX_PARAMETERS:
            self._add(("parameters",), f"has {len(given)} parameters; the maximum is {_MAX_PARAMETERS}")
            return found, False
        for name, item in given.items():
            place: Path = ("parameters", name)
            if not PARAMETER_NAME.fullmatch(name):
                self._add(
                    place, "is not a parameter name: letters, digits, '_', '-' and '.', starting with a letter or '_'"
                )
            parameter = self._model(Parameter, item, place)
            if parameter is not None:
                found[name] = parameter
                if not math.isfinite(abs(parameter.min or 0) + abs(parameter.max or 0)):
                    self._add(place, "has a range whose width is infinite as a float", "narrow it")
        wrong = {name for name in given if name not in found}
        self._parents(found, wrong, is_grid=written.get("algorithm") == Algorithm.GRID)
        self._unknown_parents(given, wrong)
        return found, not wrong and not any(mistake.path.startswith("parameters") for mistake in self.mistakes)

    def _parents(self, found: Mapping[str, Parameter], wrong: set[str], *, is_grid: bool) -> None:
        for name, parameter in found.items():
            for parent, values in parameter.when.items():
                place: Path = ("parameters", name, "when", parent)
                if parent in wrong:
                    continue
                if parent not in found:
                    self._add(place, "is not a parameter of the study")
                elif parent == name:
                    self._add(place, "is the parameter itself")
                else:
                    bad = next((value for value in values if not takes(found[parent], value)), None)
                    if bad is not None:
                        self._add(place, f"{bad!r} is not a value of {parent}")
                    elif values and not _can_equal(found[parent], values, is_grid=is_grid):
                        message = f"{parent} is a float in a range, which is practically never exactly {values[0]!r}"
                        self._add(place, message, f"make {parent} discrete, integer or categorical, or omit this")
                    if not values:
                        self._add(place, "has no values")
        for cycle in cycles(found):
            if len(cycle) > 1:  # a parameter that depends on itself is reported above
                self._add(("parameters",), f"{', '.join(cycle)} depend on each other in a cycle")

    def _unknown_parents(self, given: Mapping[str, Any], wrong: Iterable[str]) -> None:
        """Report unknown parents of invalid parameters, too: this mistake does not depend on the others."""
        for name in wrong:
            when = given[name].get("when") if isinstance(given[name], dict) else None
            for parent in when if isinstance(when, dict) else ():
                if str(parent) not in given:
                    self._add(("parameters", name, "when", str(parent)), "is not a parameter of the study")

    def _metrics(self, written: Mapping[str, Any]) -> tuple[Metric, ...]:
        given = written.get("metrics")
        if "metric" in written or "goal" in written:
            if given is not None:
                self._add(("metric",), "cannot be combined with metrics", "write one of the two")
                return ()
            return self._metric(written)
        if given is None:
            self._add(("metric",), "is missing", "write what the trials report, such as `metric: loss`")
            self._add(("goal",), "is missing", _MISSING[Metric, "goal"])
            return ()
        if isinstance(given, dict):
            given = [{"name": name, "goal": goal} for name, goal in given.items()]
        if not isinstance(given, list) or not given:
            self._add(("metrics",), "has no metric", "write `metrics: [{name: accuracy, goal: maximize}]`")
            return ()
        found = [self._model(Metric, item, ("metrics", number)) for number, item in enumerate(given)]
        names = [metric.name for metric in found if metric is not None]
        for name in sorted({name for name in names if names.count(name) > 1}):
            self._add(("metrics",), f"has {name} twice")
        if len(given) > 5:
            self._add(("metrics",), f"has {len(given)} metrics; the maximum is 5")
        return tuple(metric for metric in found if metric is not None)

    def _metric(self, written: Mapping[str, Any]) -> tuple[Metric, ...]:
        """The metric of ``metric`` and ``goal``, or of ``metric: {name, goal}``; mistakes have the paths as written."""
        given = written.get("metric")
        places: dict[str, Path] = {"name": ("metric",), "goal": ("goal",)}
        data = {"name": given, "goal": written.get("goal")}
        if isinstance(given, dict):
            places = {field: ("metric", field) for field in ("name", "goal")}
            data = dict(given)
            if "goal" in written:
                if data.get("goal") is not None:
                    self._add(("goal",), "cannot be combined with metric.goal", "write one of the two")
                data["goal"] = written["goal"]
                places["goal"] = ("goal",)
        metric = self._model(Metric, data, ("metric",), places)
        return () if metric is None else (metric,)

    def _budget(self, written: Mapping[str, Any], template: JobSpec | None) -> Budget | None:
        budget = self._model(Budget, written.get("budget", {}), ("budget",))
        if budget is None:
            return None
        if budget.max_time == 0:
            self._add(("budget", "max_time"), "must be more than 0: the study would end before its first trial")
        if not budget.has_end:
            self._add(("budget",), "has no limit", "write `budget: {trials: 50}`, or max_time or gpu_hours")
        elif budget.trials is None and budget.max_time is None and not _may_have_gpus(written, template):
            message = "has no limit: trials without GPUs never spend gpu_hours"
            self._add(("budget",), message, "write `budget: {trials: 50}`, or max_time")
        return budget

    def _stopping(self, written: Mapping[str, Any], metrics: tuple[Metric, ...]) -> Stopping | None:
        given = written.get("stopping")
        if given is None:
            return None
        stopping = self._model_or_word(Stopping, "rule", given, ("stopping",))
        if stopping is not None and len(metrics) > 1:
            self._add(("stopping",), "compares trials by one metric, but the study has several", "omit it")
        if written.get("template") is None:
            self._add(("stopping",), "stops jobs early, but the study has no template", "omit it")
        if stopping is not None and stopping.max_steps is not None and stopping.max_steps < stopping.min_steps:
            message = f"is {stopping.max_steps}, but no trial is stopped before step {stopping.min_steps} (min_steps)"
            self._add(("stopping", "max_steps"), message, "write a larger max_steps, or a smaller min_steps")
        return stopping

    def _template(self, written: Mapping[str, Any], head: StudySpec | None) -> JobSpec | None:
        given = written.get("template")
        if given is None:
            return None
        if not isinstance(given, dict):
            self._add(("template",), f"must be a job spec, not {kind_of(given)}")
            return None
        name, project = (head.name, head.project) if head is not None else ("unnamed", "default")
        job_name = name[:50].strip("-") or "trial"
        template = {"name": job_name, "project": project, **given}
        try:
            spec = parse_spec(template)
        except SpecError as error:
            for mistake in error.mistakes:
                path = f"template.{mistake.path}" if mistake.path else "template"
                self.mistakes[SpecMistake(path, mistake.message, mistake.hint)] = None
            return None
        own = {key: item for key, item in given.items() if item is not None}.get("name", job_name)
        if own != job_name:
            message = f"is {own}, but trials are named after the study: {name}-1, {name}-2 and so on"
            self._add(("template", "name"), message, "omit it")
        if spec.project != project:
            self._add(("template", "project"), f"is {spec.project}, but the study belongs to {project}", "omit it")
        return spec

    def _commands(self, head: StudySpec, template: JobSpec, parameters: Mapping[str, Parameter]) -> None:
        """Report shell texts that lose the appended parameters: trials would fail, or all run the same."""
        if not head.arguments:
            return
        commands: dict[Path, tuple[Any, Iterable[str]]] = {}
        for name, role in template.roles.items():
            own: Path = ("template", "roles", name)
            args = template.args if role.args is None else role.args
            if role.command is not None:
                commands[*own, "command"] = (role.command, args)
            elif role.args is not None and not isinstance(template.command, str):
                commands[*own, "args"] = (template.command, args)
            else:
                commands["template", "command"] = (template.command, args)
        word = f"--{next(iter(parameters), 'lr')}=…"
        for place, (command, arguments) in commands.items():
            is_text = isinstance(command, str)
            why = reason_words_are_lost(command) if is_text else reason_list_loses_words([*(command or ()), *arguments])
            if why is None:
                continue
            how = 'write "$@" where they belong, like `python train.py "$@"`'
            if not is_text:
                how = "write `[sh, -c, 'python train.py \"$@\"', sh]`, or only the text instead of a list"
            self._add(
                place,
                f"does not pass on the parameters of a trial ({word}), which are appended to it: {why}",
                f"{how}, or set `arguments: false` for the study and read the variable TRAINMASTER_PARAMETERS",
            )

    def _constraints(self, written: Mapping[str, Any], parameters: Mapping[str, Parameter]) -> tuple[Constraint, ...]:
        given = written.get("constraints", [])
        given = [given] if isinstance(given, str) else given
        if not isinstance(given, list) or len(given) > _MAX_CONSTRAINTS:
            self._add(("constraints",), f"must be a list of at most {_MAX_CONSTRAINTS} comparisons")
            return ()
        names = written.get("parameters")
        known = {str(name) for name in names} if isinstance(names, dict) else set()
        found = []
        for number, text in enumerate(given):
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
                found.append(constraint)
        return tuple(found)

    def _space(
        self, parameters: Mapping[str, Parameter], constraints: tuple[Constraint, ...], initial: Any
    ) -> Space | None:
        space = Space(in_order(parameters), constraints)
        points = initial[:_MAX_INITIAL] if isinstance(initial, list) else []
        if not constraints or any(isinstance(point, dict) and space.fault(point) is None for point in points):
            return space
        unmet, tried = _unmet(space)
        if unmet is None:
            return space
        what = repr(unmet[0].text) if unmet else "all of them"
        if tried:  # a very small feasible region that no sample hit is possible
            message = f"hardly any point satisfies {what}: none of {tried:,} points spread over the ranges does"
            self._add(("constraints",), message, "widen the ranges, or give a feasible point under `initial`")
        elif unmet:
            self._add(("constraints",), f"no point of the ranges satisfies {what}", "widen the ranges")
        else:
            message = f"contradict each other: no point of the ranges satisfies {what}"
            self._add(("constraints",), message, "omit one of them")
        return None

    def _initial(
        self, written: Mapping[str, Any], space: Space | None, parameters: Mapping[str, Parameter]
    ) -> tuple[dict[str, Value], ...]:
        given = written.get("initial", [])
        if not isinstance(given, list) or len(given) > _MAX_INITIAL:
            self._add(("initial",), f"must be a list of at most {_MAX_INITIAL} points")
            return ()
        found: list[dict[str, Value]] = []
        for number, item in enumerate(given):
            if not isinstance(item, dict):
                self._add(("initial", number), f"must be a mapping, not {kind_of(item)}", "write it like {lr: 0.01}")
                continue
            # Without a valid space, only each value by itself is checked.
            named = written.get("parameters")
            names = named.keys() if isinstance(named, dict) else item.keys()
            faults = value_faults(parameters, names, item) if space is None else space.faults(item)
            for name, sentence in faults:
                self._add(("initial", number, name) if name else ("initial", number), sentence)
            found.append(dict(item) if space is None or faults else space.written(item))
        return tuple(found)

    def _warm_start(self, written: Mapping[str, Any]) -> tuple[str, ...]:
        given = written.get("warm_start", [])
        given = [given] if isinstance(given, str) else given
        if not isinstance(given, list) or len(given) > 20 or not all(isinstance(study, str) for study in given):
            self._add(("warm_start",), "must be a list of at most 20 studies, by name or id")
            return ()
        return tuple(given)

    def _winner(self, written: Mapping[str, Any], metrics: tuple[Metric, ...]) -> Winner | None:
        given = written.get("winner")
        if given is None:
            return None
        winner = self._model_or_word(Winner, "model", given, ("winner",))
        if written.get("template") is None:
            self._add(("winner",), "registers a job's output, but the study has no template", "omit it")
        if len(metrics) > 1:
            self._add(("winner",), "is the best by one metric, but the study has several", "omit it")
        return winner

    def _algorithm(self, algorithm: Algorithm, space: Space, metrics: tuple[Metric, ...]) -> None:
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

    def _model_or_word(self, model: type[_ModelT], field: str, data: Any, place: Path) -> _ModelT | None:
        """Like ``_model``, but text is short for a mapping with only ``field``; mistakes then have the path of the
        text.
        """
        if isinstance(data, str):
            return self._model(model, {field: data}, place, {field: place})
        return self._model(model, data, place)

    def _model(
        self, model: type[_ModelT], data: Any, place: Path, places: Mapping[str, Path] | None = None
    ) -> _ModelT | None:
        """``data`` as ``model``; ``None`` after reporting its mistakes.

        ``places``: paths of fields written elsewhere.
        """
        if not isinstance(data, dict):
            self._add(place, f"must be a mapping, not {kind_of(data)}")
            return None
        try:
            return model.model_validate({key: item for key, item in data.items() if item is not None}, extra="forbid")
        except ValidationError as error:
            for detail in error.errors(include_url=False):
                explanation = explain_error(detail, model, frozenset(_SHORT) if not place else frozenset())
                within = location_of(detail)
                field = str(within[0]) if within else ""
                hint = _MISSING.get((model, field)) if detail["type"] == "missing" else explanation.hint
                at = (*places[field], *within[1:]) if places and field in places else (*place, *within)
                self._add(at, explanation.message, hint)
            return None

    def _add(self, path: Path, message: str, hint: str | None = None) -> None:
        self.mistakes[SpecMistake(join_path(path), message, hint)] = None


def _can_equal(parent: Parameter, values: Iterable[Value], *, is_grid: bool) -> bool:
    """Whether a trial's parent can have exactly one of these values; a float only in a grid or with an empty range."""
    if parent.type is not ParameterType.FLOAT or parent.min == parent.max:
        return True
    return is_grid and any(value in grid_values(parent) for value in values)


def _may_have_gpus(written: Mapping[str, Any], template: JobSpec | None) -> bool:
    """Whether trials may use GPUs; assumed for a template with mistakes."""
    if template is None:
        return written.get("template") is not None
    return any(role.resources.gpus for role in template.roles.values())


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


def _in_order(mistakes: Iterable[SpecMistake], written: Mapping[str, Any]) -> list[SpecMistake]:
    """Sorted in the order of the user's document; missing fields come first."""
    order = {key: index for index, key in enumerate(written)}
    return sorted(mistakes, key=lambda mistake: order.get(re.split(r"[.\[]", mistake.path, maxsplit=1)[0], -1))
