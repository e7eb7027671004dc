"""Leases with fencing tokens: at most one holder writes, and a holder that was late writes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import or_, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from core.db.tables import Lease
from core.domain.errors import StaleWrite

TICK: Final = "tick"
# Who holds it is the beat that rings.
BEAT: Final = "beat"
# No lease but a mark: the time of the last tick that came to its end. A tick that fails each time renews its lease, too.
TICK_DONE: Final = "tick.done"


@dataclass(frozen=True, slots=True)
class HeldLease:
    name: str
    holder: str
    token: int


def acquire(session: Session, name: str, *, holder: str, now: datetime, ttl: timedelta) -> HeldLease | None:
    """The lease, or ``None`` while somebody else holds it. The holder itself gets it again, with the next token."""
    taken = session.execute(
        update(Lease)
        .where(Lease.name == name, or_(Lease.expires_at <= now, Lease.holder == holder))
        .values(holder=holder, token=Lease.token + 1, expires_at=now + ttl)
        .returning(Lease.token)
    ).scalar_one_or_none()
    if taken is not None:
        return HeldLease(name, holder, taken)
    if session.execute(select(Lease.name).where(Lease.name == name)).scalar_one_or_none() is not None:
        return None
    try:
        with session.begin_nested():
            session.add(Lease(name=name, holder=holder, token=1, expires_at=now + ttl))
    except IntegrityError:
        return None  # somebody else made it in the same moment
    return HeldLease(name, holder, 1)


def check(session: Session, lease: HeldLease) -> None:
    """Lock the lease's row for this transaction and compare the token: the fence in front of every write.

    Raises:
        StaleWrite: somebody else has taken the lease since.
    """
    # An update, not a select: it locks the row on PostgreSQL and takes the write lock on SQLite.
    hit = session.execute(
        update(Lease).where(Lease.name == lease.name, Lease.token == lease.token).values(holder=lease.holder)
    )
    if hit.rowcount != 1:  # type: ignore[attr-defined]
        raise StaleWrite(f"lease {lease.name} has been taken over")


def release(session: Session, lease: HeldLease, *, now: datetime) -> None:
    """Give it back early. Harmless when it is no longer ours."""
    session.execute(update(Lease).where(Lease.name == lease.name, Lease.token == lease.token).values(expires_at=now))


def mark(session: Session, name: str, *, holder: str, now: datetime) -> None:
    """Note in the row ``name`` that something was done ``now``; nobody holds it."""
    acquire(session, name, holder=holder, now=now, ttl=timedelta(0))


def marked_at(session: Session, name: str) -> datetime | None:
    """When ``mark`` was last called, ``None``: never."""
    return session.execute(select(Lease.expires_at).where(Lease.name == name)).scalar_one_or_none()
