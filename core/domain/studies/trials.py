"""A trial's job spec and environment."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from trainmaster.spec import JobSpec
from trainmaster.studies import StudySpec

_NAME_CHARS: Final = 63  # of a job's name
STUDY_LABEL: Final = "study"
TRIAL_LABEL: Final = "trial"
WINNER_LABEL: Final = "winner"
_WINNER_SUFFIX: Final = "-best"


def searched(spec: StudySpec, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """A trial's parameters without the fidelity parameter of successive halving."""
    return {
        name: value for name, value in parameters.items() if spec.fidelity is None or name != spec.fidelity.parameter
    }


def size_of(spec: StudySpec, parameters: Mapping[str, Any]) -> float:
    """The trial's fidelity; 0 in a study without halving."""
    return 0 if spec.fidelity is None else parameters.get(spec.fidelity.parameter, spec.fidelity.min)


def trial_spec(spec: StudySpec, number: int, parameters: Mapping[str, Any]) -> JobSpec:
    """The spec of the job of trial ``number``: the template with a name, labels and, unless disabled, arguments.

    Each trial gets a folder of its own in the template's output.
    """
    if spec.template is None:
        raise ValueError("a study without a template has no jobs")
    template = spec.template
    suffix = f"-{number}"
    changes: dict[str, Any] = {
        "name": f"{spec.name[: _NAME_CHARS - len(suffix)].rstrip('._-')}{suffix}",
        "labels": {STUDY_LABEL: spec.name, TRIAL_LABEL: str(number), **template.labels},
    }
    if template.output is not None:
        changes["output"] = f"{template.output}/{number}"
    if spec.arguments:
        changes |= _appended(template, arguments(parameters))
    return template.model_copy(update=changes)


def winner_spec(spec: StudySpec, number: int, parameters: Mapping[str, Any]) -> JobSpec:
    """The job spec that reruns the best trial ``number``, with the arguments of the spec's ``winner``."""
    if spec.winner is None:
        raise ValueError("a study without a winner runs no trial once more")
    job = trial_spec(spec, number, parameters)
    changes: dict[str, Any] = {
        "name": f"{spec.name[: _NAME_CHARS - len(_WINNER_SUFFIX)].rstrip('._-')}{_WINNER_SUFFIX}",
        "labels": {**job.labels, WINNER_LABEL: "true"},
        **_appended(job, spec.winner.arguments),
    }
    if job.output is not None:
        changes["output"] = f"{job.output}{_WINNER_SUFFIX}"
    return job.model_copy(update=changes)


def _appended(job: JobSpec, words: tuple[str, ...]) -> dict[str, Any]:
    """The fields of ``job`` that change when ``words`` follow the arguments of each role."""
    return {
        "args": (*job.args, *words),
        "roles": {
            name: role if role.args is None else role.model_copy(update={"args": (*role.args, *words)})
            for name, role in job.roles.items()
        },
    }


def arguments(parameters: Mapping[str, Any]) -> tuple[str, ...]:
    """``--name=value`` of each, as on Vertex AI: as two words, argparse would not take ``--x -1e-05``."""
    return tuple(f"--{name}={text_of(value)}" for name, value in parameters.items())


def text_of(value: Any) -> str:
    """A value as command-line text: numbers exactly, ``true`` and ``false``, text as it is."""
    return value if isinstance(value, str) else json.dumps(value)
