"""Grants of volumes to projects: changes, each with its event."""

from __future__ import annotations

from sqlalchemy import delete, select
from sqlalchemy.orm import Session
from trainmaster.spec.errors import suggest
from trainmaster.wire.admin import EVERYONE, VolumeGrantView
from trainmaster.wire.volumes import VolumeGrantSet

from api.app.unit_of_work import UnitOfWork
from api.auth import Caller
from core.db.tables import Project, Volume, VolumeGrant
from core.domain.errors import NotFound
from core.ids import new_id


def set_grant(work: UnitOfWork, caller: Caller, volume: Volume, grantee: str, body: VolumeGrantSet) -> VolumeGrantView:
    """Grant, or change what was granted. The volume must be locked, or new. Raises ``NotFound``: no such project."""
    project_id = _project_id(work.session, grantee)
    grant = _find(work.session, volume, project_id, body.prefix)
    if grant is None:
        grant = VolumeGrant(id=new_id("grant"), volume_id=volume.id, project_id=project_id, prefix=body.prefix)
        work.session.add(grant)
    view = VolumeGrantView(grantee=grantee, access=body.access, prefix=body.prefix)
    if grant.access != body.access:
        grant.access = body.access
        work.session.flush()
        _record_event(work, caller, "volume.granted", volume.name, project_id, view)
    return view


def revoke(work: UnitOfWork, caller: Caller, volume: Volume, grantee: str, prefix: str) -> None:
    """Raises ``NotFound``: there is no such grant."""
    project_id = _project_id(work.session, grantee)
    grant = _find(work.session, volume, project_id, prefix)
    if grant is None:
        place = f"{volume.name}/{prefix}" if prefix else f"all of volume {volume.name}"
        raise NotFound(
            f"There is no grant of {place} to {grantee}; `trainmaster volumes show {volume.name}` lists them."
        )
    work.session.delete(grant)
    view = VolumeGrantView.model_validate({"grantee": grantee, "access": grant.access, "prefix": prefix})
    _record_event(work, caller, "volume.revoked", volume.name, project_id, view)


def revoke_all(work: UnitOfWork, caller: Caller, project: Project) -> None:
    """Revoke all grants of a project that is being deleted, before its name becomes free."""
    names = {row.id: row.name for row in work.session.scalars(select(Volume))}
    query = delete(VolumeGrant).where(VolumeGrant.project_id == project.id)
    for grant in work.session.scalars(query.returning(VolumeGrant)).all():
        given = {"grantee": project.name, "access": grant.access, "prefix": grant.prefix}
        view = VolumeGrantView.model_validate(given)
        _record_event(work, caller, "volume.revoked", names[grant.volume_id], project.id, view)


def grants_of(session: Session, volumes: list[Volume]) -> dict[str, list[VolumeGrantView]]:
    """By the volume's id; those of everyone first, then by project and prefix."""
    found: dict[str, list[VolumeGrantView]] = {volume.id: [] for volume in volumes}
    query = select(VolumeGrant, Project.name).join(Project, Project.id == VolumeGrant.project_id, isouter=True)
    rows = session.execute(query.where(VolumeGrant.volume_id.in_(found))).all()
    for grant, project in sorted(rows, key=lambda row: (row[1] or "", row[0].prefix)):
        given = {"grantee": project or EVERYONE, "access": grant.access, "prefix": grant.prefix}
        found[grant.volume_id].append(VolumeGrantView.model_validate(given))
    return found


def _find(session: Session, volume: Volume, project_id: str | None, prefix: str) -> VolumeGrant | None:
    query = select(VolumeGrant).where(VolumeGrant.volume_id == volume.id, VolumeGrant.prefix == prefix)
    # A comparison with None is IS NULL.
    return session.execute(query.where(VolumeGrant.project_id == project_id)).scalar_one_or_none()


def _project_id(session: Session, grantee: str) -> str | None:
    if grantee == EVERYONE:
        return None
    query = select(Project.name, Project.id).where(Project.deleted_at.is_(None))
    projects: dict[str, str] = {row.name: row.id for row in session.execute(query)}
    if grantee not in projects:
        meant = suggest(grantee, [*projects, EVERYONE])
        hint = f"Did you mean {meant}?" if meant else "`GET /api/v1/projects` lists them."
        raise NotFound(f"There is no project {grantee!r}. {hint}", field="grantee")
    return projects[grantee]


def _record_event(
    work: UnitOfWork, caller: Caller, kind: str, volume: str, project_id: str | None, view: VolumeGrantView
) -> None:
    work.record_event(kind, caller.actor, project_id=project_id, data={"name": volume, **view.model_dump(mode="json")})
