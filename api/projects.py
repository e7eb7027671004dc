"""Projects and their members."""

from __future__ import annotations

from typing import Final

from fastapi import Request
from sqlalchemy import Select, delete, func, select
from sqlalchemy.orm import Session
from trainmaster.wire.admin import MemberSet, MemberView, ProjectCreate, ProjectUpdate, ProjectView
from trainmaster.wire.base import Page

from api.app.unit_of_work import AppContextDep, UnitOfWork
from api.auth import Caller, PlatformAdmin, ProjectAdmin, ProjectViewer, Reader
from api.http.paging import PageParams, rows_by_name
from api.http.routing import new_router
from api.volumes.grants import revoke_all
from core.db.repositories.tokens import end_service_account
from core.db.tables import (
    BookingRow,
    BudgetRow,
    Endpoint,
    Job,
    Membership,
    Model,
    ModelVersion,
    NotificationChannel,
    Project,
    StorageUsage,
    Study,
    Usage,
    User,
    Webhook,
)
from core.domain.errors import Conflict, Forbidden, NotFound
from core.domain.jobs.states import JobState
from core.domain.model_versions import VersionState
from core.domain.studies.states import StudyState
from core.ids import new_id
from core.wakeups import TOPIC_TICK

router = new_router("projects", "/projects")

_ENDED: Final = [state.value for state in JobState if state.is_terminal]
_OVER: Final = [state.value for state in StudyState if state.is_terminal]
_UNDERWAY: Final = [VersionState.WAITING.value, VersionState.REGISTERING.value]
_SHOWN_NAMES: Final = 3  # of each kind, in a refusal


@router.get("", operation_id="list_projects", summary="The caller's projects")
def list_projects(caller: Reader, context: AppContextDep, page: PageParams) -> Page[ProjectView]:
    """In order of name. A platform admin sees all projects."""
    link = (Membership.project_id == Project.id) & (Membership.user_id == caller.user_id)
    query = select(Project, Membership.role).where(Project.deleted_at.is_(None))
    query = query.join(Membership, link, isouter=caller.is_admin)
    if caller.project_ids_limit is not None:
        query = query.where(Project.id.in_(caller.project_ids_limit))
    with context.read() as work:
        rows, cursor = rows_by_name(work.session, query, Project.name, page)
        return Page(items=[_view_of(project, role) for project, role, _ in rows], next_cursor=cursor)


@router.post("", operation_id="create_project", summary="Create a project", status_code=201)
def create_project(body: ProjectCreate, caller: PlatformAdmin, context: AppContextDep) -> ProjectView:
    """The caller becomes its first admin."""
    with context.write() as work:
        project = Project(
            id=new_id("project"),
            name=body.name,
            description=body.description,
            weight=body.weight,
            quota={},
            created_at=work.now,
        )
        work.add_unique(project, f"Project {body.name!r} already exists; choose another name.")
        work.session.add(Membership(project_id=project.id, user_id=caller.user_id, role="admin"))
        work.session.flush()
        _record_event(work, caller, project, "project.created", name=body.name)
        return _view_for(work, project, caller)


@router.get("/{project}", operation_id="get_project", summary="One project")
def get_project(project: ProjectViewer, context: AppContextDep) -> ProjectView:
    with context.read() as work:
        return _view_for(work, project.load(work.session), project.caller)


@router.patch("/{project}", operation_id="update_project", summary="Change a project")
def update_project(project: ProjectAdmin, body: ProjectUpdate, context: AppContextDep) -> ProjectView:
    """Only a platform admin can change `weight`."""
    with context.write() as work:
        row = project.load(work.session)
        if body.weight is not None and body.weight != row.weight:
            if not project.caller.is_admin:
                raise Forbidden(
                    "The weight of a project is its share of the platform; a platform admin sets it.", field="weight"
                )
            row.weight = body.weight
        if body.description is not None:
            row.description = body.description
        _record_event(work, project.caller, row, "project.changed", **body.model_dump(exclude_none=True))
        return _view_for(work, row, project.caller)


