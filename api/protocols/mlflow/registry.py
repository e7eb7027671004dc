"""Registered models: names of a project, and numbered versions of what its jobs logged.

Covers scripts that register trained models, and reading them back. Versions have no files of their own.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Response
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from api.app.unit_of_work import AppContextDep, UnitOfWork
from api.protocols.kit.errors import AlreadyExists
from api.protocols.kit.json_values import answer, milliseconds
from api.protocols.kit.script_access import ReadScope, ScriptAttempt
from api.protocols.mlflow.answers import MlflowRoute, Reader, Script
from api.protocols.mlflow.filters import ValueReader, in_order, matching, parse_filter, parse_order
from api.protocols.mlflow.models import own_model
from api.protocols.mlflow.runs import artifact_uri, pairs, writable_run
from api.protocols.mlflow.schemas import CreateRegistered, CreateVersion, SearchPage, SearchRegistered
from api.protocols.mlflow.search import page_of
from core.db.engine import insert_into
from core.db.tables import MlflowModelVersion, MlflowRegisteredModel
from core.domain.errors import Forbidden, InvalidRequest, NotFound

_API: Final = "/mlflow/api/2.0/mlflow"
router = APIRouter(route_class=MlflowRoute, include_in_schema=False)
_Name = Annotated[str, Query(max_length=250)]
_Version = Annotated[str, Query(max_length=20)]
_NAMES_OF_PROJECT: Final = 10_000
_VERSIONS_OF_NAME: Final = 10_000
_SCANNED: Final = 5_000
_NAME_KEYS: Final = frozenset({"name", "creation_timestamp", "last_updated_timestamp", "timestamp"})
_VERSION_KEYS: Final = frozenset({"name", "version_number", "run_id", "source_path", *_NAME_KEYS})
_MODEL: Final = re.compile(r"models:/(m-[\w-]+)")
_OF_RUN: Final = re.compile(r"runs:/([\w-]+)/(.+)")


def _create_name(work: UnitOfWork, attempt: ScriptAttempt, sent: CreateRegistered) -> MlflowRegisteredModel:
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
    insert = insert_into(work.session, MlflowRegisteredModel).values(**values).on_conflict_do_nothing()
    name: MlflowRegisteredModel | None = work.session.execute(
        insert.returning(MlflowRegisteredModel)
    ).scalar_one_or_none()
    if name is None:
        raise AlreadyExists(f"Registered Model (name={sent.name}) already exists.")
    return name


def _find_name(session: Session, scope: ReadScope, name: str, *, is_locked: bool = False) -> MlflowRegisteredModel:
    """The name in the first of the caller's projects that has it. Raises ``NotFound``."""
    query = select(MlflowRegisteredModel).where(
        MlflowRegisteredModel.name == name, MlflowRegisteredModel.project_id.in_(list(scope.projects))
    )
    query = query.order_by(MlflowRegisteredModel.created_at).limit(1)
    registered = session.execute(query.with_for_update() if is_locked else query).scalar_one_or_none()
    if registered is None:
        raise NotFound(f"Registered Model with name={name} not found.")
    return registered


def _create_version(work: UnitOfWork, attempt: ScriptAttempt, sent: CreateVersion) -> MlflowModelVersion:
    """The next version of a registered model. Raises ``NotFound`` for an unknown name, run or model."""
    name = _find_name(work.session, attempt.scope, sent.name, is_locked=True)
    if sent.run_id:
        writable_run(work.session, attempt, sent.run_id)
    model_id = sent.model_id or (match[1] if (match := _MODEL.fullmatch(sent.source)) else "")
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


def _find_version(session: Session, scope: ReadScope, name: str, version: str) -> MlflowModelVersion:
    registered = _find_name(session, scope, name)
    if not (version.isascii() and version.isdecimal() and len(version) < 10):
        raise InvalidRequest(f"version {version!r} is no number.", field="version")
    row = session.get(MlflowModelVersion, (registered.project_id, name, int(version)))
    if row is None:
        raise NotFound(f"Model Version (name={name}, version={version}) not found.")
    return row


def _download_uri(version: MlflowModelVersion) -> str:
    """URI of its files: those of the logged model, or of the run."""
    if version.model_id:
        return artifact_uri("models", version.model_id)
    if match := _OF_RUN.fullmatch(version.source):
        return f"{artifact_uri('runs', match[1])}/{match[2]}"
    return version.source


def _search_names(session: Session, scope: ReadScope, sent: SearchPage) -> dict[str, Any]:
    query = select(MlflowRegisteredModel).where(MlflowRegisteredModel.project_id.in_(list(scope.projects)))
    rows = session.execute(query.order_by(MlflowRegisteredModel.name).limit(_SCANNED)).scalars()
    page = _page([_bare_view(row) for row in rows], sent, "registered_models", _NAME_KEYS)
    for view in page["registered_models"]:
        view["latest_versions"] = _newest(session, view.pop("project_id"), view["name"])
    return page


