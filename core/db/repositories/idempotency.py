"""Requests that came before: the same key makes no second thing. Jobs have theirs in :mod:`core.db.repositories.submission`."""

from __future__ import annotations

from datetime import datetime
from typing import Any, cast

from sqlalchemy import Table, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from core.db.repositories.submission import KeyClaim
from core.db.tables import IdempotencyKey
from core.domain.errors import IdempotencyMismatch

_KEYS = cast("Table", IdempotencyKey.__table__)


def claim_key(session: Session, claim: KeyClaim, made_id: str, now: datetime) -> str | None:
    """Note that this request makes ``made_id``, and return ``None``; or what an equal request made before.

    Raises:
        IdempotencyMismatch: the key was used for another request.
    """
    insert: Any = postgresql.insert if session.get_bind().dialect.name == "postgresql" else sqlite.insert
    values = {
        "user_id": claim.user_id,
        "key": claim.key,
        "request_digest": claim.request_digest,
        "job_id": made_id,
        "created_at": now,
    }
    fresh = insert(_KEYS).values(**values).on_conflict_do_nothing().returning(_KEYS.c.job_id)
    if session.connection().execute(fresh).scalar_one_or_none() is not None:
        return None
    return find_key(session, claim)


def find_key(session: Session, claim: KeyClaim) -> str | None:
    """What an equal request made before, if any. Raises as ``claim_key``."""
    row = session.execute(
        select(_KEYS.c.request_digest, _KEYS.c.job_id).where(_KEYS.c.user_id == claim.user_id, _KEYS.c.key == claim.key)
    ).one_or_none()
    if row is None:
        return None
    if row.request_digest != claim.request_digest:
        raise IdempotencyMismatch(
            "This Idempotency-Key came before with another request; use a fresh key.", field="Idempotency-Key"
        )
    return str(row.job_id)
