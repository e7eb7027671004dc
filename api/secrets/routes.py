from __future__ import annotations

from typing import Annotated

from fastapi import Path
from trainmaster.spec.fields import EnvName
from trainmaster.wire.admin import SecretSet, SecretView
from trainmaster.wire.base import Page

from api.app.unit_of_work import AppContextDep
from api.auth import ProjectAdmin, ProjectViewer
from api.http.paging import PageParams
from api.http.routing import new_router
from api.secrets import service

router = new_router("secrets", "/projects/{project}/secrets")

SecretName = Annotated[EnvName, Path(description="Name of the environment variable in jobs.")]


@router.get("", operation_id="list_secrets", summary="Names of the project's secrets")
def list_secrets(project: ProjectViewer, context: AppContextDep, page: PageParams) -> Page[SecretView]:
    """In order of name. Values are never shown."""
    with context.read() as work:
        return service.list_names(work, project.load(work.session), page)


@router.put("/{name}", operation_id="set_secret", summary="Set a secret")
def set_secret(project: ProjectAdmin, name: SecretName, body: SecretSet, context: AppContextDep) -> SecretView:
    """Jobs that start from now on get the new value."""
    with context.write() as work:
        return service.put(work, project.caller, project.load(work.session), name, body.value, key=context.key)


@router.delete("/{name}", operation_id="delete_secret", summary="Remove a secret", status_code=204)
def delete_secret(project: ProjectAdmin, name: SecretName, context: AppContextDep) -> None:
    """Waiting jobs that name it will fail to start."""
    with context.write() as work:
        service.remove(work, project.caller, project.load(work.session), name)
