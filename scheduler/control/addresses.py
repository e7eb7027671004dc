"""Which addresses live attempts were given, where attempts share hosts."""

from __future__ import annotations

import threading
from typing import Final

from sqlalchemy import select
from sqlalchemy.orm import Session

from core.db.repositories.nodes import is_live
from core.db.tables import Attempt
from core.domain.layout import Layout

Address = tuple[str, int]  # host, port

_AT_ONCE: Final = 500


class TakenAddresses:
    """Reads each live attempt's layout once: it is written once and never changed. Safe for threads.

    A start asks twice, and with a thousand live attempts reading all their layouts anew would cost it a tenth of a
    second.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[str, frozenset[Address]] = {}

    def read(self, session: Session, *, except_attempt: str) -> set[Address]:
        """Every address that a live attempt but this one has, as of this transaction."""
        live = set(
            session.scalars(
                select(Attempt.id).where(is_live(), Attempt.layout.is_not(None), Attempt.id != except_attempt)
            )
        )
        with self._lock:
            known = {attempt: taken for attempt, taken in self._known.items() if attempt in live}
        new = sorted(live - known.keys())
        for begin in range(0, len(new), _AT_ONCE):
            rows = select(Attempt.id, Attempt.layout).where(Attempt.id.in_(new[begin : begin + _AT_ONCE]))
            for attempt, layout in session.execute(rows):
                known[attempt] = frozenset(addresses_of(Layout.from_json(layout or [])))
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
