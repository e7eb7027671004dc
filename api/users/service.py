"""Users of the platform."""

from __future__ import annotations

from sqlalchemy import or_, select
from sqlalchemy.exc import IntegrityError
from trainmaster.wire.admin import UserCreate, UserUpdate, UserView
from trainmaster.wire.base import Page

from api.app.unit_of_work import UnitOfWork
from api.auth import Caller
from api.http.paging import PageQuery, rows_by_name
from core.db.repositories.events import append_event
from core.db.tables import Membership, User
from core.domain.errors import Conflict, NotFound
from core.ids import new_id


def list_users(work: UnitOfWork, caller: Caller, page: PageQuery) -> Page[UserView]:
    """All users for a platform admin; else the caller and the members of the caller's projects."""
    query = select(User)
    if not caller.is_admin:
        fellow_members = select(Membership.user_id).where(Membership.project_id.in_(list(caller.projects)))
        query = query.where(or_(User.id == caller.user_id, User.id.in_(fellow_members)))
    rows, cursor = rows_by_name(work.session, query, User.name, page)
    return Page(items=[view_of(user) for user, _ in rows], next_cursor=cursor)


def create(work: UnitOfWork, caller: Caller, body: UserCreate) -> User:
    user = User(id=new_id("user"), name=body.name, is_admin=body.is_admin, created_at=work.now)
    try:
        with work.session.begin_nested():
            work.session.add(user)
    except IntegrityError:
        raise Conflict(f"User {body.name!r} already exists; choose another name.", field="name") from None
    append_event(
        work.session,
        at=work.now,
        kind="user.created",
        actor=caller.actor,
        data={"user": body.name, "is_admin": body.is_admin},
    )
    return user


def update(work: UnitOfWork, caller: Caller, name: str, body: UserUpdate) -> User:
    """Change a user. Raises ``Conflict`` for the last platform admin that can log in."""
    # All admins are locked, in one order, so that concurrent requests cannot remove the last admin.
    locked = select(User).where(User.is_admin, User.disabled_at.is_(None)).order_by(User.id).with_for_update()
    admins = {user.id for user in work.session.scalars(locked)}
    user = work.session.execute(select(User).where(User.name == name)).scalar_one_or_none()
    if user is None:
        raise NotFound(f"There is no user {name!r}; `GET /api/v1/users` lists them.")
    loses = body.is_admin is False or body.is_disabled is True
    if loses and admins == {user.id}:
        raise Conflict(f"{name} is the last platform admin; make another user admin first.")
    if body.is_admin is not None:
        user.is_admin = body.is_admin
    if body.is_disabled is not None:
        user.disabled_at = (user.disabled_at or work.now) if body.is_disabled else None
    append_event(
        work.session,
        at=work.now,
        kind="user.changed",
        actor=caller.actor,
        data={"user": name, **body.model_dump(exclude_none=True)},
    )
    return user


def view_of(user: User) -> UserView:
    return UserView(name=user.name, is_admin=user.is_admin, created_at=user.created_at, disabled_at=user.disabled_at)
