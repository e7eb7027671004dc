"""A repeated request finds what its first try made."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import Insert, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from core.db.tables import IdempotencyKey
from core.domain.errors import IdempotencyMismatch


def claim_key(
    session: Session, *, user_id: str, key: str, request_digest: str, job_id: str, now: datetime
) -> str | None:
    """``None`` when the key is ours now and the job may be made; else the job that an equal request made before.

    A second request that comes while the first is still in its transaction waits for that one's end.

    Raises:
        IdempotencyMismatch: the key was used for another request.
    """
    values: dict[str, Any] = {
        "user_id": user_id,
        "key": key,
        "request_digest": request_digest,
        "job_id": job_id,
        "created_at": now,
    }
    if session.execute(_insert_unless_there(session, values)).scalar_one_or_none() is not None:
        return None
    query = select(IdempotencyKey.request_digest, IdempotencyKey.job_id)
    row = session.execute(query.where(IdempotencyKey.user_id == user_id, IdempotencyKey.key == key)).one()
    if row.request_digest != request_digest:
        raise IdempotencyMismatch(
            "This Idempotency-Key came before with another request; use a fresh key for another job.",
            field="Idempotency-Key",
        )
    return str(row.job_id)


def _insert_unless_there(session: Session, values: dict[str, Any]) -> Insert:
    build = postgresql.insert if session.get_bind().dialect.name == "postgresql" else sqlite.insert
    return build(IdempotencyKey).values(**values).on_conflict_do_nothing().returning(IdempotencyKey.job_id)
