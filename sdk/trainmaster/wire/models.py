"""Registered models, their versions, aliases and history on the wire."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, Field

from trainmaster.wire.base import WireModel, WireRequest

VersionState = Literal["waiting", "registering", "ready", "failed"]
Stage = Literal["none", "staging", "production", "archived"]
STAGES: Final[tuple[Stage, ...]] = ("none", "staging", "production", "archived")
# Nothing happens to a version any more until somebody asks for it.
FINAL_VERSION_STATES: Final[frozenset[str]] = frozenset({"ready", "failed"})
# Names the newest version that is ready; never set by anybody.
LATEST: Final = "latest"

_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?")
# As Vertex AI has them, and one letter is enough.
_ALIAS: Final = re.compile(r"[a-z]([a-zA-Z0-9-]{0,126}[a-z0-9])?")
_LABEL_KEY: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._/-]{0,61}[A-Za-z0-9])?")
_MOST_LABELS: Final = 64


def check_model_name(name: str) -> str:
    """``name``. Raises ``ValueError``: no model can be called so."""
    if not _NAME.fullmatch(name):
        raise ValueError("write 1 to 63 lower-case letters, digits, '.', '_' and '-', a letter or digit first and last")
    return name


def check_alias(alias: str) -> str:
    """``alias``. Raises ``ValueError``: it is none, or the one that nobody sets."""
    if not _ALIAS.fullmatch(alias):
        raise ValueError(
            "an alias begins with a lower-case letter, has letters, digits and '-', and at most 128 characters"
        )
    if alias == LATEST:
        raise ValueError("'latest' always is the newest version that is ready; choose another alias")
    return alias


def _labels(labels: dict[str, str]) -> dict[str, str]:
    if len(labels) > _MOST_LABELS:
        raise ValueError(f"at most {_MOST_LABELS} labels")
    for key, value in labels.items():
        if not _LABEL_KEY.fullmatch(key):
            raise ValueError(f"{key[:70]!r} is no label: 1 to 63 letters, digits, '.', '_', '/' and '-'")
        if len(value) > 256:
            raise ValueError(f"the value of label {key!r} has more than 256 characters")
    return labels


ModelName = Annotated[str, AfterValidator(check_model_name)]
Alias = Annotated[str, AfterValidator(check_alias)]
Labels = Annotated[dict[str, str], AfterValidator(_labels)]
Description = Annotated[str, Field(max_length=10_000)]


class ModelSource(WireModel):
    """What a version was made of. ``path``: relative to the job's output; a checkpoint's where ``kind`` says so; volume/path of
    an upload, which is of no job.
    """

    kind: Literal["output", "checkpoint", "upload"]
    job: str = ""
    path: str = ""


class ModelLineage(WireModel):
    """Where a version comes from, as it was when it was registered; jobs may be deleted since. Of an upload ``job`` is empty.

    ``code``: the digest of the code archive. ``data``: the job's input and mounts, each volume/path. ``parameters``: of the
    trial, and what MLflow was told. ``metrics``: at the checkpoint's step, or the last values. ``spec``: the job's.
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
    """A version as lists show it. ``version``: counts from 1. ``done_bytes``: copied so far, while it is registering.

    ``digest``: of all its files; equal for equal content. ``used_by``: deployed models that serve it or may be taken back to it; it
    cannot be deleted. ``served_by``: those of them whose revision that serves, or is getting ready to, has it.
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
    """``location``: volume/path, to be mounted read-only into jobs. None until the version is ready."""

    location: str | None = None
    lineage: ModelLineage | None = None


class NewestVersion(WireModel):
    """A model's newest version, whatever its state: what a list of models shows of it."""

    version: int
    state: VersionState
    stage: Stage = "none"
    metrics: dict[str, float] = Field(default_factory=dict)
    created_at: datetime


class ModelView(WireModel):
    """``versions``: how many there are; ``latest``: the newest that is ready; ``aliases``: to versions.

    ``stages``: the newest version in each stage but ``none``.
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


class ModelFile(WireModel):
    """A file of a version. ``sha256``: in hexadecimal digits."""

    path: str
    size_bytes: int
    sha256: str


class ModelChange(WireModel):
    """One line of a model's history. ``what``: such as ``alias.moved``; ``before``, ``after``: versions, stages, flags."""

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
    """What is unstated stays; ``labels`` replaces all."""

    description: Description | None = None
    labels: Labels | None = None
    is_protected: bool | None = None


class VersionRegister(WireRequest):
    """From a job's output, or with ``checkpoint`` from one of its checkpoints; the model is made where there is none yet."""

    job: str = Field(
        min_length=1, max_length=100, description="Id or name: then the newest of that name in the project."
    )
    path: str | None = Field(
        default=None,
        max_length=4096,
        description="A file or folder of the job's output; '.' is all of it. Unstated: its folder model.",
    )
    checkpoint: str | None = Field(
        default=None, min_length=1, max_length=4096, description="As in its list of checkpoints."
    )
    when_done: bool = Field(default=False, description="Wait for the job's success, then register.")
    description: Description = ""
    labels: Labels = Field(default_factory=dict)
    aliases: list[Alias] = Field(default_factory=list, max_length=16, description="Set once the version is ready.")
    stage: Stage = "none"


class VersionChanges(WireRequest):
    """What is unstated stays; ``labels`` replaces all."""

    description: Description | None = None
    labels: Labels | None = None
    is_protected: bool | None = None


class StageRequest(WireRequest):
    stage: Stage
    reason: str = Field(default="", max_length=1000)


class AliasRequest(WireRequest):
    """``expected``: the version that the alias is believed to point to; 0: to none. Unstated: whichever."""

    version: int = Field(ge=1, le=2**31 - 1)
    expected: int | None = Field(default=None, ge=0, le=2**31 - 1)
    reason: str = Field(default="", max_length=1000)
