"""The audit log: who did what to which object, or was refused. Triggers of the database keep it append-only."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, Index, Integer, text
from sqlalchemy.orm import Mapped, mapped_column

from core.db.tables.base import Base, BigId


class AuditEntry(Base):
    """One request. Only ``position``, ``previous_hash`` and ``hash`` are set later, once, by the chaining scheduler.

    ``user``: empty for anonymous requests; ``attempt:<id>`` for a job's script. ``repeats``: how many refused requests
    the entry stands for. ``changes``: at most some kilobytes, without secrets.
    """

    __tablename__ = "audit_entries"
    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    at: Mapped[datetime]
    action: Mapped[str]
    method: Mapped[str]
    route: Mapped[str]
    user: Mapped[str]
    user_id: Mapped[str | None]
    token_id: Mapped[str | None]
    address: Mapped[str]
    object_kind: Mapped[str]
    object_id: Mapped[str]
    project_id: Mapped[str | None]
    project: Mapped[str | None]
    outcome: Mapped[str]  # allowed, refused
    status: Mapped[int] = mapped_column(Integer)
    code: Mapped[str | None]  # of the error
    request_id: Mapped[str]
    repeats: Mapped[int] = mapped_column(Integer)
    changes: Mapped[list[Any]]
    position: Mapped[int | None] = mapped_column(BigInteger, unique=True)
    previous_hash: Mapped[str | None]
    hash: Mapped[str | None]
    __table_args__ = (
        Index("ix_audit_entries_user", "user", "id"),
        Index("ix_audit_entries_object_id", "object_id", "id"),
        Index("ix_audit_entries_project_id", "project_id", "id"),
        Index(
            "ix_audit_entries_unchained", "id",
            sqlite_where=text("position IS NULL"), postgresql_where=text("position IS NULL"),
        ),
        Index(
            "ix_audit_entries_cut", "id",
            sqlite_where=text("action = 'cut_audit_log'"), postgresql_where=text("action = 'cut_audit_log'"),
        ),
    )  # fmt: skip