@router.delete("/{project}", operation_id="delete_project", summary="Delete a project", status_code=204)
def delete_project(project: ProjectAdmin, context: AppContextDep, request: Request) -> None:
    """Refused while it has jobs or studies that have not ended, models being registered, or endpoints. Files stay;
    studies in its Optuna storage are deleted.
    """
    with context.write() as work:
        row = project.load(work.session)
        project_id = row.id
        _remove(work, project.caller, row)
    context.volumes.clear()
    request.app.state.optuna.delete(project_id)


@router.get("/{project}/members", operation_id="list_members", summary="Members of a project")
def list_members(project: ProjectViewer, context: AppContextDep, page: PageParams) -> Page[MemberView]:
    """In order of name."""
    with context.read() as work:
        row = project.load(work.session)
        query = select(Membership.role, User.service_project_id).join(User, User.id == Membership.user_id)
        query = query.where(Membership.project_id == row.id)
        rows, cursor = rows_by_name(work.session, query, User.name, page)
    items = [
        MemberView.model_validate({"user": name, "role": role, "is_service_account": service_project is not None})
        for role, service_project, name in rows
    ]
    return Page(items=items, next_cursor=cursor)


@router.put("/{project}/members/{user}", operation_id="set_member", summary="Add a member or change the role")
def set_member(project: ProjectAdmin, user: str, body: MemberSet, context: AppContextDep) -> MemberView:
    """The role of the last admin cannot be changed."""
    with context.write() as work:
        row = project.load(work.session)
        user_id = _user_id(work, user)
        admins = _lock_admins(work, row)
        membership = work.session.get(Membership, (row.id, user_id))
        if membership is None:
            work.session.add(Membership(project_id=row.id, user_id=user_id, role=body.role))
        elif membership.role != body.role:
            if admins == [user_id]:
                raise _last_admin(row, user)
            membership.role = body.role
        elif membership.identity_id is None:
            return MemberView(user=user, role=body.role)
        if membership is not None:
            membership.identity_id = None  # logins leave what an admin gave as it is
        _record_event(work, project.caller, row, "project.member_set", user=user, role=body.role)
        return MemberView(user=user, role=body.role)


@router.delete("/{project}/members/{user}", operation_id="delete_member", summary="Remove a member", status_code=204)
def delete_member(project: ProjectAdmin, user: str, context: AppContextDep) -> None:
    """The last admin cannot be removed."""
    with context.write() as work:
        row = project.load(work.session)
        user_id = _user_id(work, user)
        if _lock_admins(work, row) == [user_id]:
            raise _last_admin(row, user)
        deleted = work.session.execute(
            delete(Membership)
            .where(Membership.project_id == row.id, Membership.user_id == user_id)
            .returning(Membership.user_id)
        ).scalar_one_or_none()
        if deleted is None:
            raise NotFound(f"{user} is not a member of project {row.name}.")
        _record_event(work, project.caller, row, "project.member_removed", user=user)


def _remove(work: UnitOfWork, caller: Caller, project: Project) -> None:
    """Delete a project. Its ended jobs stay in the database, but are no longer visible; their files stay. Its quota,
    its budget, its webhooks and notification channels, its grants of volumes and its reservations are deleted: other
    projects may use the nodes at once.

    Raises:
        Conflict: jobs or studies have not ended, models are being registered, or there are endpoints.
    """
    found = _unfinished(work.session, project.id)
    if found:
        listed = found[0] if len(found) == 1 else f"{', '.join(found[:-1])} and {found[-1]}"
        raise Conflict(
            f"Project {project.name} has {listed}; cancel, stop or delete these, or wait for their end, then delete "
            "the project."
        )
    reserved = list(
        work.session.scalars(delete(BookingRow).where(BookingRow.project_id == project.id).returning(BookingRow.name))
    )
    for table in (Usage, StorageUsage, BudgetRow, Webhook, NotificationChannel):
        work.session.execute(delete(table).where(table.project_id == project.id))
    revoke_all(work, caller, project)
    accounts = select(User).join(Membership, Membership.user_id == User.id)
    for account in work.session.scalars(accounts.where(User.service_project_id == project.id)).all():
        end_service_account(work.session, account, work.now)
    extra = {"reservations": sorted(reserved)} if reserved else {}
    _record_event(work, caller, project, "project.deleted", name=project.name, **extra)
    work.notify(TOPIC_TICK)
    project.deleted_at = work.now
    # The name becomes free; "~" cannot be part of one.
    project.name = f"{project.name}~{project.id}"


