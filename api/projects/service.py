"""Projects and their members."""

from __future__ import annotations

from typing import Final

from sqlalchemy import Select, delete, func, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session
from trainmaster.wire.admin import MemberView, ProjectCreate, ProjectUpdate, ProjectView
from trainmaster.wire.base import Page

from api.app.unit_of_work import UnitOfWork
from api.auth import Caller, Role
from api.http.paging import PageQuery, rows_by_name
from core.db.repositories.events import append_event
from core.db.tables import BookingRow, Endpoint, Job, Membership, Model, ModelVersion, Project, Study, Usage, User
from core.domain.errors import Conflict, Forbidden, NotFound
from core.domain.jobs.states import JobState
from core.domain.model_versions import VersionState
from core.domain.studies.states import StudyState
from core.ids import new_id
from core.wakeups import TOPIC_TICK

_ENDED: Final = [state.value for state in JobState if state.is_terminal]
_OVER: Final = [state.value for state in StudyState if state.is_terminal]
_UNDERWAY: Final = [VersionState.WAITING.value, VersionState.REGISTERING.value]
_SHOWN_NAMES: Final = 3  # of each kind, in a refusal


def list_projects(work: UnitOfWork, caller: Caller, page: PageQuery) -> Page[ProjectView]:
    """The projects that the caller is a member of; all projects for a platform admin."""
    link = (Membership.project_id == Project.id) & (Membership.user_id == caller.user_id)
    query = select(Project, Membership.role).where(Project.deleted_at.is_(None))
    rows, cursor = rows_by_name(work.session, query.join(Membership, link, isouter=caller.is_admin), Project.name, page)
    return Page(items=[_view_of(project, role) for project, role, _ in rows], next_cursor=cursor)


def view_of(work: UnitOfWork, project: Project, caller: Caller) -> ProjectView:
    membership = work.session.get(Membership, (project.id, caller.user_id))
    return _view_of(project, membership.role if membership else None)


def create(work: UnitOfWork, caller: Caller, body: ProjectCreate) -> Project:
    """The creator becomes the first admin."""
    project = Project(
        id=new_id("project"),
        name=body.name,
        description=body.description,
        weight=body.weight,
        quota={},
        created_at=work.now,
    )
    try:
        with work.session.begin_nested():
            work.session.add(project)
    except IntegrityError:
        raise Conflict(f"Project {body.name!r} already exists; choose another name.", field="name") from None
    work.session.add(Membership(project_id=project.id, user_id=caller.user_id, role="admin"))
    work.session.flush()
    _record_event(work, caller, project, "project.created", name=body.name)
    return project


def update(work: UnitOfWork, caller: Caller, project: Project, body: ProjectUpdate) -> None:
    if body.weight is not None and body.weight != project.weight:
        if not caller.is_admin:
            raise Forbidden(
                "The weight of a project is its share of the platform; a platform admin sets it.", field="weight"
            )
        project.weight = body.weight
    if body.description is not None:
        project.description = body.description
    _record_event(work, caller, project, "project.changed", **body.model_dump(exclude_none=True))


def remove(work: UnitOfWork, caller: Caller, project: Project) -> None:
    """Delete a project. Its ended jobs stay in the database, but are no longer visible; their files stay. Its quota
    and its reservations are deleted: other projects may use the nodes at once.

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
    work.session.execute(delete(Usage).where(Usage.project_id == project.id))
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


def list_members(work: UnitOfWork, project: Project, page: PageQuery) -> Page[MemberView]:
    query = select(Membership.role).join(User, User.id == Membership.user_id).where(Membership.project_id == project.id)
    rows, cursor = rows_by_name(work.session, query, User.name, page)
    items = [MemberView.model_validate({"user": name, "role": role}) for role, name in rows]
    return Page(items=items, next_cursor=cursor)


def set_member(work: UnitOfWork, caller: Caller, project: Project, user_name: str, role: Role) -> MemberView:
    """Add a member or change the role. Raises ``Conflict`` for the last admin."""
    user = _user(work, user_name)
    admins = _lock_admins(work, project)
    membership = work.session.get(Membership, (project.id, user.id))
    if membership is None:
        work.session.add(Membership(project_id=project.id, user_id=user.id, role=role))
    elif membership.role != role:
        if admins == [user.id]:
            raise _last_admin(project, user_name)
        membership.role = role
    else:
        return MemberView(user=user_name, role=role)
    _record_event(work, caller, project, "project.member_set", user=user_name, role=role)
    return MemberView(user=user_name, role=role)


def remove_member(work: UnitOfWork, caller: Caller, project: Project, user_name: str) -> None:
    user = _user(work, user_name)
    admins = _lock_admins(work, project)
    if admins == [user.id]:
        raise _last_admin(project, user_name)
    gone = work.session.execute(
        delete(Membership)
        .where(Membership.project_id == project.id, Membership.user_id == user.id)
        .returning(Membership.user_id)
    ).scalar_one_or_none()
    if gone is None:
        raise NotFound(f"{user_name} is not a member of project {project.name}.")
    _record_event(work, caller, project, "project.member_removed", user=user_name)


def _lock_admins(work: UnitOfWork, project: Project) -> list[str]:
    """User ids of the project's admins. The lock serialises requests that remove an admin."""
    work.session.execute(select(Project.id).where(Project.id == project.id).with_for_update())
    query = select(Membership.user_id).where(Membership.project_id == project.id, Membership.role == "admin")
    return list(work.session.scalars(query))


def _last_admin(project: Project, user_name: str) -> Conflict:
    return Conflict(f"{user_name} is the last admin of project {project.name}; make another member admin first.")


def _user(work: UnitOfWork, name: str) -> User:
    user = work.session.execute(select(User).where(User.name == name)).scalar_one_or_none()
    if user is None:
        raise NotFound(f"There is no user {name!r}; a platform admin creates users.", field="user")
    return user


def _record_event(work: UnitOfWork, caller: Caller, project: Project, kind: str, **data: object) -> None:
    append_event(work.session, at=work.now, kind=kind, actor=caller.actor, project_id=project.id, data=data)


def _view_of(project: Project, role: str | None) -> ProjectView:
    return ProjectView(
        name=project.name,
        description=project.description,
        weight=project.weight,
        quota=project.quota,
        created_at=project.created_at,
        my_role=role,
    )
