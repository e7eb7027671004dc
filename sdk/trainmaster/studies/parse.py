"""From what users write to the canonical :class:`~trainmaster.studies.model.StudySpec`, or all their mistakes at once."""

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
from trainmaster.studies.inheritance import PARAMETER_NAME, Inheritance
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
    circles,
    grid_count,
    grid_values,
    in_order,
    spread,
    takes,
    value_faults,
)

__all__ = ["parse_study", "parse_study_text", "read_study_text"]

_MAX_PARAMETERS: Final = 200
_MAX_MISTAKES: Final = 100
_MAX_CONSTRAINTS: Final = 50
_MAX_INITIAL: Final = 1_000
# Points that are tried for one that satisfies the constraints: of spaces of which one point in thousands does, too.
_TRIED_POINTS: Final = 20_000
_TRIED_VALUES: Final = 400_000
_LEAST_POINTS: Final = 1_000
_MANY_POINTS: Final = 10**15  # a larger number is no help to anybody
# Where the study lets a shorthand stand for a mapping.
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


# What is missing is said in a study's own words: a metric's name is none for people.
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
    """The fields in ``text`` as written, not yet checked. Raises ``SpecError``: not YAML, or no mapping."""
    try:
        data = read_document(text)
    except SpecError as error:
        raise SpecError([_of_a_study(mistake) for mistake in error.mistakes]) from error
    if not isinstance(data, dict):
        raise SpecError([_not_a_study(data)])
    mistakes = not_finite(data)
    if mistakes:
        raise SpecError(mistakes)
    return data


def not_finite(raw: Any, path: str = "") -> list[SpecMistake]:
    """A mistake for each number that JSON cannot carry (NaN, infinity): on its way to the server it would become nothing."""
    if isinstance(raw, float) and not math.isfinite(raw):
        return [SpecMistake(path, f"is {raw}: must be a finite number", None)]
    below: Iterable[tuple[Any, Any]] = ()
    if isinstance(raw, Mapping):
        below = raw.items()
    elif isinstance(raw, list | tuple):
        below = enumerate(raw)
    return [one for key, item in below for one in not_finite(item, f"{path}.{key}" if path else str(key))]


def parse_study(raw: Mapping[str, Any]) -> StudySpec:
    """The canonical spec of ``raw``; a canonical one gives itself.

    Raises:
        SpecError: with every mistake in it.
    """
    return _Reading().run(raw)


def _not_a_study(data: Any) -> SpecMistake:
    return SpecMistake(
        "", f"a study is a mapping of fields, not {kind_of(data)}", "write lines such as `name: digits-search`"
    )


def _of_a_study(mistake: SpecMistake) -> SpecMistake:
    """What is told of an empty document is about a job."""
    if mistake.message != "is empty" or mistake.path:
        return mistake
    return SpecMistake("", "is empty", "write at least `name:`, `parameters:`, `metric:`, `goal:` and `budget:`")


