"""Leases with fencing tokens: at most one holder writes, and a holder that was late writes nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, cast

from sqlalchemy import Table, bindparam, or_, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from core.db.tables import Lease
from core.domain.errors import StaleWrite

TICK: Final = "tick"
# Who holds it is the beat that rings.
BEAT: Final = "beat"
# No lease but a mark: the time of the last tick that came to its end. A tick that fails each time renews its lease, too.
TICK_DONE: Final = "tick.done"


# Built once: every look at an attempt begins and ends with them.
_leases: Final = cast("Table", Lease.__table__)
_CHANGE: Final = update(_leases).where(_leases.c.name == bindparam("is_name"), _leases.c.token == bindparam("is_token"))


def _acquire(insert: Callable[[Table], Any]) -> Any:
    """One statement for a lease that is there and for one that is not."""
    fresh = insert(_leases).values(
        name=bindparam("is_name"), holder=bindparam("new_holder"), token=1, expires_at=bindparam("new_end")
    )
    return fresh.on_conflict_do_update(
        index_elements=[_leases.c.name],
        set_={"holder": fresh.excluded.holder, "token": _leases.c.token + 1, "expires_at": fresh.excluded.expires_at},
        where=or_(_leases.c.expires_at <= bindparam("is_now"), _leases.c.holder == fresh.excluded.holder),
    ).returning(_leases.c.token)


_ACQUIRE: Final = {"postgresql": _acquire(postgresql.insert), "sqlite": _acquire(sqlite.insert)}


@dataclass(frozen=True, slots=True)
class HeldLease:
    name: str
    holder: str
    token: int


def acquire(session: Session, name: str, *, holder: str, now: datetime, ttl: timedelta) -> HeldLease | None:
    """The lease, or ``None`` while somebody else holds it. The holder itself gets it again, with the next token."""
    token = (
        session.connection()
        .execute(
            _ACQUIRE[session.get_bind().dialect.name],
            {"is_name": name, "new_holder": holder, "new_end": now + ttl, "is_now": now},
        )
        .scalar_one_or_none()
    )
    return None if token is None else HeldLease(name, holder, token)


def check(session: Session, lease: HeldLease) -> None:
    """Lock the lease's row for this transaction and compare the token: the fence in front of every write.

    Raises:
        StaleWrite: somebody else has taken the lease since.
    """
    # An update, not a select: it locks the row on PostgreSQL and takes the write lock on SQLite.
    mine = {"is_name": lease.name, "is_token": lease.token, "holder": lease.holder}
    if session.connection().execute(_CHANGE, mine).rowcount != 1:
        raise StaleWrite(f"lease {lease.name} has been taken over")


def release(session: Session, lease: HeldLease, *, now: datetime) -> None:
    """Give it back early. Harmless when it is no longer ours."""
    session.connection().execute(_CHANGE, {"is_name": lease.name, "is_token": lease.token, "expires_at": now})


def mark(session: Session, name: str, *, holder: str, now: datetime) -> None:
    """Note in the row ``name`` that something was done ``now``; nobody holds it."""
    acquire(session, name, holder=holder, now=now, ttl=timedelta(0))


def marked_at(session: Session, name: str) -> datetime | None:
    """When ``mark`` was last called, ``None``: never."""
    return session.execute(select(Lease.expires_at).where(Lease.name == name)).scalar_one_or_none()
