"""From what users write to the canonical :class:`~trainmaster.spec.model.JobSpec`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml
from pydantic import ValidationError

from trainmaster.spec.mistakes import SpecError, SpecMistake
from trainmaster.spec.model import JobSpec

__all__ = ["SpecError", "SpecMistake", "parse_spec", "parse_spec_text", "spec_json_schema"]

_COUNTS = {"chief": "chief", "workers": "worker", "ps": "ps", "evaluator": "evaluator", "evaluators": "evaluator"}
_DEFAULTS = ("gpus", "cpu", "memory", "shm", "gpu_type", "processes_per_replica")


def parse_spec(raw: Mapping[str, Any]) -> JobSpec:
    """The canonical spec. Raises :class:`SpecError`."""
    if not isinstance(raw, Mapping):
        raise SpecError([SpecMistake("", "a job spec is a mapping of fields")])
    data = dict(raw)
    roles: dict[str, dict[str, Any]] = {
        str(name): {"replicas": role} if isinstance(role, int) else dict(role or {})
        for name, role in dict(data.pop("roles", None) or {}).items()
    }
    for key, role_name in _COUNTS.items():
        count = data.pop(key, None)
        if count:
            roles.setdefault(role_name, {}).setdefault("replicas", int(count))
    if not roles:
        roles["worker"] = {}
    for key in _DEFAULTS:
        value = data.pop(key, None)
        if value is None:
            continue
        for name, role in roles.items():
            if key in {"gpus", "gpu_type", "processes_per_replica"} and name in {"ps", "evaluator"}:
                continue
            if key == "processes_per_replica":
                role.setdefault(key, value)
            else:
                role["resources"] = {key: value, **(role.get("resources") or {})}
    try:
        return JobSpec.model_validate({**data, "roles": roles})
    except ValidationError as error:
        raise SpecError(SpecMistake(".".join(map(str, item["loc"])), item["msg"]) for item in error.errors()) from None


def parse_spec_text(text: str) -> JobSpec:
    """The same from YAML or JSON."""
    try:
        raw = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise SpecError([SpecMistake("", f"not valid YAML: {error}")]) from None
    return parse_spec(raw)


def spec_json_schema() -> dict[str, Any]:
    """JSON Schema of a job spec."""
    return JobSpec.model_json_schema()
