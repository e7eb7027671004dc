"""Registered models: names of a project, and numbered versions of what its jobs logged.

Covers scripts that register trained models, and reading them back. Versions have no files of their own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from sqlalchemy import func, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from api.app.unit_of_work import UnitOfWork
from api.protocols.kit.errors import AlreadyExists
from api.protocols.mlflow.callers import ReadScope, ScriptAttempt
from api.protocols.mlflow.filters import ValueReader, in_order, parse_filter, parse_order
from api.protocols.mlflow.models import own_model
from api.protocols.mlflow.runs import writable_run
from api.protocols.mlflow.schemas import CreateRegistered, CreateVersion
from api.protocols.mlflow.search import page_start
from api.protocols.mlflow.views import artifact_uri, ms, pairs
from core.db.tables import MlflowModelVersion, MlflowRegisteredModel
from core.domain.errors import Forbidden, InvalidRequest, NotFound

_NAMES_OF_PROJECT: Final = 10_000
_VERSIONS_OF_NAME: Final = 10_000
_SCANNED: Final = 5_000
_NAME_KEYS: Final = frozenset({"name", "creation_timestamp", "last_updated_timestamp", "timestamp"})
_VERSION_KEYS: Final = frozenset({"name", "version_number", "run_id", "source_path", *_NAME_KEYS})
_MODEL: Final = re.compile(r"models:/(m-[\w-]+)")
_OF_RUN: Final = re.compile(r"runs:/([\w-]+)/(.+)")


def create_name(work: UnitOfWork, attempt: ScriptAttempt, sent: CreateRegistered) -> MlflowRegisteredModel:
    """Raises ``AlreadyExists`` if the project has the name."""
    count = select(func.count()).where(MlflowRegisteredModel.project_id == attempt.project_id)
    if work.session.execute(count).scalar_one() >= _NAMES_OF_PROJECT:
        raise Forbidden(f"This project has {_NAMES_OF_PROJECT} registered models already; use one of their names.")
    values = {
        "project_id": attempt.project_id,
        "name": sent.name,
        "description": sent.description,
        "tags": {tag.key: tag.value for tag in sent.tags},
        "created_at": work.now,
        "updated_at": work.now,
    }
    # Two replicas may register the same name concurrently.
    insert = postgresql.insert if work.session.get_bind().dialect.name == "postgresql" else sqlite.insert
    made = insert(MlflowRegisteredModel).values(**values).on_conflict_do_nothing().returning(MlflowRegisteredModel)
    name = work.session.execute(made).scalar_one_or_none()
    if name is None:
        raise AlreadyExists(f"Registered Model (name={sent.name}) already exists.")
    return name


def find_name(session: Session, scope: ReadScope, name: str, *, is_locked: bool = False) -> MlflowRegisteredModel:
    """The name in the first of the caller's projects that has it. Raises ``NotFound``."""
    query = select(MlflowRegisteredModel).where(
        MlflowRegisteredModel.name == name, MlflowRegisteredModel.project_id.in_(list(scope.projects))
    )
    query = query.order_by(MlflowRegisteredModel.created_at).limit(1)
    found = session.execute(query.with_for_update() if is_locked else query).scalar_one_or_none()
    if found is None:
        raise NotFound(f"Registered Model with name={name} not found.")
    return found


def create_version(work: UnitOfWork, attempt: ScriptAttempt, sent: CreateVersion) -> MlflowModelVersion:
    """The next version of a registered model. Raises ``NotFound`` for an unknown name, run or model."""
    name = find_name(work.session, attempt.scope, sent.name, is_locked=True)
    if sent.run_id:
        writable_run(work.session, attempt, sent.run_id)
    model_id = sent.model_id or (found[1] if (found := _MODEL.fullmatch(sent.source)) else "")
    if model_id:
        own_model(work, attempt, model_id)
    query = select(func.max(MlflowModelVersion.version)).where(
        MlflowModelVersion.project_id == name.project_id, MlflowModelVersion.name == name.name
    )
    newest = work.session.execute(query).scalar_one() or 0
    if newest >= _VERSIONS_OF_NAME:
        raise Forbidden(f"{name.name} has {_VERSIONS_OF_NAME} versions already; register under another name.")
    version = MlflowModelVersion(
        project_id=name.project_id,
        name=name.name,
        version=newest + 1,
        job_id=attempt.job_id,
        run_id=sent.run_id,
        model_id=model_id,
        source=sent.source,
        description=sent.description,
        tags={tag.key: tag.value for tag in sent.tags},
        created_at=work.now,
        updated_at=work.now,
    )
    name.updated_at = work.now
    work.session.add(version)
    work.session.flush()
    return version


