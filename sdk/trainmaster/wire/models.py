"""API models of registered models, their versions, aliases and history."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, Field

from trainmaster.spec.fields import DISPLAY_NAME_PATTERN
from trainmaster.wire.base import WireModel, WireRequest

VersionState = Literal["waiting", "registering", "ready", "failed"]
Stage = Literal["none", "staging", "production", "archived"]
STAGES: Final[tuple[Stage, ...]] = ("none", "staging", "production", "archived")
# States that no longer change without a user's request.
FINAL_VERSION_STATES: Final[frozenset[str]] = frozenset({"ready", "failed"})
# Built-in alias of the newest ready version.
LATEST: Final = "latest"

_NAME: Final = re.compile(DISPLAY_NAME_PATTERN[1:-1])
# Vertex AI's aliases, and also a single letter.
_ALIAS: Final = re.compile(r"[a-z]([a-zA-Z0-9-]{0,126}[a-z0-9])?")
_LABEL_KEY: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._/-]{0,61}[A-Za-z0-9])?")
_MOST_LABELS: Final = 64


def check_model_name(name: str) -> str:
    """``name``. Raises ``ValueError``: not a valid model name."""
    if not _NAME.fullmatch(name):
        raise ValueError(
            "write 1 to 63 letters (a to z), digits, '.', '_' and '-', with a letter or digit at both ends"
        )
    return name


def check_alias(alias: str) -> str:
    """``alias``. Raises ``ValueError``: not a valid alias, or the built-in one."""
    if not _ALIAS.fullmatch(alias):
        raise ValueError(
            "an alias begins with a lower-case letter, has letters, digits and '-', and at most 128 characters"
        )
    if alias == LATEST:
        raise ValueError("'latest' always names the newest ready version; choose another alias")
    return alias


def _labels(labels: dict[str, str]) -> dict[str, str]:
    if len(labels) > _MOST_LABELS:
        raise ValueError(f"at most {_MOST_LABELS} labels")
    for key, value in labels.items():
        if not _LABEL_KEY.fullmatch(key):
            raise ValueError(f"{key[:70]!r} is not a label: 1 to 63 letters, digits, '.', '_', '/' and '-'")
        if len(value) > 256:
            raise ValueError(f"the value of label {key!r} has more than 256 characters")
    return labels


ModelName = Annotated[str, AfterValidator(check_model_name)]
Alias = Annotated[str, AfterValidator(check_alias)]
Labels = Annotated[dict[str, str], AfterValidator(_labels)]
Description = Annotated[str, Field(max_length=10_000)]


class ModelSource(WireModel):
    """Source of a version's files. ``path``: relative to the job's output, of a checkpoint for that ``kind``; for an
    upload, volume/path without a job.
    """

    kind: Literal["output", "checkpoint", "upload"]
    job: str = ""
    path: str = ""


class ModelLineage(WireModel):
    """Lineage of a version at its registration; the job may have been deleted since. ``job`` is empty for an upload.

    ``code``: digest of the code archive. ``data``: the job's input and mounts as volume/path. ``parameters``: of the
    trial, and those logged to MLflow. ``metrics``: at the checkpoint's step, or the last values. ``spec``: the job's
    spec.
    """

    job: str
    job_name: str
    job_state: str = ""
    attempt: int | None = None
    user: str = ""
    code: str | None = None
    images: dict[str, str] = Field(default_factory=dict)
    commands: dict[str, str] = Field(default_factory=dict)
    data: list[str] = Field(default_factory=list)
    parameters: dict[str, Any] = Field(default_factory=dict)
    metrics: dict[str, float] = Field(default_factory=dict)
    step: int | None = None
    study: str | None = None
    study_id: str | None = None
    trial: int | None = None
    cloned_from: str | None = None
    spec: dict[str, Any] = Field(default_factory=dict)


class VersionView(WireModel):
    """A version as shown in lists. ``version``: counts from 1. ``done_bytes``: copied so far, while it is registering.

    ``digest``: of all its files; equal for equal content. ``used_by``: deployments that serve it or may roll back to
    it, which protect it from deletion. ``served_by``: deployments whose active or pending revision uses this version.
    """

    id: str
    model: str
    project: str
    version: int
    state: VersionState
    reason: str = ""
    stage: Stage = "none"
    aliases: list[str] = Field(default_factory=list)
    is_protected: bool = False
    used_by: list[str] = Field(default_factory=list)
    served_by: list[str] = Field(default_factory=list)
    description: str = ""
    labels: dict[str, str] = Field(default_factory=dict)
    format: str = ""
    size_bytes: int | None = None
    file_count: int | None = None
    done_bytes: int = 0
    digest: str | None = None
    source: ModelSource
    metrics: dict[str, float] = Field(default_factory=dict)
    user: str
    created_at: datetime
    ready_at: datetime | None = None


class VersionDetail(VersionView):
    """``location``: volume/path, for read-only mounts in jobs; none until the version is ready."""

    location: str | None = None
    lineage: ModelLineage | None = None


class NewestVersion(WireModel):
    """A model's newest version in any state, as shown in lists of models."""

    version: int
    state: VersionState
    stage: Stage = "none"
    metrics: dict[str, float] = Field(default_factory=dict)
    created_at: datetime


