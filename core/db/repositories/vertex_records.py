"""Records of Vertex AI's clients in collections, the links between them, and the administrators' mapping table."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal

from sqlalchemy import delete, func, insert, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from core.db.engine import UntypedRow, UntypedSelect, insert_into
from core.db.repositories.metrics.writes import delete_metrics
from core.db.tables import Project, VertexLink, VertexRecord, VertexTableRow
from core.domain.errors import Conflict, StaleWrite
from core.ids import new_id

LinkKind = Literal["child", "member", "input", "output"]
_AT_ONCE: Final = 500  # ids in one statement
_TABLE: Final = "vertex"
_STALE: Final = "the table has been changed since it was read"


@dataclass(frozen=True, slots=True)
class RecordScope:
    """The scope of records. ``location``: one of Google's regions, as the client named it."""

    project_id: str
    location: str


class RecordExists(Conflict):
    """The collection has a record of this name."""


def find_record(session: Session, place: RecordScope, path: str, *, locks: bool = False) -> VertexRecord | None:
    """The record at ``path``, which is its collection and its name. ``locks``: no other transaction changes it
    meanwhile.
    """
    collection, _, name = path.rpartition("/")
    query = records_in(place, collection).where(VertexRecord.name == name)
    if locks:
        query = query.with_for_update().execution_options(populate_existing=True)
    found: VertexRecord | None = session.scalars(query).one_or_none()
    return found


def find_records(session: Session, place: RecordScope, paths: Iterable[str]) -> dict[str, VertexRecord]:
    """By path; missing ones are left out."""
    wanted: defaultdict[str, list[str]] = defaultdict(list)
    for path in paths:
        collection, _, name = path.rpartition("/")
        wanted[collection].append(name)
    found = {}
    for collection, names in wanted.items():
        for start in range(0, len(names), _AT_ONCE):
            query = records_in(place, collection).where(VertexRecord.name.in_(names[start : start + _AT_ONCE]))
            found.update({f"{collection}/{row.name}": row for row in session.scalars(query)})
    return found


def records_in(place: RecordScope, collection: str) -> UntypedSelect:
    """A query for all records of a collection."""
    return select(VertexRecord).where(
        VertexRecord.project_id == place.project_id,
        VertexRecord.location == place.location,
        VertexRecord.collection == collection,
    )


def count_records(session: Session, place: RecordScope, collection: str) -> int:
    query = select(func.count()).where(
        VertexRecord.project_id == place.project_id,
        VertexRecord.location == place.location,
        VertexRecord.collection == collection,
    )
    return session.execute(query).scalar_one()


def add_record(session: Session, place: RecordScope, path: str, now: datetime, **values: Any) -> VertexRecord:
    """Raises ``NameTaken``."""
    collection, _, name = path.rpartition("/")
    row = VertexRecord(
        id=new_id("record"),
        project_id=place.project_id,
        location=place.location,
        collection=collection,
        name=name,
        generation=1,
        created_at=now,
        updated_at=now,
        **values,
    )
    try:
        with session.begin_nested():
            session.add(row)
    except IntegrityError as error:
        if find_record(session, place, path) is None:
            raise
        raise RecordExists(f"{path} exists already.") from error
    return row


def remove_record(session: Session, record: VertexRecord) -> None:
    """Delete the record with everything below it, including the points of its runs.

    The path prefix is compared byte by byte: LIKE ignores case on SQLite, and would delete the children of a record
    whose name differs in case alone.
    """
    start = f"{record.collection}/{record.name}/"
    query = select(VertexRecord.id).where(
        VertexRecord.project_id == record.project_id,
        VertexRecord.location == record.location,
        func.substr(VertexRecord.collection, 1, len(start)) == start,
    )
    _remove(session, [*session.scalars(query), record.id])


def delete_records(session: Session, limit: int) -> int:
    """Delete at most ``limit`` records of deleted projects; returns their number."""
    query = (
        select(VertexRecord.id)
        .join(Project, Project.id == VertexRecord.project_id)
        .where(Project.deleted_at.is_not(None))
        .limit(limit)
    )
    ids = session.scalars(query).all()
    _remove(session, ids)
    return len(ids)


def _remove(session: Session, ids: Sequence[str]) -> None:
    for start in range(0, len(ids), _AT_ONCE):
        part = ids[start : start + _AT_ONCE]
        delete_metrics(session, part)
        session.execute(delete(VertexRecord).where(VertexRecord.id.in_(part)))  # links follow by their keys


def link(session: Session, above: VertexRecord, below: VertexRecord, kind: LinkKind, now: datetime) -> None:
    """Idempotent."""
    row = {"parent_id": above.id, "child_id": below.id, "kind": kind, "created_at": now}
    session.execute(insert_into(session, VertexLink).values(**row).on_conflict_do_nothing())


