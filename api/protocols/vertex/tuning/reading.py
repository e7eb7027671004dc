"""Parses a tuning job's request into the fields of our study spec."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from trainmaster.spec import SpecError
from trainmaster.spec.errors import join_path
from trainmaster.studies import StudySpec, parse_study

from api.protocols.kit.errors import NotServed
from api.protocols.vertex.proto import Message
from api.protocols.vertex.training import custom_jobs
from api.protocols.vertex.training.jobs import CommonFields, read_common
from api.protocols.vertex.training.specs import CustomJobSpec, read_spec
from core.domain.errors import InvalidRequest

PATH: Final = "hyperparameter_tuning_job"
ALGORITHMS: Final = {0: "ALGORITHM_UNSPECIFIED", 2: "GRID_SEARCH", 3: "RANDOM_SEARCH"}
_ALGORITHMS: Final = {"ALGORITHM_UNSPECIFIED": "auto", "GRID_SEARCH": "grid", "RANDOM_SEARCH": "random"}
_GOALS: Final = {0: "GOAL_TYPE_UNSPECIFIED", 1: "MAXIMIZE", 2: "MINIMIZE"}
_SELECTIONS: Final = {0: "MEASUREMENT_SELECTION_TYPE_UNSPECIFIED", 1: "LAST_MEASUREMENT", 2: "BEST_MEASUREMENT"}
_SCALES: Final = {
    0: "SCALE_TYPE_UNSPECIFIED",
    1: "UNIT_LINEAR_SCALE",
    2: "UNIT_LOG_SCALE",
    3: "UNIT_REVERSE_LOG_SCALE",
}
_PLATFORM_SCALES: Final = {"UNIT_LOG_SCALE": "log", "UNIT_REVERSE_LOG_SCALE": "reverse-log"}
_KINDS: Final = ("doubleValueSpec", "integerValueSpec", "categoricalValueSpec", "discreteValueSpec")
_RULES: Final = ("decayCurveStoppingSpec", "medianAutomatedStoppingSpec", "convexAutomatedStoppingSpec")
_CONDITIONS: Final = {
    "parentDiscreteValues": "discrete",
    "parentIntValues": "integer",
    "parentCategoricalValues": "categorical",
}
_DEEPEST: Final = 20
# Default of the convex rule: measurements of a trial before it is judged.
_CONVEX_MEASUREMENTS: Final = 5

_VIZIER: Final = "is served by Vertex AI Vizier alone, not by hyperparameter tuning jobs; leave it out"
_NO_STUDY: Final = {
    "transferLearningConfig": "transfer learning is",
    "convexStopConfig": "convex_stop_config is (convex_automated_stopping_spec is served)",
    "studyStoppingConfig": "a stopping config of the whole study is (max_trial_count says when it ends)",
}


@dataclass(slots=True)
class TuningRequest:
    """A parsed tuning job.

    ``study``: fields of our study spec without name, project and template. ``places``: parameter -> its field path in
    the request. ``rule``: the stopping rule's field path.
    """

    common: CommonFields
    job: CustomJobSpec
    study: dict[str, Any]
    places: dict[str, str] = field(default_factory=dict)
    rule: str = ""


def read_tuning(message: Message) -> TuningRequest:
    """Raises ``InvalidRequest``, or ``NotServed`` for unsupported features of the real API."""
    counts = {"maxTrialCount", "parallelTrialCount", "maxFailedTrialCount"}
    output = {*custom_jobs.JOB_OUTPUT, "trials"}
    message.refuse_unknown_fields({"displayName", "labels", "studySpec", "trialJobSpec", *counts, *output})
    common = read_common(message)
    spec = message.required("studySpec")
    tuning = TuningRequest(common, read_spec(message.raw("trialJobSpec") or {}, message.at("trialJobSpec")), {})
    if tuning.job.experiment:
        raise NotServed(
            f"{message.at('trialJobSpec')}.experiment: an experiment of all trials is not served by this platform; "
            "have the script call aiplatform.init(experiment=…) and start_run itself."
        )
    tuning.study["budget"] = {
        "trials": _count(message, "maxTrialCount"),
        "parallel": _count(message, "parallelTrialCount"),
    }
    failed = message.whole("maxFailedTrialCount")
    if failed < 0:
        raise message.fault("maxFailedTrialCount", f"must not be negative, and is {failed}.")
    if failed:  # Vertex AI fails the job at the n-th failed trial, we at the one after the allowed number
        tuning.study["budget"]["failed_trials"] = failed - 1
    _read_study(spec, tuning)
    return tuning


def study_spec_of(tuning: TuningRequest, name: str, project: str, template: Mapping[str, Any]) -> StudySpec:
    """Raises ``InvalidRequest`` with the first mistake and its field path in the request."""
    try:
        job = {key: item for key, item in template.items() if key != "name"}  # trials are named after the study
        return parse_study({"name": name, "project": project, "template": job, **tuning.study})
    except SpecError as error:
        first = error.mistakes[0]
        place = _place(tuning, first.path)
        raise InvalidRequest(f"{place}: {first.message}.", field=place) from error


def _place(tuning: TuningRequest, path: str) -> str:
    """The request's field path for ``path`` in our spec."""
    for name in sorted(tuning.places, key=len, reverse=True):
        own = join_path(("parameters", name))
        if path == own or path.startswith((f"{own}.", f"{own}[")):
            return tuning.places[name]
    heads = {
        "parameters": "study_spec.parameters",
        "metrics": "study_spec.metrics",
        "algorithm": "study_spec.algorithm",
        "stopping": tuning.rule,
        "budget.trials": "max_trial_count",
        "budget.parallel": "parallel_trial_count",
        "budget.failed_trials": "max_failed_trial_count",
        "template": "trial_job_spec",
    }
    own_head = next((head for head in heads if path == head or path.startswith((f"{head}.", f"{head}["))), None)
    return (
        PATH
        if own_head is None
        else f"{PATH}.{heads[own_head]}{path[len(own_head) :] if own_head == 'metrics' else ''}"
    )


