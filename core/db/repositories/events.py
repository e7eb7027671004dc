"""The event history: one row per event, written in the transaction in which it happens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, cast

from sqlalchemy import ColumnElement, Table, func, insert, select
from sqlalchemy.orm import Session

from core.db.engine import UntypedRow
from core.db.tables import Event

# Built once and run on the connection: every state transition writes events.
_INSERT = insert(cast("Table", Event.__table__)).inline()
# Of the platform: a disk is nearly full, or not so any more.
DISK_WARNING: Final = "disk.warning"
DISK_OK: Final = "disk.ok"


def append_event(
    session: Session,
    *,
    at: datetime,
    kind: str,
    actor: str,
    project_id: str | None = None,
    job_id: str | None = None,
    attempt_id: str | None = None,
    reason: str = "",
    data: Mapping[str, Any] | None = None,
) -> None:
    """Append one event. ``kind``: noun.verb; ``actor``: ``user:<name>``, ``scheduler``, ``runtime:<role>-<index>``."""
    append_events(
        session,
        [
            event_row(
                at=at,
                kind=kind,
                actor=actor,
                project_id=project_id,
                job_id=job_id,
                attempt_id=attempt_id,
                reason=reason,
                data=data,
            )
        ],
    )


def append_events(session: Session, rows: Sequence[Mapping[str, Any]]) -> None:
    """Append rows made by :func:`event_row`, in order."""
    session.connection().execute(_INSERT, rows)


def event_row(
    *,
    at: datetime,
    kind: str,
    actor: str,
    project_id: str | None = None,
    job_id: str | None = None,
    attempt_id: str | None = None,
    reason: str = "",
    data: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """One row for :func:`append_events`; same arguments as :func:`append_event`."""
    return {
        "at": at,
        "kind": kind,
        "actor": actor,
        "project_id": project_id,
        "job_id": job_id,
        "attempt_id": attempt_id,
        "reason": reason,
        "data": dict(data or {}),
    }


def events_of_job(session: Session, job_id: str, *, after: int, limit: int) -> Sequence[UntypedRow]:
    """Rows (id, at, job_id, attempt_id, kind, actor, reason, data) with larger ids than ``after``, oldest first."""
    return _page(session, Event.job_id == job_id, after, limit)


def events_of_projects(
    session: Session, project_ids: Sequence[str] | None, *, after: int, limit: int
) -> Sequence[UntypedRow]:
    """Like :func:`events_of_job`, for all jobs of these projects; ``None``: of the whole platform."""
    # One query per project would read an index each; with a plain list PostgreSQL chooses.
    where = Event.project_id.in_(project_ids) if project_ids is not None else Event.id > after
    return _page(session, where, after, limit)


def events_of_endpoint(
    session: Session, project_id: str, endpoint_id: str, *, before: int | None, limit: int
) -> Sequence[UntypedRow]:
    """Rows (id, at, kind, actor, reason, data) of an endpoint and its deployed models, newest first, with ids below
    ``before``.
    """
    wanted = select(Event.id, Event.at, Event.kind, Event.actor, Event.reason, Event.data).where(
        Event.project_id == project_id, Event.job_id.is_(None), Event.data["endpoint"].as_string() == endpoint_id
    )
    if before is not None:
        wanted = wanted.where(Event.id < before)
    return session.execute(wanted.order_by(Event.id.desc()).limit(limit)).all()


def last_event_of(session: Session, kinds: Sequence[str]) -> UntypedRow | None:
    """The newest event of the platform itself, of no project, that is of one of ``kinds``: ``kind`` and ``reason``."""
    query = select(Event.kind, Event.reason).where(Event.job_id.is_(None), Event.project_id.is_(None))
    return session.execute(query.where(Event.kind.in_(kinds)).order_by(Event.id.desc()).limit(1)).one_or_none()


def last_events_of_job(session: Session, job_id: str, *, limit: int) -> list[dict[str, Any]]:
    """The newest ``limit`` events, oldest first: ``at``, ``kind``, ``actor`` and ``reason`` of each."""
    columns = (Event.at, Event.kind, Event.actor, Event.reason)
    rows = session.execute(
        select(*columns).where(Event.job_id == job_id).order_by(Event.id.desc()).limit(limit)
    ).mappings()
    return [dict(row) for row in reversed(rows.all())]


def newest_event_id(session: Session) -> int:
    """The largest id of all, 0 without events."""
    return session.execute(select(func.max(Event.id))).scalar_one() or 0


def _page(session: Session, where: ColumnElement[bool], after: int, limit: int) -> Sequence[UntypedRow]:
    columns = (
        Event.id,
        Event.at,
        Event.job_id,
        Event.attempt_id,
        Event.kind,
        Event.actor,
        Event.reason,
        Event.data,
    )
    return session.execute(select(*columns).where(where, Event.id > after).order_by(Event.id).limit(limit)).all()
