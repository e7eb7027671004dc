"""Parses what users write into the canonical :class:`~trainmaster.studies.model.StudySpec`, or reports all mistakes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from trainmaster.spec.document import read_document
from trainmaster.spec.errors import Path, SpecError, SpecMistake
from trainmaster.spec.fields import kind_of
from trainmaster.spec.model import JobSpec
from trainmaster.spec.parse import parse_spec
from trainmaster.spec.plain_data import plain_copy
from trainmaster.spec.shelltext import reason_list_loses_words, reason_words_are_lost
from trainmaster.studies.mistakes import MISSING_HINTS, SHORTHANDS, StudyMistakes
from trainmaster.studies.model import (
    Budget,
    Metric,
    Parameter,
    Stopping,
    StudySpec,
    Winner,
)
from trainmaster.studies.search_space import SearchSpaceReader
from trainmaster.studies.trial_schedulers import TrialSchedulers

__all__ = ["parse_study", "parse_study_text", "read_study_text"]

_MAX_MISTAKES: Final = 100
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


def parse_study_text(text: str | bytes) -> StudySpec:
    """The spec in YAML or JSON. Raises :class:`SpecError`."""
    return parse_study(read_study_text(text))


def read_study_text(text: str | bytes) -> dict[str, Any]:
    """The fields in ``text`` as written, not validated; a job of AI Platform as a study.

    Raises:
        SpecError: not YAML, not a mapping, or an AI Platform job that is no study here.
    """
    try:
        data = read_document(text)
    except SpecError as error:
        raise SpecError([_for_study(mistake) for mistake in error.mistakes]) from error
    if not isinstance(data, dict):
        raise SpecError([_not_a_study(data)])
    mistakes = not_finite(data)
    if mistakes:
        raise SpecError(mistakes)
    training = data.get("trainingInput")
    return _AiPlatformReader().run(data, training) if isinstance(training, dict) else data


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
    return _StudyReader().run(raw)


def _not_a_study(data: Any) -> SpecMistake:
    return SpecMistake(
        "", f"a study is a mapping of fields, not {kind_of(data)}", "write lines such as `name: digits-search`"
    )


def _for_study(mistake: SpecMistake) -> SpecMistake:
    """Replaces the hint for an empty document, which is about jobs."""
    if mistake.message != "is empty" or mistake.path:
        return mistake
    return SpecMistake("", "is empty", "write at least `name:`, `parameters:`, `metric:`, `goal:` and `budget:`")


class _StudyReader:
    """Collects mistakes. Invalid parts are left out; mistakes that only follow from them are not reported."""

    def __init__(self) -> None:
        self._mistakes = StudyMistakes()
        self._add = self._mistakes.add

    def run(self, raw: Any) -> StudySpec:
        copy = plain_copy(raw)
        self._mistakes.extend(copy.mistakes)
        if not isinstance(copy.value, dict):
            raise SpecError(self._mistakes.in_order({}) or [_not_a_study(copy.value)])
        document = {key: item for key, item in copy.value.items() if item is not None and not key.startswith("x-")}
        head = self._mistakes.validate(
            StudySpec,
            {
                **{key: item for key, item in document.items() if key not in (*_PARTS, *SHORTHANDS)},
                # Placeholders, to validate the other fields; each of these parts is read separately below.
                "parameters": {},
                "metrics": [],
                "budget": {},
                **({} if "name" in document else {"name": "unnamed"}),
            },
            (),
        )
        if "name" not in document:
            self._add(("name",), "is missing", "write a name for people, such as `name: digits-search`")
        search = SearchSpaceReader(self._mistakes).read(document)
        metrics = self._metrics(document)
        template = self._template(document, head)
        budget = self._budget(document, template)
        stopping = self._stopping(document, metrics)
        schedulers = TrialSchedulers(self._mistakes).read(document, metrics, budget)
        warm_start = self._warm_start(document)
        if "template" in document and "lost_after" in document:
            self._add(("lost_after",), "is only for studies without a template", "omit it")
        elif head is not None and head.lost_after == 0:
            self._add(("lost_after",), "must be more than 0: every trial would expire at once")
        winner = self._winner(document, metrics)
        if head is not None and template is not None:
            self._commands(head, template, search.parameters)
        if head is not None:
            search.check_algorithm(head.algorithm, metrics)
        if self._mistakes:
            raise SpecError(self._mistakes.in_order(document)[:_MAX_MISTAKES])
        assert head is not None  # noqa: S101 (else there was a mistake)
        assert budget is not None  # noqa: S101
        return head.model_copy(
            update={
                "template": template,
                "parameters": search.parameters,
                "constraints": tuple(constraint.text for constraint in search.constraints),
                "metrics": metrics,
                "budget": budget,
                "stopping": stopping,
                "fidelity": schedulers.fidelity,
                "population": schedulers.population,
                "initial": search.initial,
                "warm_start": warm_start,
                "winner": winner,
            }
        )

    def _metrics(self, document: Mapping[str, Any]) -> tuple[Metric, ...]:
        raw = document.get("metrics")
        if "metric" in document or "goal" in document:
            if raw is not None:
                self._add(("metric",), "cannot be combined with metrics", "write one of the two")
                return ()
            return self._metric(document)
        if raw is None:
            self._add(("metric",), "is missing", "write what the trials report, such as `metric: loss`")
            self._add(("goal",), "is missing", MISSING_HINTS[Metric, "goal"])
            return ()
        if isinstance(raw, dict):
            raw = [{"name": name, "goal": goal} for name, goal in raw.items()]
        if not isinstance(raw, list) or not raw:
            self._add(("metrics",), "has no metric", "write `metrics: [{name: accuracy, goal: maximize}]`")
            return ()
        parsed = [self._mistakes.validate(Metric, item, ("metrics", number)) for number, item in enumerate(raw)]
        names = [metric.name for metric in parsed if metric is not None]
        for name in sorted({name for name in names if names.count(name) > 1}):
            self._add(("metrics",), f"has {name} twice")
        if len(raw) > 5:
            self._add(("metrics",), f"has {len(raw)} metrics; the maximum is 5")
        return tuple(metric for metric in parsed if metric is not None)

    def _metric(self, document: Mapping[str, Any]) -> tuple[Metric, ...]:
        """The metric of ``metric`` and ``goal``, or of ``metric: {name, goal}``; mistakes have the paths as written."""
        raw = document.get("metric")
        places: dict[str, Path] = {"name": ("metric",), "goal": ("goal",)}
        data = {"name": raw, "goal": document.get("goal")}
        if isinstance(raw, dict):
            places = {field: ("metric", field) for field in ("name", "goal")}
            data = dict(raw)
            if "goal" in document:
                if data.get("goal") is not None:
                    self._add(("goal",), "cannot be combined with metric.goal", "write one of the two")
                data["goal"] = document["goal"]
                places["goal"] = ("goal",)
        metric = self._mistakes.validate(Metric, data, ("metric",), places)
        return () if metric is None else (metric,)

    def _budget(self, document: Mapping[str, Any], template: JobSpec | None) -> Budget | None:
        budget = self._mistakes.validate(Budget, document.get("budget", {}), ("budget",))
        if budget is None:
            return None
        if budget.max_time == 0:
            self._add(("budget", "max_time"), "must be more than 0: the study would end before its first trial")
        if not budget.has_end:
            self._add(("budget",), "has no limit", "write `budget: {trials: 50}`, or max_time or gpu_hours")
        elif budget.trials is None and budget.max_time is None and not _may_have_gpus(document, template):
            message = "has no limit: trials without GPUs never spend gpu_hours"
            self._add(("budget",), message, "write `budget: {trials: 50}`, or max_time")
        return budget

    def _stopping(self, document: Mapping[str, Any], metrics: tuple[Metric, ...]) -> Stopping | None:
        raw = document.get("stopping")
        if raw is None:
            return None
        stopping = self._mistakes.validate_or_word(Stopping, "rule", raw, ("stopping",))
        if stopping is not None and len(metrics) > 1:
            self._add(("stopping",), "compares trials by one metric, but the study has several", "omit it")
        if document.get("template") is None:
            self._add(("stopping",), "stops jobs early, but the study has no template", "omit it")
        if stopping is not None and stopping.max_steps is not None and stopping.max_steps < stopping.min_steps:
            message = f"is {stopping.max_steps}, but no trial is stopped before step {stopping.min_steps} (min_steps)"
            self._add(("stopping", "max_steps"), message, "write a larger max_steps, or a smaller min_steps")
        return stopping

    def _template(self, document: Mapping[str, Any], head: StudySpec | None) -> JobSpec | None:
        raw = document.get("template")
        if raw is None:
            return None
        if not isinstance(raw, dict):
            self._add(("template",), f"must be a job spec, not {kind_of(raw)}")
            return None
        name, project = (head.name, head.project) if head is not None else ("unnamed", "default")
        job_name = name[:50].rstrip("._-") or "trial"
        template = {"name": job_name, "project": project, **raw}
        try:
            spec = parse_spec(template)
        except SpecError as error:
            self._mistakes.extend(
                replace(mistake, path=f"template.{mistake.path}" if mistake.path else "template")
                for mistake in error.mistakes
            )
            return None
        own = {key: item for key, item in raw.items() if item is not None}.get("name", job_name)
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

    def _warm_start(self, document: Mapping[str, Any]) -> tuple[str, ...]:
        raw = document.get("warm_start", [])
        raw = [raw] if isinstance(raw, str) else raw
        if not isinstance(raw, list) or len(raw) > 20 or not all(isinstance(study, str) for study in raw):
            self._add(("warm_start",), "must be a list of at most 20 studies, by name or id")
            return ()
        return tuple(raw)

    def _winner(self, document: Mapping[str, Any], metrics: tuple[Metric, ...]) -> Winner | None:
        raw = document.get("winner")
        if raw is None:
            return None
        winner = self._mistakes.validate_or_word(Winner, "model", raw, ("winner",))
        if document.get("template") is None:
            self._add(("winner",), "registers a job's output, but the study has no template", "omit it")
        if len(metrics) > 1:
            self._add(("winner",), "is the best by one metric, but the study has several", "omit it")
        return winner


def _may_have_gpus(document: Mapping[str, Any], template: JobSpec | None) -> bool:
    """Whether trials may use GPUs; assumed for a template with mistakes."""
    if template is None:
        return document.get("template") is not None
    return any(role.resources.gpus for role in template.roles.values())


# --- hptuning_config.yaml: https://cloud.google.com/ai-platform/training/docs/reference/rest/v1/projects.jobs ---------

# Replicas of a scale tier: (workers, parameter servers) next to the master.
_TIERS: Final = {"BASIC": (0, 0), "BASIC_GPU": (0, 0), "STANDARD_1": (4, 3), "PREMIUM_1": (19, 11)}
# GPUs of a master or worker of a legacy machine type; other types have none.
_LEGACY_GPUS: Final = {
    "standard_gpu": 1, "standard_p100": 1, "standard_v100": 1, "large_model_v100": 1, "complex_model_m_gpu": 4,
    "complex_model_m_p100": 4, "complex_model_m_v100": 4, "complex_model_l_gpu": 8, "complex_model_l_v100": 8,
}  # fmt: skip
_SCALES: Final = {
    "NONE": None, "SCALE_TYPE_UNSPECIFIED": None, "UNIT_LINEAR_SCALE": "linear", "UNIT_LOG_SCALE": "log",
    "UNIT_REVERSE_LOG_SCALE": "reverse-log",
}  # fmt: skip
_ALGORITHMS: Final = {"ALGORITHM_UNSPECIFIED": "auto", "GRID_SEARCH": "grid", "RANDOM_SEARCH": "random"}
_TYPES: Final = {"DOUBLE": "float", "INTEGER": "integer", "CATEGORICAL": "categorical", "DISCRETE": "discrete"}
_GOALS: Final = {"MAXIMIZE": "maximize", "MINIMIZE": "minimize"}
_TUNING_FIELDS: Final = (
    "goal", "params", "maxTrials", "maxFailedTrials", "maxParallelTrials", "hyperparameterMetricTag",
    "enableTrialEarlyStopping", "resumePreviousJobId", "algorithm",
)  # fmt: skip
_PARAMETER_FIELDS: Final = (
    "parameterName", "type", "minValue", "maxValue", "categoricalValues", "discreteValues", "scaleType",
)  # fmt: skip


class _AiPlatformReader:
    """Converts the job of AI Platform Training whose ``trainingInput`` has ``hyperparameters``.

    Regions, versions and machine types are left out, except the GPUs of machine types.
    """

    def __init__(self) -> None:
        self._mistakes: list[SpecMistake] = []

    def run(self, job: Mapping[str, Any], training: Mapping[str, Any]) -> dict[str, Any]:
        """Raises ``SpecError`` with all mistakes, by their paths in the file."""
        tuning = training.get("hyperparameters")
        path = "trainingInput.hyperparameters"
        if not isinstance(tuning, dict):
            raise SpecError([SpecMistake(path, "is missing", "a job without it is no study; see `trainmaster run`")])
        self._demand_known(tuning, _TUNING_FIELDS, path)
        goal = self._word(tuning, "goal", _GOALS, path)
        parameters = self._parameters(tuning.get("params"), f"{path}.params")
        algorithm = self._word(tuning, "algorithm", _ALGORITHMS, path, "ALGORITHM_UNSPECIFIED")
        template = self._template(training)
        if self._mistakes:
            raise SpecError(self._mistakes[:_MAX_MISTAKES])
        budget = {"trials": tuning.get("maxTrials", 1), "parallel": tuning.get("maxParallelTrials", 1)}
        if tuning.get("maxFailedTrials"):
            budget["failed_trials"] = tuning["maxFailedTrials"]
        study = {
            "name": job.get("jobId", "hptuning"),
            "parameters": parameters,
            "metric": tuning.get("hyperparameterMetricTag", "training/hptuning/metric"),
            "goal": goal,
            "algorithm": algorithm,
            "budget": budget,
            "template": template,
        }
        if tuning.get("enableTrialEarlyStopping"):
            study["stopping"] = "decay-curve"
        if tuning.get("resumePreviousJobId"):
            study["warm_start"] = [tuning["resumePreviousJobId"]]
        return study

    def _parameters(self, raw: Any, path: str) -> dict[str, Any]:
        if not isinstance(raw, list) or not raw:
            self._mistakes.append(SpecMistake(path, "is missing", "write a list with parameterName and type"))
            return {}
        return dict(self._parameter(item, f"{path}[{number}]") for number, item in enumerate(raw))

    def _parameter(self, raw: Any, path: str) -> tuple[str, dict[str, Any]]:
        if not isinstance(raw, dict) or not isinstance(raw.get("parameterName"), str):
            self._mistakes.append(SpecMistake(f"{path}.parameterName", "is missing", None))
            return "", {}
        self._demand_known(raw, _PARAMETER_FIELDS, path)
        kind = self._word(raw, "type", _TYPES, path)
        parameter: dict[str, Any] = {"type": kind}
        if kind in ("float", "integer"):
            parameter |= {"min": raw.get("minValue"), "max": raw.get("maxValue")}
            scale = self._word(raw, "scaleType", _SCALES, path, "NONE")
            if scale is not None:
                parameter["scale"] = scale
        else:
            parameter["values"] = raw.get("categoricalValues" if kind == "categorical" else "discreteValues")
        return raw["parameterName"], parameter

    def _template(self, training: Mapping[str, Any]) -> dict[str, Any]:
        """The job of a trial; without a command if the file has none."""
        tier = training.get("scaleTier", "CUSTOM" if "masterType" in training else "BASIC")
        workers, servers = _TIERS.get(tier, (training.get("workerCount", 0), training.get("parameterServerCount", 0)))
        if tier not in (*_TIERS, "CUSTOM"):
            known = ", ".join((*_TIERS, "CUSTOM"))
            self._mistakes.append(SpecMistake("trainingInput.scaleTier", f"must be one of {known}, not {tier}", None))
        counts = {"chief": 1, "worker": int(workers), "ps": int(servers)}
        template: dict[str, Any] = {
            "roles": {
                role: {"replicas": count, **_resources(training, role, tier)} for role, count in counts.items() if count
            }
            if workers or servers
            else {"worker": {"replicas": 1, **_resources(training, "chief", tier)}}
        }
        if "pythonModule" in training:
            template["command"] = ["python", "-m", training["pythonModule"]]
        folder = ["--job-dir=/data/output"] if training.get("jobDir") else []
        if training.get("args") or folder:
            template["args"] = [*(training.get("args") or []), *folder]
        limit = (training.get("scheduling") or {}).get("maxRunningTime")
        if limit:
            template["max_run_time"] = limit
        return template

    def _word(
        self, data: Mapping[str, Any], name: str, words: Mapping[str, str | None], path: str, default: str = ""
    ) -> str | None:
        word = data.get(name, default)
        if word not in words:
            message = f"must be one of {', '.join(words)}" + (f", not {word}" if word else "")
            self._mistakes.append(SpecMistake(f"{path}.{name}", message, None))
        return words.get(word)

    def _demand_known(self, data: Mapping[str, Any], known: Iterable[str], path: str) -> None:
        self._mistakes += [
            SpecMistake(f"{path}.{name}", "unknown field", f"AI Platform has {', '.join(known)}")
            for name in data
            if name not in known
        ]


def _resources(training: Mapping[str, Any], role: str, tier: str) -> dict[str, Any]:
    """The GPUs of a role: of its accelerators, of its machine type, or of the tier."""
    part = {"chief": "master", "worker": "worker", "ps": "parameterServer"}[role]
    accelerators = (training.get(f"{part}Config") or {}).get("acceleratorConfig") or {}
    machine = training.get(f"{part}Type", "")
    count = int(accelerators.get("count", _LEGACY_GPUS.get(machine, 1 if tier == "BASIC_GPU" else 0)))
    return {"resources": {"gpus": count}} if count else {}