# --- the study -------------------------------------------------------------------------------------------------------


def _read_study(message: Message, tuning: TuningRequest) -> None:
    served = {"metrics", "parameters", "algorithm", "measurementSelectionType", "observationNoise", *_RULES}
    message.refuse_unknown_fields(served, absent=_NO_STUDY)
    if message.raw("observationNoise") not in (None, 0, "OBSERVATION_NOISE_UNSPECIFIED"):
        raise message.fault("observationNoise", f"{_VIZIER}.")
    algorithm = message.enum("algorithm", ALGORITHMS)
    study = tuning.study
    study["algorithm"] = _ALGORITHMS[algorithm]
    # The default is the last measurement in Vertex AI, and the best one in our own API.
    study["measurement"] = (
        "best" if message.enum("measurementSelectionType", _SELECTIONS) == "BEST_MEASUREMENT" else "last"
    )
    study["metrics"] = [_metric(Message(item, path)) for path, item in message.items("metrics")]
    if not study["metrics"]:
        raise message.missing("metrics")
    study["parameters"] = {}
    for path, item in message.items("parameters"):
        _read_parameter(Message(item, path), tuning, {}, 0)
    if not study["parameters"]:
        raise message.missing("parameters")
    endless = next((name for name, parameter in study["parameters"].items() if parameter["type"] == "float"), None)
    if algorithm == "GRID_SEARCH" and endless is not None:
        raise message.fault(
            "algorithm",
            f"for GRID_SEARCH all parameters must be INTEGER, CATEGORICAL or DISCRETE, and {endless} is DOUBLE.",
        )
    _read_stopping(message, tuning)


