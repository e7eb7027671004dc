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


def arguments(parameters: Mapping[str, Any]) -> tuple[str, ...]:
    """``--name=value`` of each, as Vertex AI gives them: as two words, ``--x -1e-05`` is none to argparse."""
    return tuple(f"--{name}={text_of(value)}" for name, value in parameters.items())


def text_of(value: Any) -> str:
    """As a command line takes it: numbers exactly, ``true`` and ``false``, text as it is."""
    return value if isinstance(value, str) else json.dumps(value)
