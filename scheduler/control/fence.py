"""Transactions of the control loop: short, and written only by who holds the lease."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.orm import Session

from core.db import leases
from core.db.engine import unit_of_work
from core.db.leases import HeldLease
from core.domain.errors import StaleWrite
from scheduler.control.context import ControlContext


def acquire(control: ControlContext, name: str) -> HeldLease | None:
    """The lease, or ``None`` while another process holds it."""
    with unit_of_work(control.sessions) as session:
        return leases.acquire(session, name, holder=control.holder, now=control.clock(), ttl=control.lease_ttl)


def renew(control: ControlContext, lease: HeldLease) -> HeldLease:
    """The same lease for another full time.

    Raises:
        StaleWrite: somebody else has taken it since.
    """
    again = None
    with fenced(control, lease) as session:
        again = leases.acquire(session, lease.name, holder=control.holder, now=control.clock(), ttl=control.lease_ttl)
    if again is None:
        raise StaleWrite(f"lease {lease.name} has been taken over")
    return again


@contextmanager
def fenced(control: ControlContext, lease: HeldLease) -> Iterator[Session]:
    """A transaction that is rolled back when the lease is no longer ours."""
    with unit_of_work(control.sessions) as session:
        leases.check(session, lease)
        yield session


def release(control: ControlContext, lease: HeldLease) -> None:
    """Give it back, so that another process need not wait for it to expire."""
    with unit_of_work(control.sessions) as session:
        leases.release(session, lease, now=control.clock())
