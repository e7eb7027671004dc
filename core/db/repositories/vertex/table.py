"""The administrators' mapping table for Vertex AI's clients: one row with optimistic locking by generation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from sqlalchemy import insert, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from core.db.tables import VertexTableRow
from core.domain.errors import StaleWrite

_NAME: Final = "vertex"
_STALE: Final = "the table has been changed since it was read"


@dataclass(frozen=True, slots=True)
class StoredVertexTable:
    """``generation`` 0: no table stored. ``entries``: as stored, in order."""

    entries: Sequence[Any] = ()
    generation: int = 0
    updated_at: datetime | None = None
    updated_by: str = ""


def read_vertex_table(session: Session) -> StoredVertexTable:
    row = session.get(VertexTableRow, _NAME)
    if row is None:
        return StoredVertexTable()
    entries: Any = row.entries
    return StoredVertexTable(
        entries if isinstance(entries, list) else (), row.generation, row.updated_at, row.updated_by
    )


def write_vertex_table(
    session: Session, entries: Sequence[Any], *, seen: int, by: str, now: datetime
) -> StoredVertexTable:
    """Replace the generation ``seen`` by ``entries``.

    Raises:
        StaleWrite: there is a newer generation.
    """
    values = {"entries": list(entries), "generation": seen + 1, "updated_at": now, "updated_by": by}
    if seen:
        is_seen = (VertexTableRow.name == _NAME) & (VertexTableRow.generation == seen)
        if session.execute(update(VertexTableRow).where(is_seen).values(**values)).rowcount != 1:  # type: ignore[attr-defined]
            raise StaleWrite(_STALE)
    else:
        try:
            with session.begin_nested():
                session.execute(insert(VertexTableRow).values(name=_NAME, **values))
        except IntegrityError as error:
            raise StaleWrite(_STALE) from error
    return StoredVertexTable(tuple(entries), seen + 1, now, by)
