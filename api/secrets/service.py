"""Secrets of a project: set and named, never shown."""

from __future__ import annotations

from sqlalchemy import delete, select
from trainmaster.wire.admin import SecretView
from trainmaster.wire.base import Page

from api.app.unit_of_work import UnitOfWork
from api.auth import Caller
from api.http.paging import PageQuery, rows_by_name
from core.db.repositories.events import append_event
from core.db.tables import Project, Secret
from core.domain.errors import NotFound
from core.secrets import seal


def list_names(work: UnitOfWork, project: Project, page: PageQuery) -> Page[SecretView]:
    query = select(Secret.updated_at).where(Secret.project_id == project.id)
    rows, cursor = rows_by_name(work.session, query, Secret.name, page)
    return Page(items=[SecretView(name=name, updated_at=at) for at, name in rows], next_cursor=cursor)


def put(work: UnitOfWork, caller: Caller, project: Project, name: str, value: str, *, key: bytes) -> SecretView:
    """Set or replace. Replicas that run keep what they started with."""
    sealed = seal(key, project.id, name, value)
    work.session.merge(Secret(project_id=project.id, name=name, ciphertext=sealed, updated_at=work.now))
    work.session.flush()
    append_event(
        work.session, at=work.now, kind="secret.set", actor=caller.actor, project_id=project.id, data={"name": name}
    )
    return SecretView(name=name, updated_at=work.now)


def remove(work: UnitOfWork, caller: Caller, project: Project, name: str) -> None:
    gone = work.session.execute(
        delete(Secret).where(Secret.project_id == project.id, Secret.name == name).returning(Secret.name)
    ).scalar_one_or_none()
    if gone is None:
        raise NotFound(f"Project {project.name} has no secret {name}.")
    append_event(
        work.session, at=work.now, kind="secret.removed", actor=caller.actor, project_id=project.id, data={"name": name}
    )
