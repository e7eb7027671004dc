"""What a trial is: its job's spec, and what its containers are told."""

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
    """A trial's parameters without what halving says of its size."""
    return {name: value for name, value in parameters.items() if name != _size_name(spec)}


def size_of(spec: StudySpec, parameters: Mapping[str, Any]) -> float:
    """How large halving made the trial; 0 in a study without halving."""
    return 0 if spec.fidelity is None else parameters.get(spec.fidelity.parameter, spec.fidelity.min)


def _size_name(spec: StudySpec) -> str | None:
    return None if spec.fidelity is None else spec.fidelity.parameter


def trial_spec(spec: StudySpec, number: int, parameters: Mapping[str, Any]) -> JobSpec:
    """The spec of the job of trial ``number``: the template with a name, labels and, unless told not to, arguments.

    An output that the template names has a folder for each trial in it.
    """
    if spec.template is None:
        raise ValueError("a study without a template has no jobs")
    template = spec.template
    suffix = f"-{number}"
    changes: dict[str, Any] = {
        "name": f"{spec.name[: _NAME_CHARS - len(suffix)].rstrip('-')}{suffix}",
        "labels": {STUDY_LABEL: spec.name, TRIAL_LABEL: str(number), **template.labels},
    }
    if template.output is not None:
        changes["output"] = f"{template.output}/{number}"
    if spec.arguments:
        words = arguments(parameters)
        changes["args"] = (*template.args, *words)
        changes["roles"] = {
            name: role if role.args is None else role.model_copy(update={"args": (*role.args, *words)})
            for name, role in template.roles.items()
        }
    return template.model_copy(update=changes)


def winner_spec(spec: StudySpec, number: int, parameters: Mapping[str, Any]) -> JobSpec:
    """The spec of the job that runs the point of trial ``number``, the best one, once more: with the winner's own arguments."""
    if spec.winner is None:
        raise ValueError("a study without a winner runs no trial once more")
    job = trial_spec(spec, number, parameters)
    words = spec.winner.arguments
    changes: dict[str, Any] = {
        "name": f"{spec.name[: _NAME_CHARS - len(_WINNER_SUFFIX)].rstrip('-')}{_WINNER_SUFFIX}",
        "labels": {**job.labels, WINNER_LABEL: "true"},
        "args": (*job.args, *words),
        "roles": {
            name: role if role.args is None else role.model_copy(update={"args": (*role.args, *words)})
            for name, role in job.roles.items()
        },
    }
    if job.output is not None:
        changes["output"] = f"{job.output}{_WINNER_SUFFIX}"
    return job.model_copy(update=changes)


def arguments(parameters: Mapping[str, Any]) -> tuple[str, ...]:
    """``--name=value`` of each, as Vertex AI gives them: as two words, ``--x -1e-05`` is none to argparse."""
    return tuple(f"--{name}={text_of(value)}" for name, value in parameters.items())


def text_of(value: Any) -> str:
    """As a command line takes it: numbers exactly, ``true`` and ``false``, text as it is."""
    return value if isinstance(value, str) else json.dumps(value)