def unlink(session: Session, above: VertexRecord, below_ids: Sequence[str], kind: LinkKind) -> None:
    session.execute(
        delete(VertexLink).where(
            VertexLink.parent_id == above.id, VertexLink.child_id.in_(below_ids), VertexLink.kind == kind
        )
    )


def above(session: Session, records: Sequence[VertexRecord], kind: LinkKind) -> dict[str, list[VertexRecord]]:
    """By record id: the records it belongs to, in order of linking."""
    return _linked(session, records, kind, VertexLink.child_id, VertexLink.parent_id)


def members_of(session: Session, context: VertexRecord, limit: int) -> list[VertexRecord]:
    """The artifacts and executions in a context, at most ``limit``, in order of linking."""
    query = (
        select(VertexRecord)
        .join(VertexLink, VertexLink.child_id == VertexRecord.id)
        .where(VertexLink.parent_id == context.id, VertexLink.kind == "member")
        .order_by(VertexLink.created_at, VertexRecord.id)
        .limit(limit)
    )
    return list(session.scalars(query))


def events_of(session: Session, execution_ids: Sequence[str], limit: int) -> list[UntypedRow]:
    """(parent_id, child_id, kind, created_at) of inputs and outputs of executions, at most ``limit``, in order of
    linking.
    """
    found: list[UntypedRow] = []
    for start in range(0, len(execution_ids), _AT_ONCE):
        query = (
            select(VertexLink.parent_id, VertexLink.child_id, VertexLink.kind, VertexLink.created_at)
            .where(
                VertexLink.parent_id.in_(execution_ids[start : start + _AT_ONCE]),
                VertexLink.kind.in_(("input", "output")),
            )
            .order_by(VertexLink.created_at, VertexLink.child_id)
            .limit(limit - len(found))
        )
        found += session.execute(query).all()
        if len(found) >= limit:
            break
    return found


def records_of(session: Session, ids: Sequence[str]) -> dict[str, VertexRecord]:
    """Records by their ids."""
    found: dict[str, VertexRecord] = {}
    for start in range(0, len(ids), _AT_ONCE):
        query = select(VertexRecord).where(VertexRecord.id.in_(ids[start : start + _AT_ONCE]))
        found.update({row.id: row for row in session.scalars(query)})
    return found


def below(session: Session, records: Sequence[VertexRecord], kind: LinkKind) -> dict[str, list[VertexRecord]]:
    """By record id: the records that belong to it, in order of linking."""
    return _linked(session, records, kind, VertexLink.parent_id, VertexLink.child_id)


def _linked(
    session: Session, records: Sequence[VertexRecord], kind: LinkKind, own: Any, other: Any
) -> dict[str, list[VertexRecord]]:
    found: dict[str, list[VertexRecord]] = {record.id: [] for record in records}
    ids = list(found)
    for start in range(0, len(ids), _AT_ONCE):
        query = (
            select(own, VertexRecord)
            .join(VertexRecord, VertexRecord.id == other)
            .where(own.in_(ids[start : start + _AT_ONCE]), VertexLink.kind == kind)
            .order_by(VertexLink.created_at, VertexRecord.id)
        )
        for record_id, row in session.execute(query):
            found[record_id].append(row)
    return found


@dataclass(frozen=True, slots=True)
class StoredVertexTable:
    """``generation`` 0: no table stored. ``entries``: as stored, in order."""

    entries: Sequence[Any] = ()
    generation: int = 0
    updated_at: datetime | None = None
    updated_by: str = ""


def read_vertex_table(session: Session) -> StoredVertexTable:
    row = session.get(VertexTableRow, _TABLE)
    if row is None:
        return StoredVertexTable()
    entries: Any = row.entries
    return StoredVertexTable(
        entries if isinstance(entries, list) else (), row.generation, row.updated_at, row.updated_by
    )


def write_vertex_table(
    session: Session, entries: Sequence[Any], *, generation: int, by: str, now: datetime
) -> StoredVertexTable:
    """Replace this generation by ``entries`` (optimistic locking).

    Raises:
        StaleWrite: there is a newer generation.
    """
    values = {"entries": list(entries), "generation": generation + 1, "updated_at": now, "updated_by": by}
    if generation:
        is_unchanged = (VertexTableRow.name == _TABLE) & (VertexTableRow.generation == generation)
        result = session.execute(update(VertexTableRow).where(is_unchanged).values(**values))
        if result.rowcount != 1:  # type: ignore[attr-defined]
            raise StaleWrite(_STALE)
    else:
        try:
            with session.begin_nested():
                session.execute(insert(VertexTableRow).values(name=_TABLE, **values))
        except IntegrityError as error:
            raise StaleWrite(_STALE) from error
    return StoredVertexTable(tuple(entries), generation + 1, now, by)
