"""Addresses allocated to live attempts, where attempts share hosts."""

from __future__ import annotations

import threading
from typing import Final

from sqlalchemy import select
from sqlalchemy.orm import Session

from core.db.repositories.nodes import is_live
from core.db.tables import Attempt
from core.domain.jobs.layout import Layout

Address = tuple[str, int]  # host, port

_AT_ONCE: Final = 500


class AddressCache:
    """Reads the layout of each live attempt once: it changes only with the number of its world. Thread-safe.

    A start asks twice, and with a thousand live attempts reading all layouts again would take a tenth of a second.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[tuple[str, int], frozenset[Address]] = {}  # (attempt, world) -> addresses

    def read(self, session: Session) -> set[Address]:
        """Every address of a live attempt, as of this transaction."""
        rows = select(Attempt.id, Attempt.world).where(is_live(), Attempt.layout.is_not(None))
        live = {(attempt, world) for attempt, world in session.execute(rows)}
        with self._lock:
            known = {attempt: taken for attempt, taken in self._known.items() if attempt in live}
        new = sorted(attempt for attempt, _ in live - known.keys())
        for begin in range(0, len(new), _AT_ONCE):
            chunk = new[begin : begin + _AT_ONCE]
            found = select(Attempt.id, Attempt.world, Attempt.layout).where(Attempt.id.in_(chunk))
            for attempt, world, layout in session.execute(found):
                known[attempt, world] = frozenset(addresses_of(Layout.from_json(layout or [])))
        with self._lock:
            self._known = known
        return set().union(*known.values())


def addresses_of(layout: Layout) -> set[Address]:
    """Every address of ``layout``."""
    return {
        (replica.host, port)
        for replica in layout.replicas
        for port in (replica.ports.framework, replica.ports.torch, replica.ports.dmlc, replica.ports.gloo)
    }
