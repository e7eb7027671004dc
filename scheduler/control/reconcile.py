"""Making one attempt real: rows against what the executor shows, until both agree.

Each round loads in a short transaction, works outside of any, and writes fenced. A round may die between any two
steps: the next one, here or in another process, sees the same truth and goes on.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Final

import structlog
from sqlalchemy import select

from core.bell import TOPIC_RECONCILE
from core.db import leases
from core.db.engine import unit_of_work
from core.db.leases import HeldLease
from core.db.repositories.events import last_events_of_job
from core.db.tables import Attempt
from core.domain.errors import (
    IllegalTransition,
    StaleWrite,
    Unavailable,
)
from core.domain.ids import AttemptId
from scheduler.control import fence
from scheduler.control.addresses import TakenAddresses
from scheduler.control.context import Control
from scheduler.control.leftovers import log_leftovers
from scheduler.control.look import Look, Memory, Verdict
from scheduler.control.round import Round
from scheduler.control.rows import AttemptRows, SpecCache, load_attempt

log = structlog.get_logger(__name__)

# A look needs a handful of rounds; one that finds more to do each time gives the others their turn.
_MAX_ROUNDS: Final = 12
_TOLD_EVENTS: Final = 20  # of a job whose move was illegal


class Reconciler:
    """Reconciles attempts; one per process, safe for many threads."""

    def __init__(self, control: Control) -> None:
        self.control = control
        self._specs = SpecCache()
        self._taken = TakenAddresses()
        self._memories: dict[AttemptId, Memory] = {}
        self._active: set[AttemptId] = set()
        self._asked_again: set[AttemptId] = set()
        self._lock = threading.Lock()

    def reconcile(self, attempt_id: AttemptId) -> Look:
        """Bring the attempt as far as it goes now. Harmless to repeat, and to call from two threads at once.

        Raises:
            Unavailable: the database is away.
        """
        if not self._enter(attempt_id):
            return Look(Verdict.BUSY)
        try:
            return self._look(attempt_id)
        except IllegalTransition as illegal:
            # A bug, and who looks for it needs to know what the job went through.
            illegal.history = self._history(attempt_id)
            raise
        finally:
            self._leave(attempt_id)

    def _history(self, attempt_id: AttemptId) -> tuple[dict[str, object], ...]:
        with unit_of_work(self.control.sessions, read_only=True) as session:
            job_id = session.execute(select(Attempt.job_id).where(Attempt.id == attempt_id)).scalar_one_or_none()
            return () if job_id is None else tuple(last_events_of_job(session, job_id, limit=_TOLD_EVENTS))

    def _enter(self, attempt_id: AttemptId) -> bool:
        with self._lock:
            if attempt_id in self._active:
                self._asked_again.add(attempt_id)
                return False
            self._active.add(attempt_id)
            return True

    def _leave(self, attempt_id: AttemptId) -> None:
        with self._lock:
            self._active.discard(attempt_id)
            is_asked = attempt_id in self._asked_again
            self._asked_again.discard(attempt_id)
        if is_asked:
            self.control.bell.ring(TOPIC_RECONCILE, attempt_id)

    def _look(self, attempt_id: AttemptId) -> Look:
        """Rounds under one lease, until there is nothing more to do now."""
        lease: HeldLease | None = None
        look = Look(Verdict.AGAIN)
        for _ in range(_MAX_ROUNDS):
            try:
                lease, rows = self._load(attempt_id, lease)
                if rows is None:
                    look = Look(Verdict.GONE)
                elif lease is None:
                    look = Look(Verdict.BUSY)
                else:
                    memory = self._memories.setdefault(attempt_id, Memory())
                    this = Round(self.control, lease, rows, memory, self._taken)
                    look = this.run()
                    lease = this.lease  # renewed, when the round took long
            except StaleWrite as stale:
                log.debug("attempt.stale", attempt=attempt_id, why=str(stale))
                lease = None  # somebody moved it meanwhile: look again, if we still may
                continue
            if look.verdict is not Verdict.AGAIN or look.next_look is not None:
                break
        if lease is not None:
            self._release(lease)
        if look.verdict is Verdict.GONE:
            self._memories.pop(attempt_id, None)
            log_leftovers(self.control.executor, attempt_id)  # of an end that another process has written meanwhile
        elif look.verdict is Verdict.AGAIN and look.next_look is None:
            return replace(look, next_look=self.control.clock())
        return look

    def _load(self, attempt_id: AttemptId, lease: HeldLease | None) -> tuple[HeldLease | None, AttemptRows | None]:
        control = self.control
        # With the lease in hand this only reads: what is written later is fenced anyway.
        with unit_of_work(control.sessions, read_only=lease is not None) as session:
            now = control.clock()
            rows = load_attempt(session, attempt_id, self._specs, now=now, node_grace=control.node_grace)
            if rows is not None and lease is None:
                name = f"attempt:{attempt_id}"
                lease = leases.acquire(session, name, holder=control.holder, now=now, ttl=control.lease_ttl)
        return lease, rows

    def _release(self, lease: HeldLease) -> None:
        try:
            fence.release(self.control, lease)
        except Unavailable:
            pass  # it expires by itself
