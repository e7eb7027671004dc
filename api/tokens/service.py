"""Tokens: made, named and revoked. Only their digest is stored."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Final

from pydantic import Field
from sqlalchemy import literal, select, tuple_, update
from trainmaster.wire.admin import TokenCreate, TokenCreated, TokenView
from trainmaster.wire.base import Page

from api.app.unit_of_work import UnitOfWork
from api.auth import Caller, Scope
from api.http.cursors import make_cursor
from api.http.paging import PageQuery, cut, read_position
from core.db.repositories.events import append_event
from core.db.tables import Token, User, UtcDateTime
from core.domain.errors import Forbidden, InvalidRequest, NotFound
from core.ids import new_id
from core.tokens import new_user_token, token_digest

_LONGEST: Final = timedelta(days=3650)  # longer is for ever: leave expires_in_s out
_OTHERS: Final = "Tokens of other users are a platform admin's business."


class TokenQuery(PageQuery):
    """Whose tokens to list."""

    user: Annotated[str | None, Field(description="Another user's: platform admins only.")] = None
    all_users: Annotated[bool, Field(description="Everybody's: platform admins only.")] = False


def list_tokens(work: UnitOfWork, caller: Caller, wanted: TokenQuery) -> Page[TokenView]:
    """The caller's own, or for a platform admin those of another user or everybody's; newest first, revoked ones too.

    Raises:
        Forbidden: others' tokens, asked for by somebody else.
        InvalidRequest: one user's and everybody's at once.
    """
    query = select(Token, User.name).join(User, User.id == Token.user_id)
    if wanted.all_users:
        if wanted.user is not None:
            raise InvalidRequest("Give user or all_users, not both.", field="all_users")
        if not caller.is_admin:
            raise Forbidden(_OTHERS, field="all_users")
    else:
        query = query.where(Token.user_id == _user(work, caller, wanted.user).id)
    if wanted.cursor is not None:
        made_at, token_id = read_position(wanted.cursor)
        last = tuple_(literal(made_at, UtcDateTime), literal(token_id))
        query = query.where(tuple_(Token.created_at, Token.id) < last)
    newest_first = query.order_by(Token.created_at.desc(), Token.id.desc()).limit(wanted.limit + 1)
    rows, has_more = cut(work.session.execute(newest_first), wanted.limit)
    cursor = make_cursor(rows[-1][0].created_at.isoformat(), rows[-1][0].id) if has_more else None
    return Page(items=[view_of(token, name) for token, name in rows], next_cursor=cursor)


def create(work: UnitOfWork, caller: Caller, body: TokenCreate) -> TokenCreated:
    """A new token; its text is in the answer and nowhere else.

    Raises:
        Forbidden: a scope that the caller's own token lacks, or another user's token.
    """
    user = _user(work, caller, body.user)
    for scope in body.scopes:
        if not caller.may(Scope(scope)):
            raise Forbidden(f"Your own token lacks the scope {scope}, so it cannot give it away.", field="scopes")
        if scope == "admin" and not user.is_admin:
            raise Forbidden(f"{user.name} is no platform admin, so the scope admin would be of no use.", field="scopes")
    if user.disabled_at is not None:
        raise InvalidRequest(f"User {user.name} is disabled; enable the user first.", field="user")
    if body.expires_in_s is not None and body.expires_in_s > _LONGEST.total_seconds():
        raise InvalidRequest(
            "expires_in_s is at most ten years; leave it out for a token that does not expire.", field="expires_in_s"
        )
    text = new_user_token()
    token = Token(
        id=new_id("token"),
        user_id=user.id,
        name=body.name,
        digest=token_digest(text),
        scopes=sorted(set(body.scopes), key=["read", "write", "admin"].index),
        created_at=work.now,
        expires_at=None if body.expires_in_s is None else work.now + timedelta(seconds=body.expires_in_s),
    )
    work.session.add(token)
    work.session.flush()
    append_event(
        work.session,
        at=work.now,
        kind="token.created",
        actor=caller.actor,
        data={"token_id": token.id, "user": user.name, "scopes": token.scopes},
    )
    return TokenCreated(**view_of(token, user.name).model_dump(), token=text)


def revoke(work: UnitOfWork, caller: Caller, token_id: str) -> None:
    """For good, with the browsers' sessions that were opened with it. Repeating is harmless. Raises ``NotFound`` for tokens of others, unless the caller is a platform admin."""
    token = work.session.get(Token, token_id, with_for_update=True)
    if token is None or (token.user_id != caller.user_id and not caller.is_admin):
        raise NotFound(f"You have no token {token_id}; `GET /api/v1/tokens` lists yours.")
    if token.revoked_at is None:
        token.revoked_at = work.now
        work.session.execute(
            update(Token)
            .where(Token.parent_token_id == token_id, Token.revoked_at.is_(None))
            .values(revoked_at=work.now)
            .execution_options(synchronize_session=False)
        )
        append_event(work.session, at=work.now, kind="token.revoked", actor=caller.actor, data={"token_id": token.id})


def view_of(token: Token, user_name: str) -> TokenView:
    return TokenView(
        id=token.id,
        user=user_name,
        name=token.name,
        scopes=token.scopes,
        created_at=token.created_at,
        expires_at=token.expires_at,
        revoked_at=token.revoked_at,
        last_used_at=token.last_used_at,
    )


def _user(work: UnitOfWork, caller: Caller, name: str | None) -> User:
    if name is not None and name != caller.user and not caller.is_admin:
        raise Forbidden(_OTHERS, field="user")
    user = work.session.execute(select(User).where(User.name == (name or caller.user))).scalar_one_or_none()
    if user is None:
        raise NotFound(f"There is no user {name!r}; `GET /api/v1/users` lists them.", field="user")
    return user