def _search_versions(session: Session, scope: ReadScope, sent: SearchPage) -> dict[str, Any]:
    query = select(MlflowModelVersion).where(MlflowModelVersion.project_id.in_(list(scope.projects)))
    rows = session.execute(
        query.order_by(
            MlflowModelVersion.updated_at.desc(), MlflowModelVersion.name, MlflowModelVersion.version.desc()
        ).limit(_SCANNED)
    ).scalars()
    return _page([_version_view(row) for row in rows], sent, "model_versions", _VERSION_KEYS)


def _name_view(session: Session, name: MlflowRegisteredModel) -> dict[str, Any]:
    view = _bare_view(name)
    project_id = view.pop("project_id")
    return {**view, "latest_versions": _newest(session, project_id, name.name)}


def _version_view(version: MlflowModelVersion) -> dict[str, Any]:
    return {
        "name": version.name,
        "version": str(version.version),
        "creation_timestamp": milliseconds(version.created_at),
        "last_updated_timestamp": milliseconds(version.updated_at),
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
        "creation_timestamp": milliseconds(name.created_at),
        "last_updated_timestamp": milliseconds(name.updated_at),
        "description": name.description,
        "tags": pairs(name.tags),
    }


def _newest(session: Session, project_id: str, name: str) -> list[dict[str, Any]]:
    query = select(MlflowModelVersion).where(
        MlflowModelVersion.project_id == project_id, MlflowModelVersion.name == name
    )
    newest = session.execute(query.order_by(MlflowModelVersion.version.desc()).limit(1)).scalar_one_or_none()
    return [] if newest is None else [_version_view(newest)]


def _page(views: list[dict[str, Any]], sent: SearchPage, key: str, keys: frozenset[str]) -> dict[str, Any]:
    filters, orders = parse_filter(sent.filter, keys), parse_order(sent.order_by, keys)
    rows = in_order(matching(views, filters, _reader_of), orders, _reader_of)
    return page_of(key, rows, sent)


def _reader_of(view: dict[str, Any]) -> ValueReader:
    names = {"timestamp": "last_updated_timestamp", "version_number": "version", "source_path": "source"}

    def read(kind: str, key: str) -> Any:
        if kind == "tags":
            return next((tag["value"] for tag in view["tags"] if tag["key"] == key), None)
        value = view.get(names.get(key, key)) if kind == "attributes" else None
        return int(value) if key == "version_number" and value is not None else value

    return read


# --- routes ----------------------------------------------------------------------------------------------------------


@router.post(f"{_API}/registered-models/create")
def create_registered_model(sent: CreateRegistered, script: Script, context: AppContextDep) -> Response:
    with context.write() as work:
        name = _create_name(work, script.load(work.session, work.now), sent)
        return answer({"registered_model": _name_view(work.session, name)})


@router.get(f"{_API}/registered-models/get")
def get_registered_model(reader: Reader, context: AppContextDep, name: _Name) -> Response:
    with context.read() as work:
        registered = _find_name(work.session, reader.scope(work.session), name)
        return answer({"registered_model": _name_view(work.session, registered)})


@router.get(f"{_API}/registered-models/search")
def search_registered_models(
    reader: Reader, context: AppContextDep, sent: Annotated[SearchRegistered, Query()]
) -> Response:
    with context.read() as work:
        return answer(_search_names(work.session, reader.scope(work.session), sent))


@router.post(f"{_API}/model-versions/create")
def create_model_version(sent: CreateVersion, script: Script, context: AppContextDep) -> Response:
    with context.write() as work:
        version = _create_version(work, script.load(work.session, work.now), sent)
        return answer({"model_version": _version_view(version)})


@router.get(f"{_API}/model-versions/get")
def get_model_version(reader: Reader, context: AppContextDep, name: _Name, version: _Version) -> Response:
    with context.read() as work:
        row = _find_version(work.session, reader.scope(work.session), name, version)
        return answer({"model_version": _version_view(row)})


@router.get(f"{_API}/model-versions/get-download-uri")
def get_download_uri(reader: Reader, context: AppContextDep, name: _Name, version: _Version) -> Response:
    with context.read() as work:
        row = _find_version(work.session, reader.scope(work.session), name, version)
        return answer({"artifact_uri": _download_uri(row)})


@router.get(f"{_API}/model-versions/search")
def search_model_versions(reader: Reader, context: AppContextDep, sent: Annotated[SearchPage, Query()]) -> Response:
    with context.read() as work:
        return answer(_search_versions(work.session, reader.scope(work.session), sent))
