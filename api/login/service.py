"""Login: exchange of one-time codes for tokens, and of tokens for browser sessions."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from sqlalchemy import select, update
from trainmaster.wire.admin import CallerIdentity, LoginCodeCreated, TokenCreated

from api.app.unit_of_work import UnitOfWork
from api.auth import Caller, Scope
from core.db.bootstrap import LOGIN_CODE_TTL, add_login_code, add_token
from core.db.repositories.events import append_event
from core.db.tables import LoginCode, Token, User
from core.domain.errors import Forbidden, Unauthenticated
from core.tokens import token_digest

SESSION_TTL: Final = timedelta(days=30)
TOKEN_TTL: Final = timedelta(days=90)


def exchange_code(work: UnitOfWork, code: str, *, name: str, ttl: timedelta) -> TokenCreated:
    """A token for a one-time code, which cannot be used again.

    Raises:
        Unauthenticated: the code is unknown, used or expired; or its user is disabled.
    """
    digest = token_digest(code)
    taken = work.session.execute(
        update(LoginCode)
        .where(LoginCode.digest == digest, LoginCode.used_at.is_(None), LoginCode.expires_at > work.now)
        .values(used_at=work.now)
        .returning(LoginCode.user_id)
        .execution_options(synchronize_session=False)
    ).scalar_one_or_none()
    if taken is None:
        raise Unauthenticated(_why_not(work, digest))
    user = work.session.execute(select(User).where(User.id == taken)).scalar_one()
    if user.disabled_at is not None:
        raise Unauthenticated("This user is disabled; ask an admin of the platform.")
    token = add_token(work.session, user_id=user.id, name=name, scopes=_scopes_of(user.is_admin), now=work.now, ttl=ttl)
    append_event(
        work.session,
        at=work.now,
        kind="user.logged_in",
        actor=f"user:{user.name}",
        reason=f"By a one-time code ({name}).",
    )
    row = work.session.execute(select(Token).where(Token.digest == token_digest(token))).scalar_one()
    return TokenCreated(
        id=row.id,
        user=user.name,
        name=row.name,
        scopes=row.scopes,
        created_at=row.created_at,
        expires_at=row.expires_at,
        token=token,
    )


def make_code(work: UnitOfWork, caller: Caller) -> LoginCodeCreated:
    """A one-time code for the caller's own user.

    Raises:
        Forbidden: the code would give a scope that the caller's own token lacks.
    """
    # From the user, not from the caller's token: the code gives all scopes that the user may have.
    is_admin = work.session.execute(select(User.is_admin).where(User.id == caller.user_id)).scalar_one()
    for scope in _scopes_of(is_admin):
        if not caller.may(Scope(scope)):
            raise Forbidden(f"A login gives the scope {scope}, which your own token lacks; use one that has it.")
    code = add_login_code(work.session, caller.user_id, now=work.now)
    append_event(work.session, at=work.now, kind="user.login_code_made", actor=caller.actor)
    return LoginCodeCreated(user=caller.user, code=code, expires_at=work.now + LOGIN_CODE_TTL)


def _scopes_of(is_admin: bool) -> tuple[str, ...]:
    return ("read", "write", "admin") if is_admin else ("read", "write")


def open_session(work: UnitOfWork, caller: Caller) -> tuple[str, timedelta]:
    """A session token for a browser, opened by the caller's token, and how long it is valid.

    Logging out revokes the session token alone; revoking the caller's token revokes both.

    Raises:
        Unauthenticated: the caller's token was revoked or has expired just now.
    """
    # Locked: a revocation between this read and the insert would miss the new session.
    shown = work.session.execute(
        select(Token).where(Token.id == caller.token_id).with_for_update()
    ).scalar_one_or_none()
    left = SESSION_TTL
    if shown is not None and shown.expires_at is not None:
        left = min(left, shown.expires_at - work.now)
    if shown is None or shown.revoked_at is not None or left <= timedelta(0):
        raise Unauthenticated("This token is no longer valid; `trainmaster login` gets a new one.")
    token = add_token(
        work.session,
        user_id=caller.user_id,
        name="browser session",
        scopes=sorted(caller.scopes),
        now=work.now,
        ttl=left,
        parent_token_id=shown.id,
    )
    return token, left


def close_session(work: UnitOfWork, caller: Caller) -> None:
    """Revoke the caller's token."""
    work.session.execute(
        update(Token)
        .where(Token.id == caller.token_id, Token.revoked_at.is_(None))
        .values(revoked_at=work.now)
        .execution_options(synchronize_session=False)
    )


def identity(caller: Caller) -> CallerIdentity:
    return CallerIdentity(
        user=caller.user,
        is_admin=caller.is_admin,
        scopes=[scope.value for scope in sorted(caller.scopes)],
        projects={member.project: member.role for member in caller.projects.values()},
    )


def _why_not(work: UnitOfWork, digest: str) -> str:
    code = work.session.get(LoginCode, digest)
    if code is None:
        return "This login code is unknown here; get a new link (`trainmaster login --link` prints one)."
    if code.used_at is not None:
        return "This login code was already used; get a new link (`trainmaster login --link` prints one)."
    return "This login code has expired; get a new link (`trainmaster login --link` prints one)."
