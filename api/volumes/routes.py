"""Volumes: storage that an admin registered."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from fastapi import Query
from sqlalchemy import ColumnElement, String, cast, delete, or_, select
from trainmaster.wire.admin import VolumeGrantView, VolumeView
from trainmaster.wire.base import Page
from trainmaster.wire.volumes import VolumeCreate, VolumeGrantSet

from api.app.cache import CachedVolume
from api.app.unit_of_work import AppContext, AppContextDep, UnitOfWork
from api.auth import Caller, PlatformAdmin, Reader
from api.http.paging import PageParams, rows_by_name
from api.http.routing import new_router
from api.volumes import grants
from api.volumes.access import UsablePart, usable_volumes
from core.db.tables import Job, Volume, VolumeGrant
from core.domain.errors import Conflict, InvalidRequest, NotFound
from core.domain.jobs.states import JobState
from core.ids import new_id
from core.settings import Settings
from core.storage.registry import FOLDER as MODELS
from core.storage.tree import split_path

router = new_router("volumes", "/volumes")

_ENDED = [state.value for state in JobState if state.is_terminal]


@router.get("", operation_id="list_volumes", summary="The volumes that jobs may use")
def list_volumes(caller: Reader, context: AppContextDep, page: PageParams) -> Page[VolumeView]:
    """In order of name, those of which the caller may use `parts`. Platform admins alone see `root`, `config` and
    `grants`.
    """
    parts = usable_volumes(context, caller)
    query = select(Volume) if caller.is_admin else select(Volume).where(Volume.name.in_(parts))
    with context.read() as work:
        rows, cursor = rows_by_name(work.session, query, Volume.name, page)
        return Page(items=_views_of(work, [row for row, _ in rows], caller, parts), next_cursor=cursor)


@router.post("", operation_id="create_volume", summary="Register a volume", status_code=201)
def create_volume(body: VolumeCreate, caller: PlatformAdmin, context: AppContextDep) -> VolumeView:
    """Without `grants` only platform admins may use it. `root` is the volume's folder on the control plane: required
    for a local volume; without it files and logs are not served. `config` is how containers mount it: `nfs` takes
    `server` and `path`, `pvc` a `claim`, `csi` a `driver` with its `attributes`, `local` a `path` if the folder is
    elsewhere on the nodes.
    """
    root = _checked_root(body, context.settings)
    _demand_no_models(body, root, context.volumes.find(context.settings.default_volume, context.clock()))
    with context.write() as work:
        volume = Volume(
            id=new_id("volume"),
            name=body.name,
            kind=body.kind,
            root=root,
            config=body.config.model_dump(exclude_none=True, exclude_defaults=True),
            is_read_only=body.is_read_only,
            created_at=work.now,
        )
        work.add_unique(volume, f"Volume {body.name!r} already exists; choose another name.")
        work.record_event("volume.registered", caller.actor, data={"name": body.name})
        if body.grants:
            _demand_grantable(context, body.name)
        for grant in body.grants:
            grants.set_grant(work, caller, volume, grant.grantee, grant)
        (view,) = _views_of(work, [volume], caller, {})
    context.volumes.clear()
    return view


@router.get("/{volume}", operation_id="get_volume", summary="One volume")
def get_volume(volume: str, caller: Reader, context: AppContextDep) -> VolumeView:
    context.volumes.find(volume, context.clock())  # a new volume is found at once
    parts = usable_volumes(context, caller)
    if volume not in parts and not caller.is_admin:
        raise _not_found(volume)
    with context.read() as work:
        return _views_of(work, [_load(work, volume)], caller, parts)[0]


@router.put("/{volume}/grants/{grantee}", operation_id="set_volume_grant", summary="Grant a project access to a volume")
def set_volume_grant(
    volume: str, grantee: str, body: VolumeGrantSet, caller: PlatformAdmin, context: AppContextDep
) -> VolumeGrantView:
    """`grantee`: a project, or `everyone`: the members of all projects. A project's viewers may read whatever the grant
    says. Replaces an earlier grant of the same prefix; grants of several prefixes add up. It concerns new jobs.
    """
    _demand_grantable(context, volume)
    with context.write() as work:
        view = grants.set_grant(work, caller, _load(work, volume, locks=True), grantee, body)
    context.volumes.clear()
    return view


@router.delete(
    "/{volume}/grants/{grantee}",
    operation_id="delete_volume_grant",
    summary="Revoke a grant of a volume",
    status_code=204,
)
def delete_volume_grant(
    volume: str,
    grantee: str,
    caller: PlatformAdmin,
    context: AppContextDep,
    prefix: Annotated[str, Query(max_length=4_000, description="Of the grant.")] = "",
) -> None:
    """Jobs that were submitted before keep what they mount."""
    with context.write() as work:
        row = _load(work, volume, locks=True)
        grants.revoke(work, caller, row, grantee, "/".join(split_path(prefix, field="prefix")))
    context.volumes.clear()


@router.delete("/{volume}", operation_id="delete_volume", summary="Remove a volume", status_code=204)
def delete_volume(volume: str, caller: PlatformAdmin, context: AppContextDep) -> None:
    """Its files stay. Refused while jobs that have not ended use it."""
    with context.write() as work:
        row = _load(work, volume)
        if volume == context.settings.default_volume:
            raise Conflict(
                f"Volume {volume} is the default volume for outputs (TRAINMASTER_DEFAULT_VOLUME); choose another "
                "default first."
            )
        users = list(_live_users(work, volume))
        if users:
            shown = ", ".join(users[:5]) + (f" and {len(users) - 5} more" if len(users) > 5 else "")
            raise Conflict(
                f"Volume {volume} is used by jobs that have not ended: {shown}; wait for them or cancel them."
            )
        work.session.execute(delete(VolumeGrant).where(VolumeGrant.volume_id == row.id))
        work.session.delete(row)
        work.record_event("volume.removed", caller.actor, data={"name": volume})
    context.volumes.clear()


def _views_of(
    work: UnitOfWork, volumes: list[Volume], caller: Caller, parts: Mapping[str, list[UsablePart]]
) -> list[VolumeView]:
    """The views of volumes; only admins see paths, mount options and grants. ``parts``: that the caller may use, by the
    volume's name; of a new volume an admin may use all.
    """
    found = grants.grants_of(work.session, volumes) if caller.is_admin else {}
    return [
        VolumeView.model_validate(
            {
                "name": volume.name,
                "kind": volume.kind,
                "root": volume.root if caller.is_admin else None,
                "config": volume.config if caller.is_admin else {},
                "is_read_only": volume.is_read_only,
                "parts": [
                    {"prefix": part.prefix, "access": "write" if part.is_writable else "read"}
                    for part in parts.get(volume.name) or [UsablePart("", not volume.is_read_only)]
                ],
                "grants": found.get(volume.id, []),
                "created_at": volume.created_at,
            }
        )
        for volume in volumes
    ]


def _demand_grantable(context: AppContext, volume: str) -> None:
    """Raises ``Conflict``: on the volume of the projects' own folders the roles in the projects decide."""
    if volume == context.settings.default_volume:
        raise Conflict(
            f"Volume {volume} has the projects' own folders, where the roles in each project decide; add members to "
            "a project instead: `trainmaster projects grant`."
        )


