"""Registered models of a project."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Request
from fastapi.responses import Response, StreamingResponse
from pydantic import Field
from sqlalchemy import select, tuple_
from trainmaster.wire import models as wire
from trainmaster.wire.base import Page

from api.app.unit_of_work import AppContext, AppContextDep, UnitOfWork
from api.auth import ProjectMember, ProjectViewer, Reader
from api.files import media_type_of
from api.http.paging import FilterValues, PageParams, PageQuery, make_cursor, plain, read_cursor, rows_by_name
from api.http.ranges import ByteRange, OpenFileResponse, attachment, parse_range
from api.http.routing import new_router
from api.http.tar import TarArchive, TarMember
from api.jobs.routes import IdempotencyKey
from api.models import service
from api.models.access import ModelAccess, ModelMember, ModelViewer, Version
from api.models.views import change_view, model_views, version_detail, version_views
from core.db.repositories import models
from core.db.tables import Model, ModelChange, ModelFile, ModelVersion, Volume
from core.domain.errors import NotFound
from core.domain.model_versions import VersionState
from core.registry import versions
from core.registry.versions import ReadyVersion
from core.storage.tree import Tree
from core.storage.volumes import tree_of

router = new_router("models")

_ALL = "/projects/{project}/models"
_MODEL = f"{_ALL}/{{model}}"

AliasName = Annotated[wire.Alias, Field(max_length=128)]
_CONTENT = {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}
_TAR = {"content": {"application/x-tar": {"schema": {"type": "string", "format": "binary"}}}}
_FORCE = Query(description="Also if it is protected, has an alias, or is deployed. Only for admins of the project.")


class ModelQuery(PageQuery):
    search: Annotated[str, Field(max_length=100, description="Part of the name.")] = ""


class ModelsQuery(PageQuery):
    """The filters of a list of models. A repeated filter matches any of its values."""

    project: Annotated[FilterValues, Field(description="Names of projects.")] = ()
    stage: Annotated[tuple[wire.Stage, ...], Field(max_length=4, description="Of any of the model's versions.")] = ()
    job: Annotated[str | None, Field(max_length=100, description="With a version of this job, by its id.")] = None
    search: Annotated[str, Field(max_length=100, description="Part of the name, case-insensitive.")] = ""


class VersionQuery(PageQuery):
    stage: Annotated[wire.Stage | None, Field(description="Only those in this stage.")] = None
    job: Annotated[str | None, Field(max_length=100, description="Only those of this job, by its id.")] = None


class FileQuery(PageQuery):
    limit: Annotated[int, Field(ge=1, le=1000)] = 200
    cursor: Annotated[str | None, Field(max_length=8192, description="`next_cursor` of the previous page.")] = None


@router.post(_ALL, operation_id="create_model", summary="Create a model without versions", status_code=201)
def create_model(
    body: wire.ModelCreate, project: ProjectMember, context: AppContextDep, key: IdempotencyKey = None
) -> wire.ModelView:
    """Registering a version also creates its model."""
    with context.write() as work:
        return model_views(work.session, [service.create(work, project, body, key)])[0]


@router.get(_ALL, operation_id="list_models", summary="Models of a project, by name")
def list_models(
    project: ProjectViewer, context: AppContextDep, query: Annotated[ModelQuery, Query()]
) -> Page[wire.ModelView]:
    with context.read() as work:
        wanted = select(Model).where(Model.project_id == project.load(work.session).id, Model.deleted_at.is_(None))
        if query.search:
            wanted = wanted.where(Model.name.contains(plain(query.search), autoescape=True))
        rows, cursor = rows_by_name(work.session, wanted, Model.name, query)
        return Page(items=model_views(work.session, [row[0] for row in rows]), next_cursor=cursor)


@router.get("/models", operation_id="find_models", summary="Models of all projects, by name")
def find_models(caller: Reader, context: AppContextDep, query: Annotated[ModelsQuery, Query()]) -> Page[wire.ModelView]:
    """Those that the caller may see."""
    with context.read() as work:
        rows = select(Model).where(Model.deleted_at.is_(None))
        project_ids = caller.project_ids(work.session, query.project)
        if project_ids is not None:
            rows = rows.where(Model.project_id.in_(project_ids))
        having = select(ModelVersion.model_id).where(
            ModelVersion.deleted_at.is_(None), ModelVersion.state != VersionState.DELETING.value
        )
        if query.stage:
            rows = rows.where(Model.id.in_(having.where(ModelVersion.stage.in_(query.stage))))
        if query.job is not None:
            rows = rows.where(Model.id.in_(having.where(ModelVersion.job_id == plain(query.job))))
        if query.search:
            rows = rows.where(Model.name.icontains(plain(query.search).strip(), autoescape=True))
        if query.cursor is not None:
            name, model_id = read_cursor(query.cursor, (str, str))
            rows = rows.where(tuple_(Model.name, Model.id) > (plain(name), plain(model_id)))
        found = work.session.scalars(rows.order_by(Model.name, Model.id).limit(query.limit + 1)).all()
        page = found[: query.limit]
        cursor = make_cursor(page[-1].name, page[-1].id) if len(found) > query.limit else None
        return Page(items=model_views(work.session, page), next_cursor=cursor)


@router.get(_MODEL, operation_id="get_model", summary="One model with its aliases")
def get_model(model: ModelViewer, context: AppContextDep) -> wire.ModelView:
    with context.read() as work:
        return model_views(work.session, [model.load(work.session)])[0]


@router.patch(_MODEL, operation_id="change_model", summary="Change a model's description, labels or protection")
def change_model(body: wire.ModelChanges, model: ModelMember, context: AppContextDep) -> wire.ModelView:
    with context.write() as work:
        return model_views(work.session, [service.change_model(work, model, body)])[0]


@router.delete(_MODEL, operation_id="delete_model", summary="Delete a model with all its versions", status_code=204)
def delete_model(model: ModelMember, context: AppContextDep, force: Annotated[bool, _FORCE] = False) -> Response:
    """Refused while it or a version is protected, an alias points to a version, or one is deployed."""
    with context.write() as work:
        service.delete_model(work, model, force=force)
    return Response(status_code=204)


@router.get(f"{_MODEL}/history", operation_id="list_model_changes", summary="Changes of a model, newest first")
def list_model_changes(model: ModelViewer, context: AppContextDep, page: PageParams) -> Page[wire.ModelChangeView]:
    """Changes of aliases, stages, protection and versions, with actor and time."""
    with context.read() as work:
        wanted = select(ModelChange).where(ModelChange.model_id == model.load(work.session).id)
        if page.cursor is not None:
            wanted = wanted.where(ModelChange.id < int(read_cursor(page.cursor, (int,))[0]))
        rows = work.session.scalars(wanted.order_by(ModelChange.id.desc()).limit(page.limit + 1)).all()
        cursor = make_cursor(rows[page.limit - 1].id) if len(rows) > page.limit else None
        return Page(items=[change_view(row) for row in rows[: page.limit]], next_cursor=cursor)


@router.put(f"{_MODEL}/aliases/{{alias}}", operation_id="set_model_alias", summary="Point an alias to a version")
def set_model_alias(
    alias: AliasName, body: wire.AliasRequest, model: ModelMember, context: AppContextDep
) -> wire.ModelView:
    """Atomic: a request by the alias gets either the old or the new version."""
    with context.write() as work:
        return model_views(work.session, [service.set_alias(work, model, alias, body)])[0]


@router.delete(
    f"{_MODEL}/aliases/{{alias}}", operation_id="remove_model_alias", summary="Remove an alias", status_code=204
)
def remove_model_alias(alias: AliasName, model: ModelMember, context: AppContextDep) -> Response:
    with context.write() as work:
        service.remove_alias(work, model, alias)
    return Response(status_code=204)


# --- versions --------------------------------------------------------------------------------------------------------


@router.post(
    f"{_MODEL}/versions", operation_id="register_version", summary="Register a version from a job", status_code=201
)
def register_version(
    body: wire.VersionRegister,
    model: wire.ModelName,
    project: ProjectMember,
    context: AppContextDep,
    key: IdempotencyKey = None,
) -> wire.VersionDetail:
    """Its files are copied into the registry in the background: the version is `registering`, then `ready`, or `failed`
    with the reason. The model is created if it does not exist.
    """
    before = service.find_registered(context, project, model, body, key)
    if before is not None:
        return before
    draft = service.check(context, project, body)
    with context.write() as work:
        volume = context.settings.default_volume
        return version_detail(
            work.session, *service.register(work, project, model, draft, body, volume=volume, key=key)
        )


@router.get(f"{_MODEL}/versions", operation_id="list_versions", summary="Versions of a model, newest first")
def list_versions(
    model: ModelViewer, context: AppContextDep, query: Annotated[VersionQuery, Query()]
) -> Page[wire.VersionView]:
    with context.read() as work:
        row = model.load(work.session)
        wanted = models.versions_of(row.id)
        if query.stage is not None:
            wanted = wanted.where(ModelVersion.stage == query.stage)
        if query.job is not None:
            wanted = wanted.where(ModelVersion.job_id == query.job)
        if query.cursor is not None:
            wanted = wanted.where(ModelVersion.number < int(read_cursor(query.cursor, (int,))[0]))
        rows = work.session.scalars(wanted.order_by(ModelVersion.number.desc()).limit(query.limit + 1)).all()
        cursor = make_cursor(rows[query.limit - 1].number) if len(rows) > query.limit else None
        return Page(items=version_views(work.session, row, rows[: query.limit]), next_cursor=cursor)


@router.get(f"{_MODEL}/versions/{{version}}", operation_id="get_version", summary="One version with its lineage")
def get_version(version: Version, model: ModelViewer, context: AppContextDep) -> wire.VersionDetail:
    with context.read() as work:
        return version_detail(work.session, *model.load_version(work.session, version))


@router.patch(
    f"{_MODEL}/versions/{{version}}",
    operation_id="change_version",
    summary="Change a version's description, labels or protection",
)
def change_version(
    version: Version, body: wire.VersionChanges, model: ModelMember, context: AppContextDep
) -> wire.VersionDetail:
    """Its files never change."""
    with context.write() as work:
        return version_detail(work.session, *service.change_version(work, model, version, body))


@router.post(
    f"{_MODEL}/versions/{{version}}/stage", operation_id="set_version_stage", summary="Move a version to a stage"
)
def set_version_stage(
    version: Version, body: wire.StageRequest, model: ModelMember, context: AppContextDep
) -> wire.VersionDetail:
    with context.write() as work:
        return version_detail(work.session, *service.set_stage(work, model, version, body))


@router.delete(
    f"{_MODEL}/versions/{{version}}", operation_id="delete_version", summary="Delete a version", status_code=204
)
def delete_version(
    version: Version, model: ModelMember, context: AppContextDep, force: Annotated[bool, _FORCE] = False
) -> Response:
    """Refused while it is protected, an alias points to it, or it is deployed."""
    with context.write() as work:
        service.delete_version(work, model, version, force=force)
    return Response(status_code=204)


@router.get(
    f"{_MODEL}/versions/{{version}}/files", operation_id="list_version_files", summary="Files with their hashes"
)
def list_version_files(
    version: Version, model: ModelViewer, context: AppContextDep, query: Annotated[FileQuery, Query()]
) -> Page[wire.VersionFileView]:
    """In order of path. Empty while the files are being copied."""
    with context.read() as work:
        _, row = model.load_version(work.session, version)
        wanted = select(ModelFile).where(ModelFile.version_id == row.id, ModelFile.sha256.is_not(None))
        if row.state != "ready":
            return Page(items=[])
        if query.cursor is not None:
            wanted = wanted.where(ModelFile.path > plain(query.cursor))
        rows = work.session.scalars(wanted.order_by(ModelFile.path).limit(query.limit + 1)).all()
        items = [
            wire.VersionFileView(path=file.path, size_bytes=file.size_bytes, sha256=file.sha256 or "")
            for file in rows[: query.limit]
        ]
        return Page(items=items, next_cursor=items[-1].path if len(rows) > query.limit else None)


@router.get(
    f"{_MODEL}/versions/{{version}}/files/content",
    operation_id="download_version_file",
    summary="The bytes of a version's file, or a range of them",
    response_class=Response,
    responses={200: _CONTENT, 206: {**_CONTENT, "description": "The range."}},
)
@router.head(f"{_MODEL}/versions/{{version}}/files/content", include_in_schema=False)
def download_version_file(
    version: Version, model: ModelViewer, context: AppContextDep, path: Annotated[str, Query(max_length=4096)]
) -> Response:
    """`X-Content-SHA256` has the hash of the whole file."""
    with context.read() as work:
        project_id = model.member(work.session).project_id
        found = versions.ready_file(work.session, project_id, model.name, version, path)
        tree = tree_of(_volume(work, found.volume))
    name = found.path.rpartition("/")[2]
    headers = {"X-Content-SHA256": found.known.sha256}
    return OpenFileResponse(tree.open_file(found.path), media_type=media_type_of(name), name=name, headers=headers)


@router.get(
    f"{_MODEL}/versions/{{version}}/archive",
    operation_id="download_version",
    summary="All files of a version as a tar, or a range of it",
    response_class=Response,
    responses={200: _TAR, 206: {**_TAR, "description": "The range."}},
)
@router.head(f"{_MODEL}/versions/{{version}}/archive", include_in_schema=False)
def download_version(request: Request, version: Version, model: ModelViewer, context: AppContextDep) -> Response:
    """Always the same bytes, so that an interrupted download can be resumed with a range."""
    tree, found = _ready(context, model, version)
    return _archive(tree, found, request)


def _archive(tree: Tree, version: ReadyVersion, request: Request) -> Response:
    """All files as a tar in a folder with the model's name; always the same bytes, so that downloads can be resumed."""
    above = f"{version.model}-{version.version}"
    # Modification times of files in the registry have no meaning.
    archive = TarArchive(
        tree,
        [
            TarMember(f"{above}/{file.path}", f"{version.path}/{file.path}", file.size_bytes)
            for file in version.manifest
        ],
    )
    size = archive.size_bytes
    tag = f'"{version.digest}"'
    headers = {
        "Accept-Ranges": "bytes",
        "Content-Disposition": attachment(f"{above}.tar"),
        "ETag": tag,
        "Cache-Control": "private, no-cache",
        "X-Content-Type-Options": "nosniff",
    }
    wanted: ByteRange | None = None
    if "range" in request.headers and request.headers.get("if-range", tag) == tag:
        wanted = parse_range(request.headers["range"], size)
    chosen = wanted or ByteRange(0, size)
    headers["Content-Length"] = str(chosen.length)
    if wanted is not None:
        headers["Content-Range"] = f"bytes {chosen.start}-{chosen.end - 1}/{size}"
    status = 200 if wanted is None else 206
    if request.method == "HEAD":
        return Response(None, status, headers, media_type="application/x-tar")
    return StreamingResponse(archive.stream(chosen), status, headers, media_type="application/x-tar")


def _ready(context: AppContext, access: ModelAccess, ref: str) -> tuple[Tree, ReadyVersion]:
    with context.read() as work:
        found = versions.ready(work.session, access.member(work.session).project_id, access.name, ref)
        return tree_of(_volume(work, found.volume)), found


def _volume(work: UnitOfWork, name: str) -> Volume:
    volume = work.session.execute(select(Volume).where(Volume.name == name)).scalar_one_or_none()
    if volume is None:
        raise NotFound(f"The registry's volume {name!r} is no longer registered.")
    return volume
