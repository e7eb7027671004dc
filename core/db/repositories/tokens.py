"""Families of tokens: a token's children are the tokens, sessions and login codes that were created with it.

A child's scopes and expiry are within its parent's, and revoking a token revokes all its descendants.
"""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import delete, func, select, update
from sqlalchemy.orm import Session

from core.db.tables import LoginCode, Membership, Token, User
from core.domain.errors import Unauthenticated


def lock_parent(session: Session, token_id: str, now: datetime) -> Token:
    """The token, locked until the transaction ends: a revocation meanwhile waits, and then finds the new child.

    Raises:
        Unauthenticated: it was revoked, or has expired.
    """
    token = session.execute(select(Token).where(Token.id == token_id).with_for_update()).scalar_one_or_none()
    if token is None or token.revoked_at is not None or (token.expires_at is not None and token.expires_at <= now):
        raise Unauthenticated("This token is no longer valid; `trainmaster login` gets a new one.")
    return token


def expiry_within(parent: Token | None, wanted: datetime | None) -> datetime | None:
    """The earlier of the parent's expiry and ``wanted``; ``None``: never."""
    times = [at for at in (None if parent is None else parent.expires_at, wanted) if at is not None]
    return min(times, default=None)


def revoke(session: Session, token: Token, now: datetime, *, keeps_children: bool = False) -> None:
    """Revoke ``token``, which must be locked, and its descendants.

    ``keeps_children``: its children become those of its own parent, and stay valid.
    """
    token.revoked_at = token.revoked_at or now
    session.flush()
    if keeps_children:
        for table in (Token, LoginCode):
            session.execute(
                update(table)
                .where(table.parent_token_id == token.id)
                .values(parent_token_id=token.parent_token_id)
                .execution_options(synchronize_session=False)
            )
        return
    # Level by level: each statement waits for transactions that add a child to the level before, and finds the child.
    level = [token.id]
    while level:
        level = list(
            session.execute(
                update(Token)
                .where(Token.parent_token_id.in_(level))
                .values(revoked_at=func.coalesce(Token.revoked_at, now))
                .returning(Token.id)
                .execution_options(synchronize_session=False)
            ).scalars()
        )


def revoke_all(session: Session, user_id: str, now: datetime) -> int:
    """Revoke all tokens, sessions and login codes of a user; returns how many tokens were valid."""
    session.execute(
        update(LoginCode)
        .where(LoginCode.user_id == user_id, LoginCode.used_at.is_(None))
        .values(used_at=now)
        .execution_options(synchronize_session=False)
    )
    revoked = session.execute(
        update(Token)
        .where(Token.user_id == user_id, Token.revoked_at.is_(None))
        .values(revoked_at=now)
        .returning(Token.expires_at)
        .execution_options(synchronize_session=False)
    ).scalars()
    return sum(expires_at is None or expires_at > now for expires_at in revoked)


def end_service_account(session: Session, account: User, now: datetime) -> int:
    """Delete a service account: its row stays, since jobs name it. Returns how many valid tokens were revoked."""
    revoked = revoke_all(session, account.id, now)
    session.execute(delete(Membership).where(Membership.user_id == account.id))
    account.disabled_at = account.disabled_at or now
    # The name becomes free; "~" cannot be part of one.
    account.name = f"{account.name}~{account.id}"
    session.flush()
    return revoked