def _load(work: UnitOfWork, name: str, *, locks: bool = False) -> Volume:
    query = select(Volume).where(Volume.name == name)
    volume = work.session.execute(query.with_for_update() if locks else query).scalar_one_or_none()
    if volume is None:
        raise _not_found(name)
    return volume


def _not_found(name: str) -> NotFound:
    return NotFound(f"There is no volume {name!r} that you may use; `GET /api/v1/volumes` lists yours.")


def _checked_root(body: VolumeCreate, settings: Settings) -> str | None:
    """The root to store. Reads the file system; call it before the transaction.

    Raises:
        InvalidRequest: the root is not a folder, or it would expose the platform's own files to jobs.
    """
    if body.root is None:
        if body.kind == "local":
            raise InvalidRequest("A local volume needs root: the absolute path of its folder.", field="root")
        return None
    if not body.root.startswith("/") or "\0" in body.root:
        raise InvalidRequest("root must be an absolute path, such as /srv/datasets.", field="root")
    root = Path(body.root)
    try:
        resolved = root.resolve(strict=body.kind == "local")
        is_folder = resolved.is_dir()
    except (OSError, RuntimeError):
        is_folder = False
        resolved = root
    # Other kinds may be mounted here later; a local folder is here or nowhere.
    if body.kind == "local" and not is_folder:
        raise InvalidRequest(
            f"root {body.root} is not a folder on the platform's machine; create it first.", field="root"
        )
    home = settings.home.resolve()
    own = (home, settings.run_dir.resolve(), settings.archive_dir.resolve())
    if home.is_relative_to(resolved) or resolved in own or any(resolved.is_relative_to(path) for path in own[1:]):
        raise InvalidRequest(
            f"root {body.root} contains the platform's own data (keys, database); choose another folder.",
            field="root",
        )
    return str(resolved if body.kind == "local" else root)


def _demand_no_models(body: VolumeCreate, root: str | None, shared: CachedVolume | None) -> None:
    """Refuse a folder through which jobs could write to registered models. ``shared``: the default volume.

    Raises:
        InvalidRequest: the folder contains the models' folder, or is in it, and is not read-only.
    """
    if body.is_read_only or root is None or shared is None or shared.root is None:
        return
    models = Path(shared.root).resolve() / MODELS
    if models.is_relative_to(root) or Path(root).is_relative_to(models):
        raise InvalidRequest(
            f"root {body.root} overlaps the registered models of volume {shared.name!r}, which are immutable: choose "
            "another folder, or register it with is_read_only.",
            field="root",
        )


def _live_users(work: UnitOfWork, name: str) -> Iterator[str]:
    query = select(Job.id, Job.spec, Job.output_volume).where(
        Job.state.not_in(_ENDED), Job.deleted_at.is_(None), _may_use(name)
    )
    for job_id, spec, output in work.session.execute(query.order_by(Job.id)):
        if output == name or name in _volumes_of(spec):
            yield job_id


def _may_use(name: str) -> ColumnElement[bool]:
    """A pre-filter without false negatives: searching the spec's text is cheaper than parsing it."""
    return or_(Job.output_volume == name, cast(Job.spec, String).contains(f'"{name}', autoescape=True))


def _volumes_of(spec: dict[str, Any]) -> set[str]:
    places = [spec.get("input"), spec.get("output")]
    mounts = {mount["volume"] for mount in spec.get("mounts") or ()}
    return {place.partition("/")[0] for place in places if place} | mounts
