"""The canonical study spec as frozen pydantic models; :mod:`trainmaster.studies.parse` builds it from what users
write.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from trainmaster.spec.errors import FieldError
from trainmaster.spec.fields import DisplayName, Flag, Integer, Name, Seconds, choice, kind_of
from trainmaster.spec.model import JobSpec
from trainmaster.wire.models import check_alias, check_model_name

__all__ = [
    "MAX_PARALLEL",
    "MAX_TRIALS",
    "Algorithm",
    "Budget",
    "Fidelity",
    "Goal",
    "Measurement",
    "Metric",
    "Parameter",
    "ParameterType",
    "Population",
    "Scale",
    "Stopping",
    "StoppingRule",
    "StudySpec",
    "Value",
    "Winner",
]

MAX_TRIALS: Final = 10_000
MAX_PARALLEL: Final = 200
MAX_VALUES: Final = 1_000
# An external trial, run by a program itself, expires after so many seconds without a report. A long time, since most
# programs report only at the end.
LOST_AFTER_S: Final = 86_400.0
# Above it a double cannot represent every integer.
_MAX_WHOLE: Final = 2**53


def _value(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        raise FieldError("must be a finite number")
    if isinstance(value, bool | int | float | str):
        # Numbers parsed from YAML keep their text; here only the number counts.
        return value if isinstance(value, bool | str) else float(value) if isinstance(value, float) else int(value)
    raise FieldError(f"must be text, a number, true or false, not {kind_of(value)}")


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        hint = "write it without quotes" if isinstance(value, str) else None
        raise FieldError(f"must be a number, not {kind_of(value)}", hint)
    if not math.isfinite(value):
        raise FieldError("must be a finite number")
    return float(value)


def _values(value: Any) -> Any:
    items = value if isinstance(value, list | tuple) else (value,)
    return tuple(items)


def _validator_of(check: Callable[[str], str]) -> AfterValidator:
    def checked(text: str) -> str:
        try:
            return check(text)
        except ValueError as error:
            raise FieldError(str(error)) from error

    return AfterValidator(checked)


Value = Annotated[bool | int | float | str, BeforeValidator(_value, json_schema_input_type=bool | int | float | str)]
Number = Annotated[float, BeforeValidator(_number, json_schema_input_type=float | int)]
Values = Annotated[tuple[Value, ...], BeforeValidator(_values), Field(max_length=MAX_VALUES)]
MetricName = Annotated[str, Field(min_length=1, max_length=200)]


class _Model(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class ParameterType(StrEnum):
    FLOAT = "float"
    INTEGER = "integer"
    CATEGORICAL = "categorical"
    DISCRETE = "discrete"  # ordered numbers


class Scale(StrEnum):
    """Scale on which a parameter is sampled uniformly."""

    LINEAR = "linear"
    LOG = "log"  # denser near the minimum
    REVERSE_LOG = "reverse-log"  # denser near the maximum


class Goal(StrEnum):
    MAXIMIZE = "maximize"
    MINIMIZE = "minimize"


class Algorithm(StrEnum):
    AUTO = "auto"  # TPE and GP alternately, or only TPE, depending on the space and the budget
    TPE = "tpe"
    GP = "gp"
    CMA_ES = "cma-es"
    QMC = "qmc"
    RANDOM = "random"
    GRID = "grid"


class Measurement(StrEnum):
    """Which of the values that a trial reported is its result."""

    BEST = "best"
    LAST = "last"


class StoppingRule(StrEnum):
    MEDIAN = "median"
    ASHA = "asha"
    HYPERBAND = "hyperband"
    DECAY_CURVE = "decay-curve"
    PATIENCE = "patience"


class Parameter(_Model):
    """A parameter: with ``min`` and ``max`` for floats and integers, with ``values`` for the other types."""

    type: Annotated[ParameterType, choice(ParameterType)]
    min: Number | None = None
    max: Number | None = None
    scale: Annotated[Scale, choice(Scale)] = Scale.LINEAR
    values: Values = ()
    steps: Annotated[int, Field(ge=1, le=MAX_VALUES)] | None = Field(
        default=None, description="Number of grid values of a float, including both ends."
    )
    when: dict[str, Values] = Field(
        default_factory=dict,
        description="Condition: the parameter is active only if each of these parameters has one of these values.",
    )

    @property
    def has_range(self) -> bool:
        return self.type in (ParameterType.FLOAT, ParameterType.INTEGER)

    @model_validator(mode="after")
    def _is_whole(self) -> Parameter:
        if self.has_range:
            self._check_range()
        else:
            self._check_values()
        return self

    def _check_range(self) -> None:
        if self.values:
            raise FieldError(
                f"is {self.type.value}, which needs a range, not values", "write min and max, or type: discrete"
            )
        if self.min is None or self.max is None:
            lacking = " and ".join(name for name in ("min", "max") if getattr(self, name) is None)
            raise FieldError(
                f"has no range: {lacking} {'are' if ' and ' in lacking else 'is'} missing",
                "write it like {type: integer, min: 1, max: 8}"
                if self.type is ParameterType.INTEGER
                else "write it like {type: float, min: 0.001, max: 0.1}",
            )
        if self.min > self.max:
            raise FieldError(f"min is {self.min:g} and max is {self.max:g}", "min must not exceed max")
        if self.scale is not Scale.LINEAR and self.min <= 0:
            bound = "zero" if self.min == 0 else "a negative number"
            raise FieldError(
                f"has scale {self.scale.value} and min {self.min:g}, but {bound} has no logarithm",
                "write a min above 0, or scale: linear",
            )
        if self.type is ParameterType.INTEGER:
            if not (self.min.is_integer() and self.max.is_integer()):
                raise FieldError("is integer: min and max must be whole numbers")
            if max(abs(self.min), abs(self.max)) > _MAX_WHOLE:
                raise FieldError("min and max must be between -2^53 and 2^53")

    def _check_values(self) -> None:
        if self.min is not None or self.max is not None:
            raise FieldError(f"is {self.type.value}, which needs values, not a range", "write values: [1, 2, 4]")
        if self.scale is not Scale.LINEAR:
            raise FieldError(f"is {self.type.value}, which has no scale", "omit scale")
        if not self.values:
            raise FieldError("has no values", "write values: [1, 2, 4]")
        if len({(type(value) is bool, value) for value in self.values}) < len(self.values):
            raise FieldError("has a value twice")
        if self.type is ParameterType.DISCRETE and not all(
            isinstance(value, int | float) and not isinstance(value, bool) for value in self.values
        ):
            raise FieldError("is discrete, but not all of its values are numbers", "write type: categorical")


class Metric(_Model):
    name: MetricName
    goal: Annotated[Goal, choice(Goal)]

    @property
    def sign(self) -> float:
        """Factor that turns the goal into minimization."""
        return 1.0 if self.goal is Goal.MINIMIZE else -1.0


class Budget(_Model):
    """Limits of a study; it ends at the first one reached. ``failed_trials``: maximum number of failed trials."""

    trials: Annotated[Integer, Field(ge=1, le=MAX_TRIALS)] | None = None
    parallel: Annotated[Integer, Field(ge=1, le=MAX_PARALLEL)] = 1
    failed_trials: Annotated[Integer, Field(ge=0, le=MAX_TRIALS)] | None = None
    max_time: Seconds | None = None
    gpu_hours: Annotated[Number, Field(gt=0)] | None = None

    @property
    def has_end(self) -> bool:
        return self.trials is not None or self.max_time is not None or self.gpu_hours is not None


class Stopping(_Model):
    """Early stopping of unpromising trials.

    ``min_steps``: warm-up: no trial is stopped before this step. ``min_trials``: minimum number of other trials that
    reached the same step. ``reduction``: asha and hyperband promote one in ``reduction`` trials from each rung.
    ``patience``: number of reports without an improvement. ``max_steps``: expected length of a trial. decay-curve uses
    by default the longest trial so far; hyperband has as many brackets as there are rungs up to ``max_steps``, at most
    five, by default three.
    """

    rule: Annotated[StoppingRule, choice(StoppingRule)]
    min_steps: Annotated[Integer, Field(ge=0)] = 1
    min_trials: Annotated[Integer, Field(ge=1)] = 4
    reduction: Annotated[Integer, Field(ge=2, le=16)] = 3
    patience: Annotated[Integer, Field(ge=1)] = 10
    max_steps: Annotated[Integer, Field(ge=1)] | None = None


class Fidelity(_Model):
    """Successive halving: trials start with a small budget; the best resume from their checkpoints with a larger one.

    ``parameter``: the parameter that passes the budget (steps, epochs, rows) to a trial: ``min`` on the first rung; one
    in ``reduction`` trials is promoted to the next rung with ``reduction`` times the budget, up to ``max``.
    """

    parameter: Annotated[str, Field(min_length=1, max_length=100)]
    min: Annotated[Integer, Field(ge=1)]
    max: Annotated[Integer, Field(ge=1, le=2**53)]
    reduction: Annotated[Integer, Field(ge=2, le=16)] = 3

    @property
    def rungs(self) -> tuple[int, ...]:
        """Budgets of the rungs, from ``min`` to ``max``."""
        rungs = [self.min]
        while rungs[-1] < self.max:
            rungs.append(min(self.max, rungs[-1] * self.reduction))
        return tuple(rungs)


class Population(_Model):
    """Population-based training: ``budget.parallel`` trials train in parallel, and the best replace the worst.

    Every ``interval`` steps (as reported with the metric), the worst ``quantile`` of the population ends (exploit).
    Each is replaced by a trial that resumes from the checkpoint of one of the best, with its parameters multiplied or
    divided by ``1 + perturb`` or, with probability ``resample`` each, resampled (explore).
    """

    interval: Annotated[Integer, Field(ge=1)]
    quantile: Annotated[Number, Field(ge=0.01, le=0.5)] = 0.25
    perturb: Annotated[Number, Field(gt=0, le=10)] = 0.2
    resample: Annotated[Number, Field(ge=0, le=1)] = 0.25


class Winner(_Model):
    """Registration of the best trial when the study ends: as the next version of ``model`` in the model registry.

    ``path``: the part of its output to register; default: the folder ``model``. ``arguments``: if given, a final job
    runs the best parameters again with these additional arguments, and its output is registered instead of the trial's.
    """

    model: Annotated[str, _validator_of(check_model_name)]
    path: Annotated[str, Field(min_length=1, max_length=1_000)] | None = None
    aliases: Annotated[tuple[Annotated[str, _validator_of(check_alias)], ...], Field(max_length=20)] = ()
    arguments: Annotated[tuple[str, ...], Field(max_length=100)] = ()


class StudySpec(_Model):
    """One study.

    ``template``: the trials' job; ``None``: external trials, a program asks for points and tells results.
    """

    name: DisplayName
    project: Name = "default"
    template: JobSpec | None = None
    parameters: dict[str, Parameter]
    constraints: tuple[str, ...] = ()
    metrics: tuple[Metric, ...]
    algorithm: Annotated[Algorithm, choice(Algorithm)] = Algorithm.AUTO
    measurement: Annotated[Measurement, choice(Measurement)] = Measurement.BEST
    budget: Budget
    stopping: Stopping | None = None
    fidelity: Fidelity | None = None
    population: Population | None = None
    initial: tuple[dict[str, Value], ...] = ()
    warm_start: tuple[str, ...] = ()
    winner: Winner | None = None
    seed: Annotated[Integer, Field(ge=0, lt=2**31)] | None = None
    lost_after: Seconds | None = Field(
        default=None,
        description="Only without a template: time without a report after which a trial expires; default: a day.",
    )
    arguments: Flag = Field(default=True, description="Whether to append `--name=value` for every parameter.")

    @property
    def lost_after_s(self) -> float:
        return LOST_AFTER_S if self.lost_after is None else self.lost_after

    @property
    def goals(self) -> tuple[Goal, ...]:
        return tuple(metric.goal for metric in self.metrics)