class ModelView(WireModel):
    """A registered model. ``versions``: their number; ``latest``: the newest ready version; ``aliases``: alias to
    version.

    ``stages``: the newest version in each stage except ``none``.
    """

    id: str
    name: str
    project: str
    user: str
    description: str = ""
    labels: dict[str, str] = Field(default_factory=dict)
    is_protected: bool = False
    versions: int = 0
    latest: int | None = None
    aliases: dict[str, int] = Field(default_factory=dict)
    stages: dict[str, int] = Field(default_factory=dict)
    newest: NewestVersion | None = None
    created_at: datetime
    updated_at: datetime


class VersionFileView(WireModel):
    """A file of a version. ``sha256``: in hexadecimal digits."""

    path: str
    size_bytes: int
    sha256: str


class ModelChangeView(WireModel):
    """One entry of a model's history.

    ``what``: such as ``alias.moved``; ``before``, ``after``: versions, stages, flags.
    """

    at: datetime
    user: str
    what: str
    version: int | None = None
    name: str = ""
    before: str | None = None
    after: str | None = None
    reason: str = ""


class ModelCreate(WireRequest):
    name: ModelName
    description: Description = ""
    labels: Labels = Field(default_factory=dict)


class ModelChanges(WireRequest):
    """Omitted fields stay unchanged; ``labels`` replaces all labels."""

    description: Description | None = None
    labels: Labels | None = None
    is_protected: bool | None = None


class VersionRegister(WireRequest):
    """Register a version from a job's output or ``checkpoint``; creates the model if it does not exist."""

    job: str = Field(
        min_length=1, max_length=100, description="ID or name of a job; a name means the newest in the project."
    )
    path: str | None = Field(
        default=None,
        max_length=4096,
        description="File or folder of the job's output; `.` for the whole output. Default: its folder model.",
    )
    checkpoint: str | None = Field(
        default=None, min_length=1, max_length=4096, description="Path of one of the job's checkpoints."
    )
    when_done: bool = Field(default=False, description="Register when the job has succeeded.")
    description: Description = ""
    labels: Labels = Field(default_factory=dict)
    aliases: list[Alias] = Field(default_factory=list, max_length=16, description="Set when the version is ready.")
    stage: Stage = "none"


class VersionChanges(WireRequest):
    """Omitted fields stay unchanged; ``labels`` replaces all labels."""

    description: Description | None = None
    labels: Labels | None = None
    is_protected: bool | None = None


class StageRequest(WireRequest):
    stage: Stage
    reason: str = Field(default="", max_length=1000)


class AliasRequest(WireRequest):
    """``expected``: compare-and-set: the alias's present version, 0 for none; unset: any."""

    version: int = Field(ge=1, le=2**31 - 1)
    expected: int | None = Field(default=None, ge=0, le=2**31 - 1)
    reason: str = Field(default="", max_length=1000)
