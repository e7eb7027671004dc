"""Registered models of a project, their versions and aliases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import uuid4

from trainmaster.client.calls.build import params, path, typed, without_content
from trainmaster.client.calls.output import PLAIN
from trainmaster.client.steps import Call, HttpRequest, HttpResponse
from trainmaster.wire.base import Page
from trainmaster.wire.models import (
    AliasRequest,
    ModelChanges,
    ModelChangeView,
    ModelCreate,
    ModelView,
    Stage,
    StageRequest,
    VersionChanges,
    VersionDetail,
    VersionFileView,
    VersionRegister,
    VersionView,
)

_MODEL = "/projects/{project}/models/{model}"
_VERSION = f"{_MODEL}/versions/{{version}}"


def create_model(
    project: str, name: str, *, description: str = "", labels: Mapping[str, str] | None = None
) -> Call[ModelView]:
    """Create a model without versions; registering a version also creates the model."""
    body = ModelCreate(name=name, description=description, labels=dict(labels or {}))
    at = path("/projects/{project}/models", project=project)
    headers = {"Idempotency-Key": str(uuid4())}
    return typed(ModelView, "create_model", "POST", at, body=body, headers=headers, is_repeatable=True)


def list_models_page(
    project: str, *, search: str | None = None, limit: int | None = None, cursor: str | None = None
) -> Call[Page[ModelView]]:
    """One page of the project's models, by name."""
    query = params(search=search, limit=limit, cursor=cursor)
    return typed(
        Page[ModelView], "list_models", "GET", path("/projects/{project}/models", project=project), query=query
    )


def find_models_page(
    *,
    projects: Sequence[str] = (),
    stages: Sequence[Stage] = (),
    job: str | None = None,
    search: str | None = None,
    limit: int | None = None,
    cursor: str | None = None,
) -> Call[Page[ModelView]]:
    """One page of the models of all visible projects, by name.

    Args:
        stages: only models with a version in one of these stages.
        job: only models with a version from this job, by its ID.
    """
    query = params(project=list(projects), stage=list(stages), job=job, search=search, limit=limit, cursor=cursor)
    return typed(Page[ModelView], "find_models", "GET", "/models", query=query)


def get_model(project: str, model: str) -> Call[ModelView]:
    """The model with its aliases."""
    return typed(ModelView, "get_model", "GET", path(_MODEL, project=project, model=model))


def change_model(
    project: str,
    model: str,
    *,
    description: str | None = None,
    labels: Mapping[str, str] | None = None,
    is_protected: bool | None = None,
) -> Call[ModelView]:
    """Omitted fields stay unchanged; ``labels`` replaces all labels."""
    body = ModelChanges.model_validate(_changed_fields(description, labels, is_protected))
    return typed(ModelView, "change_model", "PATCH", path(_MODEL, project=project, model=model), body=body)


def delete_model(project: str, model: str, *, force: bool = False) -> Call[None]:
    """Delete the model with all versions; ``force``: even if protected or in use, for project admins."""
    at = path(_MODEL, project=project, model=model)
    return without_content("delete_model", "DELETE", at, query=params(force=force or None))


def list_model_changes_page(
    project: str, model: str, *, limit: int | None = None, cursor: str | None = None
) -> Call[Page[ModelChangeView]]:
    """One page of the model's history, newest first."""
    at = path(f"{_MODEL}/history", project=project, model=model)
    query = params(limit=limit, cursor=cursor)
    return typed(Page[ModelChangeView], "list_model_changes", "GET", at, query=query)


def set_model_alias(
    project: str, model: str, alias: str, version: int, *, expected: int | None = None, reason: str = ""
) -> Call[ModelView]:
    """Point the alias to a version (compare-and-set). ``expected``: its present version, 0: none; else ``Conflict``."""
    at = path(f"{_MODEL}/aliases/{{alias}}", project=project, model=model, alias=alias)
    body = AliasRequest(version=version, expected=expected, reason=reason)
    return typed(ModelView, "set_model_alias", "PUT", at, body=body)


def remove_model_alias(project: str, model: str, alias: str) -> Call[None]:
    at = path(f"{_MODEL}/aliases/{{alias}}", project=project, model=model, alias=alias)
    return without_content("remove_model_alias", "DELETE", at)


