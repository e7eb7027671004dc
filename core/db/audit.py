"""The audit log in the database: appending, chaining by hashes, cutting by retention, and reading."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, cast

from sqlalchemy import Table, bindparam, delete, func, insert, select, update
from sqlalchemy.orm import Session
from trainmaster.audit import CUT_ACTION, FIRST_HASH, entry_hash

from core.db.tables import AuditEntry, Project

AUDIT_TABLE: Final = cast("Table", AuditEntry.__table__)
_CHAIN_FIELDS: Final = ("position", "previous_hash", "hash")
CONTENT_FIELDS: Final = tuple(name.name for name in AUDIT_TABLE.columns if name.name not in ("id", *_CHAIN_FIELDS))
_INSERT: Final = insert(AUDIT_TABLE).inline()
_CHAIN: Final = (
    update(AUDIT_TABLE)
    .where(AUDIT_TABLE.c.id == bindparam("entry_id"), AUDIT_TABLE.c.position.is_(None))
    .values({name: bindparam(f"new_{name}") for name in _CHAIN_FIELDS})
)
_CUT_LIMIT: Final = 100_000  # entries of one cut


def append_entries(session: Session, rows: Sequence[Mapping[str, Any]]) -> None:
    """Append entries, each with all of ``CONTENT_FIELDS``; a project's name or id is looked up. They are chained
    later.
    """
    session.connection().execute(_INSERT, [_with_project(session, row) for row in rows])


def _with_project(session: Session, row: Mapping[str, Any]) -> Mapping[str, Any]:
    given, name = row["project_id"], row["project"]
    if (given is None) == (name is None):
        return row
    same = Project.name == name if given is None else Project.id == given
    newest = select(Project.id, Project.name).where(same).order_by(Project.created_at.desc()).limit(1)
    found = session.connection().execute(newest).one_or_none()
    return row if found is None else {**row, "project_id": found[0], "project": found[1]}


def to_json(row: Any) -> dict[str, Any]:
    """The entry as it is hashed, exported and listed."""
    fields = {column.name: getattr(row, column.name) for column in AUDIT_TABLE.columns}
    return {**fields, "at": row.at.astimezone(UTC).isoformat().replace("+00:00", "Z")}


def chain_entries(session: Session, limit: int) -> int:
    """Chain at most ``limit`` entries in the order of their ids; returns how many. For one writer at a time."""
    rows = session.execute(
        select(AUDIT_TABLE).where(AUDIT_TABLE.c.position.is_(None)).order_by(AUDIT_TABLE.c.id).limit(limit)
    ).all()
    if not rows:
        return 0
    position, previous = head_of(session)
    chained = []
    for row in rows:
        position += 1
        own = entry_hash(previous, to_json(row))
        chained.append({"entry_id": row.id, "new_position": position, "new_previous_hash": previous, "new_hash": own})
        previous = own
    session.connection().execute(_CHAIN, chained)
    return len(rows)


def head_of(session: Session) -> tuple[int, str]:
    """Position and hash of the newest chained entry."""
    query = select(AuditEntry.position, AuditEntry.hash).where(AuditEntry.position.is_not(None))
    row = session.execute(query.order_by(AuditEntry.position.desc()).limit(1)).one_or_none()
    return (0, FIRST_HASH) if row is None else (int(row[0] or 0), str(row[1]))


def cut_entries(session: Session, *, before: datetime, now: datetime) -> int:
    """Delete the chained entries from the chain's begin to the first one that is not older than ``before``; returns how
    many. An entry records up to which position and hash; the triggers allow only what it states.
    """
    oldest = session.scalar(select(func.min(AuditEntry.position)))
    if oldest is None:
        return 0
    newer = session.scalar(
        select(func.min(AuditEntry.position)).where(AuditEntry.position.is_not(None), AuditEntry.at >= before)
    )
    # The newest entry stays, so that the next one continues the chain.
    newest = head_of(session)[0] - 1
    end = min(newest if newer is None else newer - 1, newest, oldest + _CUT_LIMIT - 1)
    if end < oldest:
        return 0
    own = str(session.scalar(select(AuditEntry.hash).where(AuditEntry.position == end)))
    append_entries(session, [_cut_entry(end, own, now)])
    session.execute(delete(AuditEntry).where(AuditEntry.position <= end).execution_options(synchronize_session=False))
    return int(end - oldest + 1)


def _cut_entry(position: int, own: str, now: datetime) -> dict[str, Any]:
    empty = dict.fromkeys(("user_id", "token_id", "project_id", "project", "code"))
    return {
        **empty, "at": now, "action": CUT_ACTION, "method": "", "route": "", "user": "scheduler", "address": "",
        "object_kind": "audit_log", "object_id": str(position), "outcome": "allowed", "status": 200, "request_id": "",
        "repeats": 1, "changes": [{"position": position, "hash": own}],
    }  # fmt: skip


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """Which entries; ``None``: any. ``project_ids``: of one of these projects."""

    user: str | None = None
    token: str | None = None
    action: str | None = None
    object: str | None = None
    outcome: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    project_ids: Collection[str] | None = None

    def conditions(self) -> list[Any]:
        wanted = [
            (AuditEntry.user, self.user),
            (AuditEntry.token_id, self.token),
            (AuditEntry.action, self.action),
            (AuditEntry.object_id, self.object),
            (AuditEntry.outcome, self.outcome),
        ]
        found: list[Any] = [column == value for column, value in wanted if value is not None]
        if self.since is not None:
            found.append(AuditEntry.at >= self.since)
        if self.until is not None:
            found.append(AuditEntry.at < self.until)
        if self.project_ids is not None:
            found.append(AuditEntry.project_id.in_(self.project_ids))
        return found


def newest_entries(session: Session, wanted: AuditFilter, *, before: int | None, limit: int) -> list[dict[str, Any]]:
    """The newest entries first, with ids below ``before``."""
    query = select(AuditEntry).where(*wanted.conditions()).order_by(AuditEntry.id.desc()).limit(limit)
    if before is not None:
        query = query.where(AuditEntry.id < before)
    return [to_json(row) for row in session.scalars(query)]


def oldest_entries(
    session: Session, wanted: AuditFilter, *, after: int, is_chained: bool, limit: int
) -> list[dict[str, Any]]:
    """The oldest entries first: chained ones with positions beyond ``after``, or others with ids beyond it."""
    order = AUDIT_TABLE.c.position if is_chained else AUDIT_TABLE.c.id
    query = select(AUDIT_TABLE).where(order > after, *wanted.conditions()).order_by(order).limit(limit)
    if not is_chained:
        query = query.where(AUDIT_TABLE.c.position.is_(None))
    return [to_json(row) for row in session.execute(query)]