def find_version(session: Session, scope: ReadScope, name: str, version: str) -> MlflowModelVersion:
    registered = find_name(session, scope, name)
    if not (version.isascii() and version.isdecimal() and len(version) < 10):
        raise InvalidRequest(f"version {version!r} is no number.", field="version")
    found = session.get(MlflowModelVersion, (registered.project_id, name, int(version)))
    if found is None:
        raise NotFound(f"Model Version (name={name}, version={version}) not found.")
    return found


def download_uri(version: MlflowModelVersion) -> str:
    """URI of its files: those of the logged model, or of the run."""
    if version.model_id:
        return artifact_uri("models", version.model_id)
    if found := _OF_RUN.fullmatch(version.source):
        return f"{artifact_uri('runs', found[1])}/{found[2]}"
    return version.source


def search_names(session: Session, scope: ReadScope, sent: Mapping[str, Any]) -> dict[str, Any]:
    query = select(MlflowRegisteredModel).where(MlflowRegisteredModel.project_id.in_(list(scope.projects)))
    rows = session.execute(query.order_by(MlflowRegisteredModel.name).limit(_SCANNED)).scalars()
    page = _page([_bare_view(row) for row in rows], sent, "registered_models", _NAME_KEYS)
    for view in page["registered_models"]:
        view["latest_versions"] = _newest(session, view.pop("project_id"), view["name"])
    return page


def search_versions(session: Session, scope: ReadScope, sent: Mapping[str, Any]) -> dict[str, Any]:
    query = select(MlflowModelVersion).where(MlflowModelVersion.project_id.in_(list(scope.projects)))
    rows = session.execute(
        query.order_by(
            MlflowModelVersion.updated_at.desc(), MlflowModelVersion.name, MlflowModelVersion.version.desc()
        ).limit(_SCANNED)
    ).scalars()
    return _page([version_view(row) for row in rows], sent, "model_versions", _VERSION_KEYS)


def name_view(session: Session, name: MlflowRegisteredModel) -> dict[str, Any]:
    view = _bare_view(name)
    project_id = view.pop("project_id")
    return {**view, "latest_versions": _newest(session, project_id, name.name)}


def version_view(version: MlflowModelVersion) -> dict[str, Any]:
    return {
        "name": version.name,
        "version": str(version.version),
        "creation_timestamp": ms(version.created_at),
        "last_updated_timestamp": ms(version.updated_at),
        "current_stage": "None",
        "description": version.description,
        "source": version.source,
        "run_id": version.run_id,
        "model_id": version.model_id,
        "status": "READY",
        "tags": pairs(version.tags),
    }


def _bare_view(name: MlflowRegisteredModel) -> dict[str, Any]:
    return {
        "project_id": name.project_id,
        "name": name.name,
        "creation_timestamp": ms(name.created_at),
        "last_updated_timestamp": ms(name.updated_at),
        "description": name.description,
        "tags": pairs(name.tags),
    }


def _newest(session: Session, project_id: str, name: str) -> list[dict[str, Any]]:
    query = select(MlflowModelVersion).where(
        MlflowModelVersion.project_id == project_id, MlflowModelVersion.name == name
    )
    newest = session.execute(query.order_by(MlflowModelVersion.version.desc()).limit(1)).scalar_one_or_none()
    return [] if newest is None else [version_view(newest)]


def _page(views: list[dict[str, Any]], sent: Mapping[str, Any], key: str, keys: frozenset[str]) -> dict[str, Any]:
    filters, orders = parse_filter(sent["filter"], keys), parse_order(sent["order_by"], keys)
    start, limit = page_start(sent["page_token"]), sent["max_results"]
    found = in_order(
        [view for view in views if all(item.holds(_reader_of(view)) for item in filters)], orders, _reader_of
    )
    end = start + limit
    return {key: found[start:end], **({"next_page_token": str(end)} if end < len(found) else {})}


def _reader_of(view: dict[str, Any]) -> ValueReader:
    names = {"timestamp": "last_updated_timestamp", "version_number": "version", "source_path": "source"}

    def read(kind: str, key: str) -> Any:
        if kind == "tags":
            return next((tag["value"] for tag in view["tags"] if tag["key"] == key), None)
        found = view.get(names.get(key, key)) if kind == "attributes" else None
        return int(found) if key == "version_number" and found is not None else found

    return read