def _metric(message: Message) -> dict[str, str]:
    message.refuse_unknown_fields({"metricId", "goal", "safetyConfig"})
    if message.raw("safetyConfig") is not None:
        raise message.fault("safetyConfig", f"{_VIZIER}.")
    goal = message.enum("goal", _GOALS)
    for name, is_there in (("metricId", bool(message.text("metricId", 200))), ("goal", goal != _GOALS[0])):
        if not is_there:
            raise message.missing(name)
    return {"name": message.text("metricId"), "goal": goal.lower()}


def _read_stopping(message: Message, tuning: TuningRequest) -> None:
    rules = [name for name in _RULES if message.raw(name) is not None]
    if not rules:
        return
    if len(rules) > 1:
        raise message.fault(rules[1], f"conflicts with {message.at(rules[0])}; give one of the two.")
    rule = Message(message.raw(rules[0]), message.at(rules[0]))
    tuning.rule = rule.path.removeprefix(f"{PATH}.")
    absent = {
        "useElapsedDuration": "comparing trials by elapsed time is (steps are compared)",
        "learningRateParameterName": "learning_rate_parameter_name is",
        "updateAllStoppedTrials": "measurements that are extrapolated are",
    }
    if rules[0] == "convexAutomatedStoppingSpec":
        rule.refuse_unknown_fields({"maxStepCount", "minStepCount", "minMeasurementCount"}, absent=absent)
        stopping: dict[str, Any] = {"rule": "decay-curve"}
        for name, own in (("maxStepCount", "max_steps"), ("minStepCount", "min_steps")):
            if rule.whole(name):
                stopping[own] = rule.whole(name)
        # As in Vertex AI: strictly more completed trials than this, before any is judged.
        stopping["min_trials"] = (rule.whole("minMeasurementCount") or _CONVEX_MEASUREMENTS) + 1
    else:
        rule.refuse_unknown_fields(set(), absent={"useElapsedDuration": absent["useElapsedDuration"]})
        stopping = {"rule": "median" if rules[0] == "medianAutomatedStoppingSpec" else "decay-curve"}
    tuning.study["stopping"] = stopping


# --- parameters ------------------------------------------------------------------------------------------------------


def _read_parameter(message: Message, tuning: TuningRequest, when: Mapping[str, list[Any]], depth: int) -> None:
    """One parameter with its conditional ones. ``when``: values of its parent for which it is active."""
    if depth > _DEEPEST:
        raise InvalidRequest(f"{message.path}: conditional parameters are nested more than {_DEEPEST} times.")
    message.refuse_unknown_fields({"parameterId", "scaleType", "conditionalParameterSpecs", *_KINDS})
    name = message.text("parameterId", 100)
    if not name:
        raise message.missing("parameterId")
    kinds = [kind for kind in _KINDS if message.raw(kind) is not None]
    if len(kinds) != 1:
        raise InvalidRequest(
            f"{message.path}: exactly one of double_value_spec, integer_value_spec, categorical_value_spec and "
            f"discrete_value_spec is needed for {name}.",
            field=message.path,
        )
    own = _values(Message(message.raw(kinds[0]), message.at(kinds[0])), kinds[0])
    scale = message.enum("scaleType", _SCALES)
    if own["type"] == "categorical" and scale != _SCALES[0]:
        raise message.fault("scaleType", f"leave it unset for the CATEGORICAL parameter {name}.")
    if own["type"] == "discrete" and scale in _PLATFORM_SCALES and any(value <= 0 for value in own["values"]):
        raise message.fault("scaleType", f"{scale} needs values above 0, and {name} has {min(own['values'])}.")
    if own["type"] in ("float", "integer") and scale in _PLATFORM_SCALES:
        own["scale"] = _PLATFORM_SCALES[scale]
    if when:
        own["when"] = {parent: list(values) for parent, values in when.items()}
    _add(tuning, name, own, message.path)
    for path, item in message.items("conditionalParameterSpecs"):
        _read_conditional(Message(item, path), tuning, (name, own["type"]), depth)


