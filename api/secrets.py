"""Secrets of a project: set and named, never shown."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path
from sqlalchemy import delete, select
from trainmaster.spec.fields import EnvName
from trainmaster.wire.admin import SecretSet, SecretView
from trainmaster.wire.base import Page

from api.app.unit_of_work import AppContextDep
from api.auth import ProjectAdmin, ProjectViewer
from api.http.paging import PageParams, rows_by_name
from api.http.routing import new_router
from core.db.tables import Secret
from core.domain.errors import NotFound
from core.secrets import seal

router = new_router("secrets", "/projects/{project}/secrets")

SecretName = Annotated[EnvName, Path(description="Name of the environment variable in jobs.")]


@router.get("", operation_id="list_secrets", summary="Names of the project's secrets")
def list_secrets(project: ProjectViewer, context: AppContextDep, page: PageParams) -> Page[SecretView]:
    """In order of name. Values are never shown."""
    with context.read() as work:
        query = select(Secret.updated_at).where(Secret.project_id == project.load(work.session).id)
        rows, cursor = rows_by_name(work.session, query, Secret.name, page)
    return Page(items=[SecretView(name=name, updated_at=at) for at, name in rows], next_cursor=cursor)


@router.put("/{name}", operation_id="set_secret", summary="Set a secret")
def set_secret(project: ProjectAdmin, name: SecretName, body: SecretSet, context: AppContextDep) -> SecretView:
    """Jobs that start from now on get the new value."""
    with context.write() as work:
        project_id = project.load(work.session).id
        sealed = seal(context.key, project_id, name, body.value)
        work.session.merge(Secret(project_id=project_id, name=name, ciphertext=sealed, updated_at=work.now))
        work.session.flush()
        work.record_event("secret.set", project.caller.actor, project_id=project_id, data={"name": name})
        return SecretView(name=name, updated_at=work.now)


@router.delete("/{name}", operation_id="delete_secret", summary="Remove a secret", status_code=204)
def delete_secret(project: ProjectAdmin, name: SecretName, context: AppContextDep) -> None:
    """Waiting jobs that name it will fail to start."""
    with context.write() as work:
        row = project.load(work.session)
        deleted = work.session.execute(
            delete(Secret).where(Secret.project_id == row.id, Secret.name == name).returning(Secret.name)
        ).scalar_one_or_none()
        if deleted is None:
            raise NotFound(f"Project {row.name} has no secret {name}.")
        work.record_event("secret.removed", project.caller.actor, project_id=row.id, data={"name": name})
