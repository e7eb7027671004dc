"""What the executor holds and the database does not know: whose it is, since when, and that somebody hears of it."""

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

# What this database made and does not know any more was lost to a restored backup: somebody may still stop us.
UNKNOWN_PATIENCE: Final = timedelta(minutes=10)
FORGOTTEN: Final = "strangers.forgotten"
FOREIGN: Final = "strangers.foreign"
_TOLD: Final = 10  # names in one event
_BATCH: Final = 500  # written down by one sweep; the next one is minutes away


def note_orphans(control: ControlContext, orphans: Mapping[AttemptId, str], database_id: str) -> frozenset[AttemptId]:
    """Keep the table of strangers true and tell of new ones; those whose patience is over, which may be removed.

    Another database's are never among them: they are left alone for whoever may still need them.

    Args:
        strangers: attempt -> the database that the engine says it is of; empty where it does not say (a platform of a
            version that wrote no id, or a driver whose engine nobody shares): such count as this one's.
        database_id: this one's.
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
            told = [
                n
                for n in fresh
                if _add(session, Orphan(attempt_id=n, database_id=orphans[n], is_foreign=foreign[n], found_at=now))
            ]
            _add_event(session, [name for name in told if not foreign[name]], (), now)
            others = [name for name in told if foreign[name]]
            _add_event(session, others, sorted({orphans[name] for name in others}), now)
    return frozenset(
        AttemptId(name)
        for name, row in known.items()
        if name in orphans and not row.is_foreign and now - row.found_at >= UNKNOWN_PATIENCE
    )


def _add(session: Session, orphan: Orphan) -> bool:
    """False when another scheduler wrote it down in the same moment, and tells of it."""
    try:
        with session.begin_nested():
            session.add(orphan)
    except IntegrityError:
        return False
    return True


def _add_event(session: Session, names: Sequence[str], databases: Sequence[str], now: datetime) -> None:
    """One event for ``names``: what this database has forgotten, or what is of other ``databases``."""
    if not names:
        return
    count = f"{len(names)} attempt{'s' if len(names) > 1 else ''}"
    if databases:
        kind = FOREIGN
        reason = (
            f"The executor holds {count} of another database ({', '.join(databases)}) under this platform's "
            "TRAINMASTER_INSTANCE. They are left alone and keep what they have: start the platform with their database, "
            "or remove them by their label trainmaster/database."
        )
    else:
        kind = FORGOTTEN
        reason = (
            f"The executor holds {count} that this database does not know any more, as after a backup was restored. They "
            f"are removed in {UNKNOWN_PATIENCE.total_seconds() / 60:.0f} minutes; stop the schedulers to keep them."
        )
    data = {"count": len(names), "attempts": list(names[:_TOLD]), "databases": list(databases)}
    append_event(session, at=now, kind=kind, actor=SCHEDULER, reason=reason, data=data)
    log.error(kind, **data)
