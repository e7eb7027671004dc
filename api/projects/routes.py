from __future__ import annotations

from fastapi import Request
from trainmaster.wire.admin import MemberSet, MemberView, ProjectCreate, ProjectUpdate, ProjectView
from trainmaster.wire.base import Page

from api.app.unit_of_work import AppContextDep
from api.auth import PlatformAdmin, ProjectAdmin, ProjectViewer, Reader
from api.http.paging import PageParams
from api.http.routing import new_router
from api.projects import service

router = new_router("projects", "/projects")


@router.get("", operation_id="list_projects", summary="The caller's projects")
def list_projects(caller: Reader, context: AppContextDep, page: PageParams) -> Page[ProjectView]:
    """In order of name. A platform admin sees all projects."""
    with context.read() as work:
        return service.list_projects(work, caller, page)


@router.post("", operation_id="create_project", summary="Create a project", status_code=201)
def create_project(body: ProjectCreate, caller: PlatformAdmin, context: AppContextDep) -> ProjectView:
    """The caller becomes its first admin."""
    with context.write() as work:
        return service.view_of(work, service.create(work, caller, body), caller)


@router.get("/{project}", operation_id="get_project", summary="One project")
def get_project(project: ProjectViewer, context: AppContextDep) -> ProjectView:
    with context.read() as work:
        return service.view_of(work, project.load(work.session), project.caller)


@router.patch("/{project}", operation_id="update_project", summary="Change a project")
def update_project(project: ProjectAdmin, body: ProjectUpdate, context: AppContextDep) -> ProjectView:
    """Only a platform admin can change `weight`."""
    with context.write() as work:
        row = project.load(work.session)
        service.update(work, project.caller, row, body)
        return service.view_of(work, row, project.caller)


@router.delete("/{project}", operation_id="delete_project", summary="Delete a project", status_code=204)
def delete_project(project: ProjectAdmin, context: AppContextDep, request: Request) -> None:
    """Refused while it has jobs or studies that have not ended, models being registered, or endpoints. Files stay;
    studies in its Optuna storage are deleted.
    """
    with context.write() as work:
        row = project.load(work.session)
        project_id = row.id
        service.remove(work, project.caller, row)
    request.app.state.optuna.delete(project_id)


@router.get("/{project}/members", operation_id="list_members", summary="Members of a project")
def list_members(project: ProjectViewer, context: AppContextDep, page: PageParams) -> Page[MemberView]:
    """In order of name."""
    with context.read() as work:
        return service.list_members(work, project.load(work.session), page)


@router.put("/{project}/members/{user}", operation_id="set_member", summary="Add a member or change the role")
def set_member(project: ProjectAdmin, user: str, body: MemberSet, context: AppContextDep) -> MemberView:
    """The role of the last admin cannot be changed."""
    with context.write() as work:
        return service.set_member(work, project.caller, project.load(work.session), user, body.role)


@router.delete("/{project}/members/{user}", operation_id="delete_member", summary="Remove a member", status_code=204)
def delete_member(project: ProjectAdmin, user: str, context: AppContextDep) -> None:
    """The last admin cannot be removed."""
    with context.write() as work:
        service.remove_member(work, project.caller, project.load(work.session), user)
