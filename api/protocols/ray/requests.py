"""A submission as Ray's client sends it, read strictly.

https://docs.ray.io/en/latest/cluster/running-applications/job-submission/openapi.html
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from api.protocols.kit.errors import NotServed
from api.protocols.kit.json_values import shortened
from core.db.json import dump_json
from core.domain.errors import InvalidRequest

# Characters that are safe in a URL path: the client does not escape the id.
_SUBMISSION_ID: Final = re.compile(r"[^/?#%\\\s\x00-\x1f\x7f]{1,200}")
_FIELDS: Final = frozenset(
    {
        "entrypoint",
        "submission_id",
        "job_id",
        "runtime_env",
        "metadata",
        "entrypoint_num_cpus",
        "entrypoint_num_gpus",
        "entrypoint_memory",
        "entrypoint_resources",
        "entrypoint_label_selector",
    }
)
_ABSENT: Final = {"retry_policy": "is not served: a driver runs once; leave it out"}
_STORED_LIMIT: Final = 64 * 1024  # bytes of JSON: lists of a project's jobs include each job's request
ENTRYPOINT_LIMIT: Final = 100_000  # characters; Linux takes no longer argument than 128 KiB


@dataclass(frozen=True, slots=True)
class JobRequest:
    """``submission_id``: empty if the server generates one. Omitted numbers are ``None``."""

    entrypoint: str
    submission_id: str = ""
    runtime_env: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)
    num_cpus: float | None = None
    num_gpus: float | None = None
    memory: int | None = None
    resources: Mapping[str, float] = field(default_factory=dict)
    label_selector: Mapping[str, str] = field(default_factory=dict)

    @property
    def stored_fields(self) -> dict[str, Any]:
        """The request as sent; part of the job's details."""
        found = {
            "entrypoint": self.entrypoint,
            "runtime_env": dict(self.runtime_env),
            "metadata": dict(self.metadata),
            "entrypoint_num_cpus": self.num_cpus,
            "entrypoint_num_gpus": self.num_gpus,
            "entrypoint_memory": self.memory,
            "entrypoint_resources": dict(self.resources) or None,
            "entrypoint_label_selector": dict(self.label_selector) or None,
        }
        return {name: value for name, value in found.items() if value is not None}


def read_job(raw: Any) -> JobRequest:
    """Raises ``InvalidRequest``, or ``NotServed`` for unsupported features of Ray."""
    if not isinstance(raw, Mapping):
        raise InvalidRequest("The body must be a JSON object with an entrypoint.", field="body")
    raw = {name: value for name, value in raw.items() if value is not None}
    demand_known(raw, _FIELDS, _ABSENT, "")
    entrypoint = raw.get("entrypoint", "")
    if not isinstance(entrypoint, str) or not entrypoint.strip():
        raise InvalidRequest(
            f"entrypoint must be a command such as `python train.py`, got {shortened(entrypoint)}.", field="entrypoint"
        )
    if len(entrypoint) > ENTRYPOINT_LIMIT:
        raise InvalidRequest(
            f"entrypoint has more than {ENTRYPOINT_LIMIT:,} characters; put it into a script in the working_dir.",
            field="entrypoint",
        )
    memory = number_of(raw, "entrypoint_memory")
    if memory is not None and not memory.is_integer():
        raise InvalidRequest(f"entrypoint_memory must be whole bytes, got {memory}.", field="entrypoint_memory")
    runtime_env = raw.get("runtime_env", {})
    if not isinstance(runtime_env, Mapping):
        raise InvalidRequest(f"runtime_env must be a dict, got {shortened(runtime_env)}.", field="runtime_env")
    for name, value in (("metadata", raw.get("metadata")), ("runtime_env", runtime_env)):
        if len(dump_json(value)) > _STORED_LIMIT:
            raise InvalidRequest(
                f"{name} has more than {_STORED_LIMIT // 1024} KiB; put it into a file in the working_dir.", field=name
            )
    return JobRequest(
        entrypoint=entrypoint,
        submission_id=_submission_id(raw),
        runtime_env=runtime_env,
        metadata=texts_of(raw, "metadata"),
        num_cpus=number_of(raw, "entrypoint_num_cpus"),
        num_gpus=number_of(raw, "entrypoint_num_gpus"),
        memory=int(memory) if memory else None,
        resources=_amounts(raw),
        label_selector=texts_of(raw, "entrypoint_label_selector"),
    )


def demand_known(raw: Mapping[str, Any], served: Collection[str], absent: Mapping[str, str], where: str) -> None:
    """Refuse names that are not in ``served``. ``absent``: Ray's unsupported fields -> message."""
    for name in raw:
        if name in served:
            continue
        at = f"{where}{name}"[:200]
        if name in absent:
            raise NotServed(f"{at} {absent[name]}.", field=at)
        raise InvalidRequest(
            f"{at} is not known to this platform, which serves what Ray 2.60 sends; leave it out.", field=at
        )


def texts_of(raw: Mapping[str, Any], name: str, where: str = "") -> dict[str, str]:
    """A dict of text to text; empty if omitted."""
    value = raw.get(name, {})
    at = f"{where}{name}"
    if not isinstance(value, Mapping):
        raise InvalidRequest(f"{at} must be a dict, got {shortened(value)}.", field=at)
    for key, text in value.items():
        if not isinstance(text, str):
            raise InvalidRequest(f"{at} values must be strings, got {shortened(text)} for {shortened(key)}.", field=at)
    return dict(value)


def number_of(raw: Mapping[str, Any], name: str) -> float | None:
    """A finite number of at least 0; ``None`` if omitted."""
    value = raw.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise InvalidRequest(f"{name} must be a number from 0 on, got {shortened(value)}.", field=name)
    return float(value)


def _amounts(raw: Mapping[str, Any]) -> dict[str, float]:
    value = raw.get("entrypoint_resources", {})
    if not isinstance(value, Mapping):
        raise InvalidRequest(
            f"entrypoint_resources must be a dict, got {shortened(value)}.", field="entrypoint_resources"
        )
    found = {}
    for name in value:
        try:
            found[name] = number_of(value, name) or 0.0
        except InvalidRequest as error:
            raise InvalidRequest(f"entrypoint_resources.{error.sentence}", field="entrypoint_resources") from error
    return found


def _submission_id(raw: Mapping[str, Any]) -> str:
    """``job_id`` is its former name."""
    name = "submission_id" if raw.get("submission_id") else "job_id"
    value = raw.get(name, "")
    if value == "":
        return ""
    if not isinstance(value, str) or not _SUBMISSION_ID.fullmatch(value) or value in (".", ".."):
        raise InvalidRequest(
            f"{name} must be at most 200 characters without spaces, /, \\, ?, # and %, got {shortened(value)}.",
            field=name,
        )
    return value
