"""Users of the platform."""

from __future__ import annotations

from sqlalchemy import or_, select, update
from trainmaster.wire.admin import UserCreate, UserUpdate, UserView
from trainmaster.wire.base import Page

from api.app.unit_of_work import AppContextDep
from api.auth import PlatformAdmin, Reader
from api.http.paging import PageParams, rows_by_name
from api.http.routing import new_router
from core.db.tables import Membership, User, UserIdentity
from core.domain.errors import Conflict, NotFound
from core.ids import new_id
from core.job_users import refusal_of_users

router = new_router("users", "/users")


@router.get("", operation_id="list_users", summary="The users that you may see")
def list_users(caller: Reader, context: AppContextDep, page: PageParams) -> Page[UserView]:
    """In order of name. Platform admins see all users; others see themselves and the members of their projects."""
    query = select(User)
    if not caller.is_admin:
        fellow_members = select(Membership.user_id).where(Membership.project_id.in_(list(caller.projects)))
        query = query.where(or_(User.id == caller.user_id, User.id.in_(fellow_members)))
    with context.read() as work:
        rows, cursor = rows_by_name(work.session, query, User.name, page)
        return Page(items=[_view_of(user) for user, _ in rows], next_cursor=cursor)


@router.post("", operation_id="create_user", summary="Create a user", status_code=201)
def create_user(body: UserCreate, caller: PlatformAdmin, context: AppContextDep) -> UserView:
    """The user logs in with a token that an admin creates: `POST /tokens` with `user`.

    Refused where all jobs run as one user of the machine: plain processes of a platform that was not started as root.
    """
    refusal = refusal_of_users(context.settings)
    if refusal is not None:
        raise Conflict(refusal)
    with context.write() as work:
        user = User(id=new_id("user"), name=body.name, is_admin=body.is_admin, created_at=work.now)
        work.add_unique(user, f"User {body.name!r} already exists; choose another name.")
        work.record_event("user.created", caller.actor, data={"user": body.name, "is_admin": body.is_admin})
        return _view_of(user)


@router.patch("/{user}", operation_id="update_user", summary="Change a user")
def update_user(user: str, body: UserUpdate, caller: PlatformAdmin, context: AppContextDep) -> UserView:
    """A disabled user's tokens are refused; running jobs continue. The last platform admin cannot be removed."""
    with context.write() as work:
        # All admins are locked, in one order, so that concurrent requests cannot remove the last admin.
        locked = select(User).where(User.is_admin, User.disabled_at.is_(None)).order_by(User.id).with_for_update()
        admins = {admin.id for admin in work.session.scalars(locked)}
        row = work.session.execute(select(User).where(User.name == user)).scalar_one_or_none()
        if row is None:
            raise NotFound(f"There is no user {user!r}; `GET /api/v1/users` lists them.")
        if row.service_project_id is not None and body.is_admin is not None:
            raise Conflict(f"{user} is a service account, whose rights end at its project; make a user admin.")
        loses = body.is_admin is False or body.is_disabled is True
        if loses and admins == {row.id}:
            raise Conflict(f"{user} is the last platform admin; make another user admin first.")
        if body.is_admin is not None:
            row.is_admin = body.is_admin
            # Flows leave what an admin decided as it is.
            by_login = update(UserIdentity).where(UserIdentity.user_id == row.id)
            work.session.execute(by_login.values(is_admin_source=False).execution_options(synchronize_session=False))
        if body.is_disabled is not None:
            row.disabled_at = (row.disabled_at or work.now) if body.is_disabled else None
        work.record_event("user.changed", caller.actor, data={"user": user, **body.model_dump(exclude_none=True)})
        return _view_of(row)


def _view_of(user: User) -> UserView:
    return UserView(
        name=user.name,
        is_admin=user.is_admin,
        is_service_account=user.service_project_id is not None,
        created_at=user.created_at,
        disabled_at=user.disabled_at,
    )