def _add(tuning: TuningRequest, name: str, own: dict[str, Any], path: str) -> None:
    """Add a parameter; one that appears under several values of its parent is one parameter here."""
    parameters = tuning.study["parameters"]
    known = parameters.get(name)
    if known is None:
        parameters[name], tuning.places[name] = own, path
        return
    before, now = dict(known), dict(own)
    when, more = before.pop("when", {}), now.pop("when", {})
    if not when or when.keys() != more.keys():
        raise InvalidRequest(f"{path}.parameter_id: there is a parameter {name} already, at {tuning.places[name]}.")
    if before != now:
        raise NotServed(
            f"{path}: the parameter {name} has other values under another value of its parent, which is not served by "
            "this platform; give it another parameter_id."
        )
    for parent, values in more.items():
        if any(value in when[parent] for value in values):
            raise InvalidRequest(f"{path}: {name} stands under the same value of {parent} twice.")
        when[parent] += values


def _values(message: Message, kind: str) -> dict[str, Any]:
    """A parameter's type with its range or values."""
    known = {"values"} if kind in ("categoricalValueSpec", "discreteValueSpec") else {"minValue", "maxValue"}
    message.refuse_unknown_fields({*known, "defaultValue"})
    if message.raw("defaultValue") is not None:
        raise message.fault("defaultValue", f"{_VIZIER}.")
    # proto3 omits a bound of zero, so one may be missing; without both the parameter has a single value.
    if "minValue" in known and not any(name in message for name in known):
        raise InvalidRequest(f"{message.path}: min_value and max_value are needed.", field=message.path)
    match kind:
        case "doubleValueSpec":
            return {"type": "float", "min": message.number("minValue"), "max": message.number("maxValue")}
        case "integerValueSpec":
            return {"type": "integer", "min": message.whole("minValue"), "max": message.whole("maxValue")}
        case "categoricalValueSpec":
            return {"type": "categorical", "values": list(message.texts("values"))}
    values = [_plain(value) for value in message.numbers("values")]
    if values != sorted(values):
        raise message.fault("values", "must be in increasing order.")
    return {"type": "discrete", "values": values}


def _read_conditional(message: Message, tuning: TuningRequest, parent: tuple[str, str], depth: int) -> None:
    message.refuse_unknown_fields({"parameterSpec", *_CONDITIONS})
    name, kind = parent
    conditions = [condition for condition in _CONDITIONS if message.raw(condition) is not None]
    if len(conditions) != 1 or _CONDITIONS[conditions[0]] != kind:
        needed = next((condition for condition, own in _CONDITIONS.items() if own == kind), None)
        if needed is None:
            raise InvalidRequest(
                f"{message.path}: {name} is DOUBLE, and no parameter can depend on it.", field=message.path
            )
        raise InvalidRequest(
            f"{message.path}: exactly {Message({}, message.path).at(needed).rpartition('.')[2]} is needed, since "
            f"{name} is {kind.upper()}.",
            field=message.path,
        )
    condition = Message(message.raw(conditions[0]), message.at(conditions[0]))
    condition.refuse_unknown_fields({"values"})
    values: list[Any]
    if kind == "categorical":
        values = list(condition.texts("values"))
    else:
        values = [_plain(value) for value in condition.numbers("values")]
    if not values:
        raise condition.missing("values")
    _read_parameter(message.required("parameterSpec"), tuning, {name: values}, depth + 1)


def _plain(value: float) -> int | float:
    """Whole numbers become int: scripts parse ``--batch=16`` by ``type=int``."""
    return int(value) if value.is_integer() and abs(value) < 2**53 else value


def _count(message: Message, name: str) -> int:
    count = message.whole(name)
    if count <= 0:
        raise message.fault(name, f"must be above 0, and is {count}.")
    return count
