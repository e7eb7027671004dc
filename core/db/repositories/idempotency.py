"""Idempotency keys of requests other than job submissions (those: :mod:`core.db.repositories.submission`)."""

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
    """Claim the key for ``made_id`` and return ``None``; or the id that an equal earlier request created.

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
    """The id that an equal earlier request created, if any. Raises like ``claim_key``."""
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