def _unfinished(session: Session, project_id: str) -> list[str]:
    """Descriptions of what would still run, or would become inaccessible, in a deleted project."""
    found: list[str] = []
    jobs = session.scalars(
        select(func.count())
        .select_from(Job)
        .where(Job.project_id == project_id, Job.state.not_in(_ENDED), Job.deleted_at.is_(None))
    ).one()
    if jobs:
        found.append(f"{jobs} job{'s that have' if jobs > 1 else ' that has'} not ended")
    named: list[tuple[str, str, Select[str]]] = [
        (
            "study that has not ended", "studies that have not ended",
            select(Study.name).where(
                Study.project_id == project_id, Study.state.not_in(_OVER), Study.deleted_at.is_(None)
            ),
        ),
        (
            "model being registered", "models being registered",
            select(Model.name).where(
                Model.id.in_(
                    select(ModelVersion.model_id).where(
                        ModelVersion.project_id == project_id,
                        ModelVersion.state.in_(_UNDERWAY),
                        ModelVersion.deleted_at.is_(None),
                    )
                )
            ),
        ),
        (
            "endpoint", "endpoints",
            select(Endpoint.name).where(Endpoint.project_id == project_id, Endpoint.deleted_at.is_(None)),
        ),
    ]  # fmt: skip
    for singular, plural, query in named:
        names = sorted(session.scalars(query))
        if names:
            more = ["…"] if len(names) > _SHOWN_NAMES else []
            found.append(
                f"{len(names)} {singular if len(names) == 1 else plural} ({', '.join([*names[:_SHOWN_NAMES], *more])})"
            )
    return found


def _lock_admins(work: UnitOfWork, project: Project) -> list[str]:
    """User ids of the project's admins, without service accounts. The lock serialises requests that remove an admin."""
    work.session.execute(select(Project.id).where(Project.id == project.id).with_for_update())
    query = select(Membership.user_id).where(Membership.project_id == project.id, Membership.role == "admin")
    query = query.join(User, User.id == Membership.user_id).where(User.service_project_id.is_(None))
    return list(work.session.scalars(query))


def _last_admin(project: Project, user_name: str) -> Conflict:
    return Conflict(f"{user_name} is the last admin of project {project.name}; make another member admin first.")


def _user_id(work: UnitOfWork, name: str) -> str:
    row = work.session.execute(select(User.id, User.service_project_id).where(User.name == name)).one_or_none()
    if row is None:
        raise NotFound(f"There is no user {name!r}; a platform admin creates users.", field="user")
    if row[1] is not None:
        raise Conflict(f"{name} is a service account; change or delete it under the service accounts of its project.")
    user_id: str = row[0]
    return user_id


def _record_event(work: UnitOfWork, caller: Caller, project: Project, kind: str, **data: object) -> None:
    work.record_event(kind, caller.actor, project_id=project.id, data=data)


def _view_for(work: UnitOfWork, project: Project, caller: Caller) -> ProjectView:
    membership = work.session.get(Membership, (project.id, caller.user_id))
    return _view_of(project, membership.role if membership else None)


def _view_of(project: Project, role: str | None) -> ProjectView:
    return ProjectView(
        name=project.name,
        description=project.description,
        weight=project.weight,
        quota=project.quota,
        created_at=project.created_at,
        my_role=role,
    )