class _Reading:
    """Collects mistakes. What is wrong is left out; what would be concluded from it is not told."""

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
                # Stand-ins, so that what is left is checked; each part is read by itself below.
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
        heirs = Inheritance(self._model, self._add).read(written, metrics, budget)
        constraints = self._constraints(written, parameters)
        space = self._space(parameters, constraints, written.get("initial")) if is_whole else None
        initial = self._initial(written, space, parameters)
        warm_start = self._warm_start(written)
        if "template" in written and "lost_after" in written:
            self._add(("lost_after",), "is about trials that a program tries, and here jobs do", "leave it out")
        elif head is not None and head.lost_after == 0:
            self._add(("lost_after",), "must be more than 0: every trial would be lost at once")
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
                "constraints": tuple(one.text for one in constraints),
                "metrics": metrics,
                "budget": budget,
                "stopping": stopping,
                "fidelity": heirs.fidelity,
                "population": heirs.population,
                "initial": initial,
                "warm_start": warm_start,
                "winner": winner,
            }
        )

    def _parameters(self, written: Mapping[str, Any]) -> tuple[dict[str, Parameter], bool]:
        """Those that stand, and whether these are all."""
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
            self._add(("parameters",), f"has {len(given)} parameters, and at most {_MAX_PARAMETERS} are searched")
            return found, False
        for name, item in given.items():
            place: Path = ("parameters", name)
            if not PARAMETER_NAME.fullmatch(name):
                self._add(place, "is not a parameter's name: letters, digits, '_', '-' and '.', a letter or '_' first")
            parameter = self._model(Parameter, item, place)
            if parameter is not None:
                found[name] = parameter
                if not math.isfinite(abs(parameter.min or 0) + abs(parameter.max or 0)):
                    self._add(place, "has a range wider than any number: no algorithm can measure it", "narrow it")
        wrong = {name for name in given if name not in found}
        self._parents(found, wrong, is_grid=written.get("algorithm") == Algorithm.GRID)
        self._unknown_parents(given, wrong)
        return found, not wrong and not any(one.path.startswith("parameters") for one in self.mistakes)

    def _parents(self, found: Mapping[str, Parameter], wrong: set[str], *, is_grid: bool) -> None:
        for name, parameter in found.items():
            for parent, values in parameter.when.items():
                place: Path = ("parameters", name, "when", parent)
                if parent in wrong:
                    continue
                if parent not in found:
                    self._add(place, "is no parameter of the study")
                elif parent == name:
                    self._add(place, "is the parameter itself")
                else:
                    bad = next((one for one in values if not takes(found[parent], one)), None)
                    if bad is not None:
                        self._add(place, f"{bad!r} is no value of {parent}")
                    elif values and not _is_ever(found[parent], values, is_grid=is_grid):
                        words = f"{parent} is a float in a range, which is practically never exactly {values[0]!r}"
                        self._add(place, words, f"make {parent} discrete, integer or categorical, or leave this out")
                    if not values:
                        self._add(place, "names no value")
        for circle in circles(found):
            if len(circle) > 1:  # of one that names itself that is said above
                self._add(("parameters",), f"{', '.join(circle)} depend on each other in a circle")

    def _unknown_parents(self, given: Mapping[str, Any], wrong: Iterable[str]) -> None:
        """Of parameters that do not stand: that a parent is none at all does not depend on what else is wrong with them."""
        for name in wrong:
            when = given[name].get("when") if isinstance(given[name], dict) else None
            for parent in when if isinstance(when, dict) else ():
                if str(parent) not in given:
                    self._add(("parameters", name, "when", str(parent)), "is no parameter of the study")

    def _metrics(self, written: Mapping[str, Any]) -> tuple[Metric, ...]:
        given = written.get("metrics")
        if "metric" in written or "goal" in written:
            if given is not None:
                self._add(("metric",), "stands beside metrics", "write one of the two")
                return ()
            return self._metric(written)
        if given is None:
            self._add(("metric",), "is missing", "write what the trials report, such as `metric: loss`")
            self._add(("goal",), "is missing", _MISSING[Metric, "goal"])
            return ()
        if isinstance(given, dict):
            given = [{"name": name, "goal": goal} for name, goal in given.items()]
        if not isinstance(given, list) or not given:
            self._add(("metrics",), "names no metric", "write `metrics: [{name: accuracy, goal: maximize}]`")
            return ()
        found = [self._model(Metric, item, ("metrics", number)) for number, item in enumerate(given)]
        names = [metric.name for metric in found if metric is not None]
        for name in sorted({name for name in names if names.count(name) > 1}):
            self._add(("metrics",), f"{name} stands there twice")
        if len(given) > 5:
            self._add(("metrics",), f"has {len(given)} metrics, and at most 5 are weighed against each other")
        return tuple(metric for metric in found if metric is not None)

    def _metric(self, written: Mapping[str, Any]) -> tuple[Metric, ...]:
        """The one metric of ``metric`` and ``goal``, or of ``metric: {name, goal}``; told of by the paths of these."""
        given = written.get("metric")
        places: dict[str, Path] = {"name": ("metric",), "goal": ("goal",)}
        data = {"name": given, "goal": written.get("goal")}
        if isinstance(given, dict):
            places = {field: ("metric", field) for field in ("name", "goal")}
            data = dict(given)
            if "goal" in written:
                if data.get("goal") is not None:
                    self._add(("goal",), "stands beside metric.goal", "write one of the two")
                data["goal"] = written["goal"]
                places["goal"] = ("goal",)
        metric = self._model(Metric, data, ("metric",), places)
        return () if metric is None else (metric,)

    def _budget(self, written: Mapping[str, Any], template: JobSpec | None) -> Budget | None:
        budget = self._model(Budget, written.get("budget", {}), ("budget",))
        if budget is None:
            return None
        if budget.max_time == 0:
            self._add(("budget", "max_time"), "must be more than 0: it would be over before its first trial")
        if not budget.has_end:
            self._add(("budget",), "has no end", "write `budget: {trials: 50}`, or max_time or gpu_hours")
        elif budget.trials is None and budget.max_time is None and not _may_have_gpus(written, template):
            what = "has no end: trials without GPUs never spend gpu_hours"
            self._add(("budget",), what, "write `budget: {trials: 50}`, or max_time")
        return budget

    def _stopping(self, written: Mapping[str, Any], metrics: tuple[Metric, ...]) -> Stopping | None:
        given = written.get("stopping")
        if given is None:
            return None
        stopping = self._model_or_word(Stopping, "rule", given, ("stopping",))
        if stopping is not None and len(metrics) > 1:
            self._add(("stopping",), "compares trials by one metric, and the study has several", "leave it out")
        if written.get("template") is None:
            self._add(("stopping",), "ends jobs early, and the study has no template", "leave it out")
        if stopping is not None and stopping.max_steps is not None and stopping.max_steps < stopping.min_steps:
            words = f"is {stopping.max_steps}, and no trial is judged before step {stopping.min_steps} (min_steps)"
            self._add(("stopping", "max_steps"), words, "write a larger max_steps, or a smaller min_steps")
        return stopping

    def _template(self, written: Mapping[str, Any], head: StudySpec | None) -> JobSpec | None:
        given = written.get("template")
        if given is None:
            return None
        if not isinstance(given, dict):
            self._add(("template",), f"must be a job spec, not {kind_of(given)}")
            return None
        name, project = (head.name, head.project) if head is not None else ("unnamed", "default")
        called = name[:50].strip("-") or "trial"
        template = {"name": called, "project": project, **given}
        try:
            spec = parse_spec(template)
        except SpecError as error:
            for mistake in error.mistakes:
                path = f"template.{mistake.path}" if mistake.path else "template"
                self.mistakes[SpecMistake(path, mistake.message, mistake.hint)] = None
            return None
        own = {key: item for key, item in given.items() if item is not None}.get("name", called)
        if own != called:
            told = f"is {own}, and trials are called after the study: {name}-1, {name}-2 and so on"
            self._add(("template", "name"), told, "leave it out")
        if spec.project != project:
            self._add(("template", "project"), f"is {spec.project}, and the study belongs to {project}", "leave it out")
        return spec

    def _commands(self, head: StudySpec, template: JobSpec, parameters: Mapping[str, Parameter]) -> None:
        """Shell texts that the parameters behind them would not reach: trials would fail, or all do the same."""
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
        for place, (command, behind) in commands.items():
            is_text = isinstance(command, str)
            why = reason_words_are_lost(command) if is_text else reason_list_loses_words([*(command or ()), *behind])
            if why is None:
                continue
            how = 'write "$@" where they belong, like `python train.py "$@"`'
            if not is_text:
                how = "write `[sh, -c, 'python train.py \"$@\"', sh]`, or the text alone, without a list"
            self._add(
                place,
                f"does not pass on the parameters of a trial ({word}), which are put behind it: {why}",
                f"{how}, or `arguments: false` for the study and read the variable TRAINMASTER_PARAMETERS",
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
                words = "is no parameter" if len(unknown) == 1 else "are no parameters"
                self._add(place, f"{', '.join(unknown)} {words} of the study")
            elif not constraint.names:
                self._add(place, f"{text!r} names no parameter")
            elif constraint.names <= parameters.keys():
                found.append(constraint)
        return tuple(found)

    def _space(
        self, parameters: Mapping[str, Parameter], constraints: tuple[Constraint, ...], initial: Any
    ) -> Space | None:
        space = Space(in_order(parameters), constraints)
        if not constraints or any(isinstance(one, dict) and space.fault(one) is None for one in _listed(initial)):
            return space
        unmet, tried = _unmet(space)
        if unmet is None:
            return space
        what = repr(unmet[0].text) if unmet else "all of them"
        if tried:  # a very narrow part may be left, which no point fell into
            words = f"hardly any point satisfies {what}: none of {tried:,} points spread over the ranges does"
            self._add(("constraints",), words, "widen the ranges, or give a point that does under `initial`")
        elif unmet:
            self._add(("constraints",), f"no point of the ranges satisfies {what}", "widen the ranges")
        else:
            words = f"contradict each other: no point of the ranges satisfies {what}"
            self._add(("constraints",), words, "leave one out")
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
            # Where the space does not stand, what can be told of each value by itself.
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
        if not isinstance(given, list) or len(given) > 20 or not all(isinstance(one, str) for one in given):
            self._add(("warm_start",), "must be a list of at most 20 studies, by name or id")
            return ()
        return tuple(given)

    def _winner(self, written: Mapping[str, Any], metrics: tuple[Metric, ...]) -> Winner | None:
        given = written.get("winner")
        if given is None:
            return None
        winner = self._model_or_word(Winner, "model", given, ("winner",))
        if written.get("template") is None:
            self._add(("winner",), "is what a job leaves, and the study has no template", "leave it out")
        if len(metrics) > 1:
            self._add(("winner",), "is the best by one metric, and the study has several", "leave it out")
        return winner

    def _algorithm(self, algorithm: Algorithm, space: Space, metrics: tuple[Metric, ...]) -> None:
        place: Path = ("algorithm",)
        if algorithm is Algorithm.GRID:
            endless = [
                name
                for name, one in space.parameters.items()
                if one.type is ParameterType.FLOAT and one.steps is None and one.min != one.max
            ]
            for name in endless:
                self._add(
                    ("parameters", name), "is a float without end in a grid", "write `steps: 5` beside min and max"
                )
            count = math.prod(grid_count(one) or 1 for one in space.parameters.values())
            if not endless and count > COUNTED:
                many = f"{count:,}" if count < _MANY_POINTS else f"more than {_MANY_POINTS:,}"
                self._add(place, f"the grid has {many} points", "leave values out, or write algorithm: qmc")
            elif not endless and space.constraints and count <= _TRIED_POINTS and next(space.grid(), None) is None:
                self._add(("constraints",), "no point of the grid satisfies all of them", "write more steps or values")
        if algorithm is Algorithm.CMA_ES:
            if len(metrics) > 1:
                self._add(place, "cma-es knows one metric, and the study has several", "write algorithm: tpe")
            if space.is_conditional:
                self._add(place, "cma-es knows no conditional parameters", "write algorithm: tpe")

    def _model_or_word(self, model: type[_ModelT], field: str, data: Any, place: Path) -> _ModelT | None:
        """Where a word stands for a mapping with ``field`` alone: what is wrong with the field is wrong with the word."""
        if isinstance(data, str):
            return self._model(model, {field: data}, place, {field: place})
        return self._model(model, data, place)

    def _model(
        self, model: type[_ModelT], data: Any, place: Path, places: Mapping[str, Path] | None = None
    ) -> _ModelT | None:
        """``data`` as ``model``, or ``None`` and all that is wrong with it told. ``places``: of fields that stand elsewhere."""
        if not isinstance(data, dict):
            self._add(place, f"must be a mapping, not {kind_of(data)}")
            return None
        try:
            return model.model_validate({key: item for key, item in data.items() if item is not None}, extra="forbid")
        except ValidationError as error:
            for detail in error.errors(include_url=False):
                told = explain_error(detail, model, frozenset(_SHORT) if not place else frozenset())
                within = location_of(detail)
                field = str(within[0]) if within else ""
                hint = _MISSING.get((model, field)) if detail["type"] == "missing" else told.hint
                at = (*places[field], *within[1:]) if places and field in places else (*place, *within)
                self._add(at, told.message, hint)
            return None

    def _add(self, path: Path, message: str, hint: str | None = None) -> None:
        self.mistakes[SpecMistake(join_path(path), message, hint)] = None


def _is_ever(parent: Parameter, values: Iterable[Value], *, is_grid: bool) -> bool:
    """Whether trials have one of these exact values of a parent: of a float, where a grid or its ends leave it no other."""
    if parent.type is not ParameterType.FLOAT or parent.min == parent.max:
        return True
    return is_grid and any(value in grid_values(parent) for value in values)


def _may_have_gpus(written: Mapping[str, Any], template: JobSpec | None) -> bool:
    """Whether trials spend GPU-hours; of a template that has mistakes it is not known."""
    if template is None:
        return written.get("template") is not None
    return any(role.resources.gpus for role in template.roles.values())


def _listed(given: Any) -> list[Any]:
    return given[:_MAX_INITIAL] if isinstance(given, list) else []


def _unmet(space: Space) -> tuple[list[Constraint] | None, int]:
    """``None``: a point satisfies all constraints. Else those that no point satisfies by itself; and how many were tried of
    more, 0 for all.

    Of few points all are tried, else many that are spread evenly: only over the parameters that the constraints are about,
    and fewer where each takes longer, so that nobody can keep the server busy with a study that it refuses.
    """
    near = space.of_names({name for one in space.constraints for name in one.names})
    if near.size is not None and near.size <= _TRIED_POINTS:
        points: Iterable[Mapping[str, Any]] = near.grid()
        most = 0
    else:
        dimensions = len(near.parameters)
        most = max(_LEAST_POINTS, min(_TRIED_POINTS, _TRIED_VALUES // (dimensions + 4 * len(space.constraints))))
        points = (near.from_unit(spread(dimensions, number)) for number in range(most))
    left, met = list(space.constraints), list[Constraint]()
    for point in points:
        kept = [not one.holds(point) for one in left]
        if not any(kept) and all(one.holds(point) for one in met):
            return None, most
        met += [one for one, is_kept in zip(left, kept, strict=True) if not is_kept]
        left = [one for one, is_kept in zip(left, kept, strict=True) if is_kept]
    return left, most


def _in_order(mistakes: Iterable[SpecMistake], written: Mapping[str, Any]) -> list[SpecMistake]:
    """In the order of the user's own document; what is missing in it comes first."""
    order = {key: index for index, key in enumerate(written)}
    return sorted(mistakes, key=lambda mistake: order.get(re.split(r"[.\[]", mistake.path, maxsplit=1)[0], -1))
