"""API tokens: listed, created and revoked. Only their digests are stored."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Annotated, Final

from fastapi import Query, Response
from pydantic import Field
from sqlalchemy import select
from trainmaster.wire.admin import SCOPES, TokenCreate, TokenCreated, TokenView
from trainmaster.wire.base import Page, WireRequest

from api.app.token_scopes import SCIM, includes
from api.app.unit_of_work import AppContextDep, UnitOfWork
from api.auth import Caller, Reader, Writer
from api.http.paging import PageQuery, newest_rows
from api.http.routing import new_router
from core.db.engine import UntypedSelect
from core.db.repositories.tokens import lock_parent, revoke
from core.db.tables import Membership, Project, Token, User
from core.domain.errors import Forbidden, InvalidRequest, NotFound
from core.ids import new_id
from core.tokens import new_user_token, token_digest

router = new_router("tokens", "/tokens")

MAX_LIFETIME: Final = timedelta(days=3650)  # for longer, a token without expiry
_OTHERS: Final = "Only a platform admin can manage tokens of other users."


class TokenQuery(PageQuery):
    """Filter of tokens."""

    user: Annotated[str | None, Field(description="Tokens of another user: platform admins only.")] = None
    all_users: Annotated[bool, Field(description="Tokens of all users: platform admins only.")] = False


class _Revocation(WireRequest):
    keep_children: Annotated[
        bool, Field(description="Leave the tokens valid that were created with it, as when it is replaced.")
    ] = False


@router.get("", operation_id="list_tokens", summary="The caller's tokens")
def list_tokens(caller: Reader, context: AppContextDep, query: Annotated[TokenQuery, Query()]) -> Page[TokenView]:
    """Newest first; their text is never shown again."""
    with context.read() as work:
        rows, cursor = newest_rows(work.session, _selected(work, caller, query), Token, query)
        return Page(items=views_of(work, rows), next_cursor=cursor)


@router.post("", operation_id="create_token", summary="Create a token", status_code=201)
def create_token(body: TokenCreate, caller: Writer, context: AppContextDep, response: Response) -> TokenCreated:
    """`token` is shown only once. Its scopes, projects and expiry are within those of the caller's token, and it is
    revoked with that.
    """
    response.headers["Cache-Control"] = "no-store"
    with context.write() as work:
        user = _user(work, caller, body.user)
        _demand_valid(body, caller, user)
        projects = None if body.projects is None else _limit_to(work, caller, user, body.projects)
        parent = lock_parent(work.session, caller.token_id, work.now)
        text = new_user_token()
        token = Token(
            id=new_id("token"),
            user_id=user.id,
            name=body.name,
            digest=token_digest(text),
            scopes=sorted(set(body.scopes), key=SCOPES.index),
            project_ids=parent.project_ids if projects is None else sorted(projects),
            created_at=work.now,
            expires_at=_expiry(parent, body.expires_in_s, work.now),
            parent_token_id=parent.id,
        )
        work.session.add(token)
        work.session.flush()
        data = {"token_id": token.id, "user": user.name, "scopes": token.scopes}
        if body.projects is not None:
            data["projects"] = body.projects
        work.record_event("token.created", caller.actor, data=data)
        (view,) = views_of(work, [(token, user.name)])
        return TokenCreated(**view.model_dump(), token=text)


@router.delete("/{token_id}", operation_id="revoke_token", summary="Revoke a token", status_code=204)
def revoke_token(token_id: str, caller: Writer, context: AppContextDep, query: Annotated[_Revocation, Query()]) -> None:
    """Takes effect at once on this API process, within seconds on others. All tokens and sessions that were created
    with it are revoked, too, unless `keep_children`. The caller's own token may be revoked.
    """
    with context.write() as work:
        token = work.session.get(Token, token_id, with_for_update=True)
        if token is None or not (caller.is_admin or _is_own(token, caller)):
            raise NotFound(f"You have no token with the ID {token_id}; `trainmaster token list` shows your IDs.")
        if token.revoked_at is None:
            revoke(work.session, token, work.now, keeps_children=query.keep_children)
            work.record_event("token.revoked", caller.actor, data={"token_id": token.id})


def _is_own(token: Token, caller: Caller) -> bool:
    """Whether the caller may revoke it: a limited token only itself, and what it created."""
    is_limited = caller.project_ids_limit is not None
    return token.user_id == caller.user_id and (not is_limited or caller.token_id in (token.id, token.parent_token_id))


def _selected(work: UnitOfWork, caller: Caller, wanted: TokenQuery) -> UntypedSelect:
    """The tokens of a list, with their users' names, revoked tokens included."""
    query = select(Token, User.name).join(User, User.id == Token.user_id)
    if wanted.all_users:
        if wanted.user is not None:
            raise InvalidRequest("State user or all_users, not both.", field="all_users")
        if not caller.is_admin:
            raise Forbidden(_OTHERS, field="all_users")
    else:
        query = query.where(Token.user_id == _user(work, caller, wanted.user).id)
    return query


