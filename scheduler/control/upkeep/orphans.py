"""Orphaned attempts in the engine, which the database does not know: of which database they are, and since when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

import structlog
from sqlalchemy import delete, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from core.db.engine import unit_of_work
from core.db.repositories.events import append_event
from core.db.tables import Orphan
from core.domain.ids import AttemptId
from scheduler.control.context import ControlContext
from scheduler.control.journal import SCHEDULER

log = structlog.get_logger(__name__)

# Attempts that this database created and does not know any more were lost to a restored backup: an administrator may
# still want to keep them.
UNKNOWN_PATIENCE: Final = timedelta(minutes=10)
FORGOTTEN: Final = "orphans.forgotten"
FOREIGN: Final = "orphans.foreign"
_NAMES_IN_EVENT: Final = 10
_BATCH: Final = 500  # written by one sweep; the next one is minutes away


def note_orphans(control: ControlContext, orphans: Mapping[AttemptId, str], database_id: str) -> frozenset[AttemptId]:
    """Update the table of orphans and report new ones; returns those whose patience is over, which may be removed.

    Another database's attempts are never among them: they are left alone.

    Args:
        orphans: attempt -> the database that the engine names; empty where it names none (a platform of a version that
            wrote no id, or a driver whose engine is not shared): such attempts count as this database's.
        database_id: this database's.
    """
    with unit_of_work(control.sessions, read_only=True) as session:
        known = {row.attempt_id: row for row in session.scalars(select(Orphan))}
    now = control.clock()
    gone = sorted(known.keys() - orphans.keys())
    fresh = sorted(orphans.keys() - known.keys())[:_BATCH]
    if gone or fresh:
        with unit_of_work(control.sessions) as session:
            for begin in range(0, len(gone), _BATCH):
                session.execute(delete(Orphan).where(Orphan.attempt_id.in_(gone[begin : begin + _BATCH])))
            foreign = {name: orphans[name] not in ("", database_id) for name in fresh}
            new = [
                n
                for n in fresh
                if _add(session, Orphan(attempt_id=n, database_id=orphans[n], is_foreign=foreign[n], found_at=now))
            ]
            _add_event(session, [name for name in new if not foreign[name]], (), now)
            others = [name for name in new if foreign[name]]
            _add_event(session, others, sorted({orphans[name] for name in others}), now)
    return frozenset(
        AttemptId(name)
        for name, row in known.items()
        if name in orphans and not row.is_foreign and now - row.found_at >= UNKNOWN_PATIENCE
    )


def _add(session: Session, orphan: Orphan) -> bool:
    """False when another scheduler wrote it at the same moment, and reports it."""
    try:
        with session.begin_nested():
            session.add(orphan)
    except IntegrityError:
        return False
    return True


def _add_event(session: Session, names: Sequence[str], databases: Sequence[str], now: datetime) -> None:
    """One event for ``names``: attempts that this database has forgotten, or that belong to other ``databases``."""
    if not names:
        return
    count = f"{len(names)} attempt{'s' if len(names) > 1 else ''}"
    if databases:
        kind = FOREIGN
        reason = (
            f"The executor holds {count} of another database ({', '.join(databases)}) under this platform's "
            "TRAINMASTER_INSTANCE. They are left alone and keep what they have: start the platform with their "
            "database, or remove them by their label trainmaster/database."
        )
    else:
        kind = FORGOTTEN
        reason = (
            f"The executor holds {count} that this database does not know any more, as after a backup was restored. "
            f"They are removed in {UNKNOWN_PATIENCE.total_seconds() / 60:.0f} minutes; stop the schedulers to keep "
            "them."
        )
    data = {"count": len(names), "attempts": list(names[:_NAMES_IN_EVENT]), "databases": list(databases)}
    append_event(session, at=now, kind=kind, actor=SCHEDULER, reason=reason, data=data)
    log.error(kind, **data)
