"""Statements that are collected before they are sent: of one attempt, or of many in one transaction.

Whoever writes says what and compared with what; nobody waits for an answer in between. So the same statement of a hundred
attempts goes to the database at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy.orm import Session

from core.db.repositories.events import append_events
from core.domain.errors import StaleWrite


@dataclass(frozen=True, slots=True)
class _Line:
    """A statement with its parameters; ``None``: it has none. ``else_stale``: what has happened where it meets no row."""

    statement: Any
    row: Mapping[str, Any] | None
    else_stale: str

    @property
    def kind(self) -> tuple[Any, ...]:
        """Equal for lines that may be sent together."""
        return (id(self.statement), tuple(sorted(self.row or ())), bool(self.else_stale))


@dataclass(slots=True)
class Writes:
    """What one attempt's transaction writes, in order; its history comes last, in its own order."""

    lines: list[_Line] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)

    def add(self, statement: Any, row: Mapping[str, Any] | None = None, *, else_stale: str = "") -> None:
        """``statement`` for one row of a table. ``else_stale``: it must meet one, and this is told when it does not."""
        self.lines.append(_Line(statement, row, else_stale))


def flush(session: Session, all_writes: Sequence[Writes]) -> None:
    """Send everything: each one's lines in their order, and what is alike together.

    Raises:
        StaleWrite: a row is not any more as it was read. The caller rolls back.
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
        if first.else_stale and found.rowcount != len(group):
            raise StaleWrite(first.else_stale)
    if events := [event for writes in all_writes for event in writes.events]:
        append_events(session, events)
