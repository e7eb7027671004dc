"""Leases and fenced transactions of the control loop: a write is rolled back unless its writer still holds the
lease.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import structlog
from sqlalchemy.orm import Session

from core.db import leases
from core.db.engine import unit_of_work
from core.db.leases import LeaseGrant
from core.domain.errors import StaleWrite, Unavailable
from scheduler.control.context import ControlContext

log = structlog.get_logger(__name__)


@contextmanager
def fenced(control: ControlContext, lease: LeaseGrant) -> Iterator[Session]:
    """A transaction that is rolled back when the lease is no longer held."""
    with unit_of_work(control.sessions) as session:
        leases.check(session, lease)
        yield session


class RenewedLease:
    """A held lease that long work renews in time. A renewed lease has another token; writes use the newest. For one
    thread.
    """

    def __init__(self, control: ControlContext, lease: LeaseGrant) -> None:
        self._control = control
        self._lease = lease
        self._renewed_at = control.clock()

    @property
    def token(self) -> int:
        return self._lease.token

    def renew(self) -> None:
        """Extend the lease by its full time. Raises ``StaleWrite``: another process has acquired it since."""
        control = self._control
        with self.fenced() as session:
            now = control.clock()
            renewed = leases.acquire(session, self._lease.name, holder=control.holder, now=now, ttl=control.lease_ttl)
        if renewed is None:
            raise StaleWrite(f"lease {self._lease.name} has been taken over")
        self._lease, self._renewed_at = renewed, now

    def renew_if_due(self) -> None:
        """Renew once a quarter of its time has passed. Raises ``StaleWrite`` like :meth:`renew`."""
        if self._control.clock() - self._renewed_at >= self._control.lease_ttl / 4:
            self.renew()

    def fenced(self) -> AbstractContextManager[Session]:
        """A transaction that is rolled back when the lease is no longer held."""
        return fenced(self._control, self._lease)

    @contextmanager
    def write(self) -> Iterator[Session]:
        """Like :meth:`fenced`, after :meth:`renew_if_due`."""
        self.renew_if_due()
        with self.fenced() as session:
            yield session

    def release(self, on_release: Callable[[Session], None]) -> None:
        """Give it back, so that another process need not wait for it to expire."""
        with unit_of_work(self._control.sessions) as session:
            leases.release(session, self._lease, now=self._control.clock())
            on_release(session)


def _nothing_more(_session: Session) -> None:
    """The release is the whole transaction."""


@contextmanager
def leased(
    control: ControlContext, name: str, *, on_release: Callable[[Session], None] = _nothing_more
) -> Iterator[RenewedLease | None]:
    """Hold the lease ``name`` for the block, which is given ``None`` while another process holds it.

    A block that raises ``StaleWrite``, because another process has acquired the lease since or has changed a row, ends
    there without an error. Its lease is not released, and neither is that of a block that fails: it expires, and this
    process gets it again at once.

    Args:
        on_release: called in the transaction that releases the lease.
    """
    with unit_of_work(control.sessions) as session:
        acquired = leases.acquire(session, name, holder=control.holder, now=control.clock(), ttl=control.lease_ttl)
    if acquired is None:
        yield None
        return
    lease = RenewedLease(control, acquired)
    try:
        yield lease
    except StaleWrite as stale:
        log.debug("lease.stale", lease=name, why=str(stale))
        return
    try:
        lease.release(on_release)
    except Unavailable:
        pass  # it expires by itself
