"""From a one-time code to a token, and from a token to a browser's session."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from sqlalchemy import select, update
from trainmaster.wire.admin import Identity, TokenCreated

from api.auth import Caller
from api.work import Work
from core.db.bootstrap import add_token
from core.db.repositories.events import append_event
from core.db.tables import LoginCode, Token, User
from core.domain.errors import Unauthenticated
from core.tokens import token_digest

SESSION_TTL: Final = timedelta(days=30)
TOKEN_TTL: Final = timedelta(days=90)


def exchange_code(work: Work, code: str, *, name: str, ttl: timedelta) -> TokenCreated:
    """A token for a one-time code, which is spent by this.

    Raises:
        Unauthenticated: unknown, spent or expired; or its user is disabled.
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
    scopes = ("read", "write", "admin") if user.is_admin else ("read", "write")
    token = add_token(work.session, user_id=user.id, name=name, scopes=scopes, now=work.now, ttl=ttl)
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


def open_session(work: Work, caller: Caller) -> str:
    """A token of its own for a browser whose user showed another one: logging out ends this one alone."""
    scopes = sorted(caller.scopes)
    return add_token(
        work.session, user_id=caller.user_id, name="browser session", scopes=scopes, now=work.now, ttl=SESSION_TTL
    )


def close_session(work: Work, caller: Caller) -> None:
    """Revoke the token that the caller came with."""
    work.session.execute(
        update(Token)
        .where(Token.id == caller.token_id, Token.revoked_at.is_(None))
        .values(revoked_at=work.now)
        .execution_options(synchronize_session=False)
    )


def identity(caller: Caller) -> Identity:
    return Identity(
        user=caller.user,
        is_admin=caller.is_admin,
        scopes=[scope.value for scope in sorted(caller.scopes)],
        projects={member.project: member.role for member in caller.projects.values()},
    )


def _why_not(work: Work, digest: str) -> str:
    code = work.session.get(LoginCode, digest)
    if code is None:
        return "This login code is not known here; ask for a fresh link (`trainmaster up` prints one)."
    if code.used_at is not None:
        return (
            "This login code was used already, each is good once; ask for a fresh link (`trainmaster up` prints one)."
        )
    return "This login code has expired; ask for a fresh link (`trainmaster up` prints one)."