def register_version(
    project: str,
    model: str,
    job: str,
    *,
    path_in_output: str | None = None,
    checkpoint: str | None = None,
    when_done: bool = False,
    description: str = "",
    labels: Mapping[str, str] | None = None,
    aliases: Sequence[str] = (),
    stage: Stage = "none",
    idempotency_key: str | None = None,
) -> Call[VersionDetail]:
    """Register a version from a job's output or checkpoint; its files are copied later (``wait_for_version``).

    Args:
        path_in_output: file or folder of the output; default: its folder ``model``.
        when_done: for a running job: register the version when the job has succeeded.
        aliases: set when the version is ready.
    """
    body = VersionRegister(
        job=job,
        path=path_in_output,
        checkpoint=checkpoint,
        when_done=when_done,
        description=description,
        labels=dict(labels or {}),
        aliases=list(aliases),
        stage=stage,
    )
    headers = {"Idempotency-Key": idempotency_key or str(uuid4())}
    at = path(f"{_MODEL}/versions", project=project, model=model)
    return typed(VersionDetail, "register_version", "POST", at, body=body, headers=headers, is_repeatable=True)


def list_versions_page(
    project: str,
    model: str,
    *,
    stage: Stage | None = None,
    job: str | None = None,
    limit: int | None = None,
    cursor: str | None = None,
) -> Call[Page[VersionView]]:
    """One page of the model's versions, newest first."""
    at = path(f"{_MODEL}/versions", project=project, model=model)
    query = params(stage=stage, job=job, limit=limit, cursor=cursor)
    return typed(Page[VersionView], "list_versions", "GET", at, query=query)


def get_version(project: str, model: str, version: int | str) -> Call[VersionDetail]:
    """A version by number, alias, or ``latest``: the newest ready version."""
    at = path(_VERSION, project=project, model=model, version=version)
    return typed(VersionDetail, "get_version", "GET", at)


def change_version(
    project: str,
    model: str,
    version: int | str,
    *,
    description: str | None = None,
    labels: Mapping[str, str] | None = None,
    is_protected: bool | None = None,
) -> Call[VersionDetail]:
    """Omitted fields stay unchanged; ``labels`` replaces all labels. A version's files never change."""
    at = path(_VERSION, project=project, model=model, version=version)
    body = VersionChanges.model_validate(_changed_fields(description, labels, is_protected))
    return typed(VersionDetail, "change_version", "PATCH", at, body=body)


def set_version_stage(
    project: str, model: str, version: int | str, stage: Stage, *, reason: str = ""
) -> Call[VersionDetail]:
    """Set the stage: none, staging, production or archived; the history records the user and the reason."""
    at = path(f"{_VERSION}/stage", project=project, model=model, version=version)
    body = StageRequest(stage=stage, reason=reason)
    return typed(VersionDetail, "set_version_stage", "POST", at, body=body, is_repeatable=True)


def delete_version(project: str, model: str, version: int | str, *, force: bool = False) -> Call[None]:
    """Rejected if it is protected, has an alias, or is deployed, unless with ``force``, for project admins."""
    at = path(_VERSION, project=project, model=model, version=version)
    return without_content("delete_version", "DELETE", at, query=params(force=force or None))


def list_version_files_page(
    project: str, model: str, version: int | str, *, limit: int | None = None, cursor: str | None = None
) -> Call[Page[VersionFileView]]:
    """One page of the version's files with their hashes, by path."""
    at = path(f"{_VERSION}/files", project=project, model=model, version=version)
    return typed(Page[VersionFileView], "list_version_files", "GET", at, query=params(limit=limit, cursor=cursor))


def read_version_file_range(
    project: str, model: str, version: int | str, file: str, *, first: int | None = None, last: int | None = None
) -> Call[HttpResponse]:
    """Bytes ``first`` to ``last`` (inclusive) of a file of the version; all bytes without ``first``."""
    at = path(f"{_VERSION}/files/content", project=project, model=model, version=version)
    return Call(
        "download_version_file", HttpRequest("GET", at, params(path=file), _range(first, last)), lambda answer: answer
    )


def _range(first: int | None, last: int | None) -> dict[str, str]:
    return {**PLAIN, **({} if first is None else {"Range": f"bytes={first}-{'' if last is None else last}"})}


def _changed_fields(
    description: str | None, labels: Mapping[str, str] | None, is_protected: bool | None
) -> dict[str, Any]:
    fields = {
        "description": description,
        "labels": None if labels is None else dict(labels),
        "is_protected": is_protected,
    }
    return {name: value for name, value in fields.items() if value is not None}
