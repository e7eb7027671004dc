from __future__ import annotations

from trainmaster.wire.admin import UserCreate, UserUpdate, UserView
from trainmaster.wire.base import Page

from api.app.unit_of_work import AppContextDep
from api.auth import PlatformAdmin, Reader
from api.http.paging import PageParams
from api.http.routing import new_router
from api.users import service

router = new_router("users", "/users")


@router.get("", operation_id="list_users", summary="The users that you may see")
def list_users(caller: Reader, context: AppContextDep, page: PageParams) -> Page[UserView]:
    """In order of name. Platform admins see all users; others see themselves and the members of their projects."""
    with context.read() as work:
        return service.list_users(work, caller, page)


@router.post("", operation_id="create_user", summary="Create a user", status_code=201)
def create_user(body: UserCreate, caller: PlatformAdmin, context: AppContextDep) -> UserView:
    """The user logs in with a token that an admin creates: `POST /tokens` with `user`."""
    with context.write() as work:
        return service.view_of(service.create(work, caller, body))


@router.patch("/{user}", operation_id="update_user", summary="Change a user")
def update_user(user: str, body: UserUpdate, caller: PlatformAdmin, context: AppContextDep) -> UserView:
    """A disabled user's tokens are refused; running jobs continue. The last platform admin cannot be removed."""
    with context.write() as work:
        return service.view_of(service.update(work, caller, user, body))
