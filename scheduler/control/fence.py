"""Leases and fenced transactions of the control loop: a write is rolled back unless its writer still holds the
lease.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.orm import Session

from core.db import leases
from core.db.engine import unit_of_work
from core.db.leases import HeldLease
from core.domain.errors import StaleWrite, Unavailable
from scheduler.control.context import ControlContext


def acquire(control: ControlContext, name: str) -> HeldLease | None:
    """The lease, or ``None`` while another process holds it."""
    with unit_of_work(control.sessions) as session:
        return leases.acquire(session, name, holder=control.holder, now=control.clock(), ttl=control.lease_ttl)


def renew(control: ControlContext, lease: HeldLease) -> HeldLease:
    """Extend the lease by its full time.

    Raises:
        StaleWrite: another process has acquired it since.
    """
    renewed = None
    with fenced(control, lease) as session:
        renewed = leases.acquire(session, lease.name, holder=control.holder, now=control.clock(), ttl=control.lease_ttl)
    if renewed is None:
        raise StaleWrite(f"lease {lease.name} has been taken over")
    return renewed


@contextmanager
def fenced(control: ControlContext, lease: HeldLease) -> Iterator[Session]:
    """A transaction that is rolled back when the lease is no longer held."""
    with unit_of_work(control.sessions) as session:
        leases.check(session, lease)
        yield session


def release(control: ControlContext, lease: HeldLease) -> None:
    """Give the lease back, so that another process need not wait for it to expire."""
    with unit_of_work(control.sessions) as session:
        leases.release(session, lease, now=control.clock())


class RenewedLease:
    """A held lease that long work renews in time. A renewed lease has another token; writes use the newest. For one
    thread.
    """

    def __init__(self, control: ControlContext, lease: HeldLease) -> None:
        self.control = control
        self.lease = lease
        self._renewed_at = control.clock()

    def renew(self) -> None:
        """Raises ``StaleWrite``: another process has acquired it since."""
        self.lease = renew(self.control, self.lease)
        self._renewed_at = self.control.clock()

    def renew_if_due(self) -> None:
        """Renew once a quarter of its time has passed. Raises ``StaleWrite`` like :meth:`renew`."""
        if self.control.clock() - self._renewed_at >= self.control.lease_ttl / 4:
            self.renew()

    @contextmanager
    def fenced(self) -> Iterator[Session]:
        """A transaction that is rolled back when the lease is no longer held."""
        with fenced(self.control, self.lease) as session:
            yield session

    @contextmanager
    def write(self) -> Iterator[Session]:
        """Like :meth:`fenced`, after :meth:`renew_if_due`."""
        self.renew_if_due()
        with self.fenced() as session:
            yield session

    def release(self) -> None:
        """Give it back; while the database is away it expires by itself."""
        try:
            release(self.control, self.lease)
        except Unavailable:
            pass