def _demand_valid(body: TokenCreate, caller: Caller, user: User) -> None:
    if caller.is_service_account:
        raise Forbidden("Admins of its project create tokens of a service account; it creates none itself.")
    for scope in body.scopes:
        if not includes(caller.scopes, scope) or (scope == SCIM and not caller.is_admin):
            raise Forbidden(f"Your own token lacks the scope {scope}, so it cannot grant it.", field="scopes")
        if scope in ("admin", SCIM) and not user.is_admin:
            raise Forbidden(
                f"{user.name} is not a platform admin, so the scope {scope} would have no effect.", field="scopes"
            )
        if scope in ("admin", SCIM) and (body.projects is not None or caller.project_ids_limit is not None):
            raise InvalidRequest(f"The scope {scope} covers the platform; omit it or projects.", field="projects")
    if user.disabled_at is not None:
        raise InvalidRequest(f"User {user.name} is disabled; enable the user first.", field="user")
    if body.expires_in_s is not None and body.expires_in_s > MAX_LIFETIME.total_seconds():
        raise InvalidRequest(
            "expires_in_s is at most ten years; omit it for a token that does not expire.", field="expires_in_s"
        )


def _limit_to(work: UnitOfWork, caller: Caller, user: User, names: Sequence[str]) -> set[str]:
    """Ids of the projects. Raises ``NotFound``, or ``InvalidRequest`` if the user is not a member of one."""
    ids = {caller.member_of(work.session, name).project_id: name for name in names}
    query = select(Membership.project_id).where(Membership.user_id == user.id, Membership.project_id.in_(ids))
    for project_id in ids.keys() - set(work.session.scalars(query)):
        raise InvalidRequest(
            f"{user.name} is not a member of project {ids[project_id]}, so a token that is limited to it is useless: "
            "add the member first, or create a service account of the project.",
            field="projects",
        )
    return set(ids)


def _expiry(parent: Token, expires_in_s: float | None, now: datetime) -> datetime | None:
    """Raises ``InvalidRequest``: later than the parent's."""
    if expires_in_s is None:
        return parent.expires_at
    wanted = now + timedelta(seconds=expires_in_s)
    if parent.expires_at is not None and wanted > parent.expires_at:
        left = int((parent.expires_at - now).total_seconds())
        raise InvalidRequest(
            f"expires_in_s: your own token expires in {left} s, and a token created with it cannot outlive it: omit "
            "expires_in_s, or log in with another token.",
            field="expires_in_s",
        )
    return wanted


def views_of(work: UnitOfWork, rows: Sequence[tuple[Token, str]]) -> list[TokenView]:
    """Views of tokens, each with the name of its user."""
    ids = {project_id for token, _ in rows for project_id in token.project_ids or ()}
    names = dict(work.session.execute(select(Project.id, Project.name).where(Project.id.in_(ids))).all()) if ids else {}
    return [
        TokenView(
            id=token.id,
            user=user_name,
            name=token.name,
            scopes=token.scopes,
            projects=None if token.project_ids is None else sorted(names[each] for each in token.project_ids),
            created_at=token.created_at,
            expires_at=token.expires_at,
            revoked_at=token.revoked_at,
            last_used_at=token.last_used_at,
            parent_id=token.parent_token_id,
        )
        for token, user_name in rows
    ]


def _user(work: UnitOfWork, caller: Caller, name: str | None) -> User:
    if name is not None and name != caller.user and not caller.is_admin:
        raise Forbidden(_OTHERS, field="user")
    user = work.session.execute(select(User).where(User.name == (name or caller.user))).scalar_one_or_none()
    if user is None:
        raise NotFound(f"There is no user {name!r}; `GET /api/v1/users` lists them.", field="user")
    return user
