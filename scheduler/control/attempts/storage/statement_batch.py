"""Statements that are collected before they are sent: of one attempt, or of many in one transaction.

A writer states what to write and what to compare with; it waits for no result in between. So the same statement of a
hundred attempts goes to the database at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, cast

from sqlalchemy import Table, bindparam, select
from sqlalchemy.orm import Session

from core.db.repositories.events import append_events
from core.db.tables import Attempt
from core.domain.errors import StaleWrite

_attempts: Final = cast("Table", Attempt.__table__)
_LOCK: Final = (
    select(_attempts.c.id)
    .where(_attempts.c.id.in_(bindparam("attempts", expanding=True)))
    .order_by(_attempts.c.id)
    .with_for_update()
)


@dataclass(frozen=True, slots=True)
class _Line:
    """A statement with its parameters, if any. ``stale_message``: what has happened where it matches no row."""

    statement: Any
    row: Mapping[str, Any] | None
    stale_message: str
    is_unbatched: bool

    @property
    def kind(self) -> tuple[Any, ...]:
        """Equal for statements that may be sent together."""
        alone = id(self) if self.is_unbatched else 0
        return (id(self.statement), tuple(sorted(self.row or ())), bool(self.stale_message), alone)


@dataclass(slots=True)
class StatementBatch:
    """The statements of one attempt's transaction, in order; its events come last, in their own order."""

    lines: list[_Line] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)

    def add(
        self,
        statement: Any,
        row: Mapping[str, Any] | None = None,
        *,
        stale_message: str = "",
        is_unbatched: bool = False,
    ) -> None:
        """Add ``statement`` for one row of a table.

        Args:
            stale_message: the statement must match a row; this is the error's message where it does not.
            is_unbatched: it is not sent with others of its kind, as one of its parameters is an expanding list.
        """
        self.lines.append(_Line(statement, row, stale_message, is_unbatched))


def lock_attempts(session: Session, attempt_ids: Iterable[str]) -> None:
    """Lock rows in the order of their ids before anything of attempts or their jobs is written, so that transactions on
    several attempts cannot deadlock. SQLite has one writer, and needs no lock.
    """
    if session.get_bind().dialect.name != "sqlite":
        session.connection().execute(_LOCK, {"attempts": sorted(attempt_ids)}).all()


def flush(session: Session, all_writes: Sequence[StatementBatch]) -> None:
    """Send all batches: the statements of each in their order, equal ones of several together.

    Raises:
        StaleWrite: a row has changed since it was read. The caller rolls back.
    """
    connection = session.connection()
    waiting = [iter(writes.lines) for writes in all_writes]
    heads = [next(lines, None) for lines in waiting]
    while first := next((head for head in heads if head is not None), None):
        kind, group = first.kind, []
        for number, lines in enumerate(waiting):
            head = heads[number]
            while head is not None and head.kind == kind:
                group.append(head)
                head = next(lines, None)
            heads[number] = head
        found = connection.execute(first.statement, None if first.row is None else [line.row or {} for line in group])
        if first.stale_message and found.rowcount != len(group):
            raise StaleWrite(first.stale_message)
    if events := [event for writes in all_writes for event in writes.events]:
        append_events(session, events)
