"""Making one attempt real: rows against what the executor shows, until both agree.

Each round loads in a short transaction, works outside of any, and writes fenced. A round may die between any two
steps: the next one, here or in another process, sees the same truth and goes on. Many attempts are looked at side by side,
and share their transactions (``batch.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

import structlog
from sqlalchemy import select

from core.db.engine import unit_of_work
from core.db.repositories.events import last_events_of_job
from core.db.tables import Attempt
from core.domain.errors import IllegalTransition, StaleWrite, Unavailable
from core.domain.ids import AttemptId
from core.wakeups import TOPIC_RECONCILE
from scheduler.control.attempts.inflight import InFlight
from scheduler.control.attempts.launching.addresses import TakenAddresses
from scheduler.control.attempts.reconcile_pass import Round
from scheduler.control.attempts.reconcile_result import Look, Memory, Verdict
from scheduler.control.attempts.storage.attempt_loader import SpecCache
from scheduler.control.attempts.storage.effects import Busy, Load, Steps
from scheduler.control.attempts.storage.transaction_batcher import Batch, Outcome
from scheduler.control.attempts.unkilled_replicas import log_leftovers
from scheduler.control.context import Control

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
        self._in_hand: InFlight[AttemptId] = InFlight()

    def reconcile(self, attempt_id: AttemptId) -> Look:
        """Bring the attempt as far as it goes now. Harmless to repeat, and to call from two threads at once.

        Raises:
            Unavailable: the database is away.
        """
        outcome = self.reconcile_all([attempt_id])[attempt_id]
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def reconcile_all(
        self,
        attempt_ids: Iterable[AttemptId],
        on_end: Callable[[AttemptId, Outcome], None] = lambda _name, _outcome: None,
    ) -> dict[AttemptId, Outcome]:
        """The same of many, with a transaction for all where each would have had its own. What :meth:`reconcile` would have
        raised is the outcome of that one, and none of the others' business.

        Args:
            on_end: told of each as soon as it has its outcome, while slower ones go on; not of those that somebody else looks at.
        """
        asked = list(dict.fromkeys(attempt_ids))
        entered = [attempt_id for attempt_id in asked if self._in_hand.enter(attempt_id)]
        inside = set(entered)
        batch = Batch(self.control, self._specs, self._taken)

        def end(attempt_id: AttemptId, outcome: Outcome) -> None:
            for tell in (self._tell_more, on_end):
                try:
                    tell(attempt_id, outcome)
                except Exception as error:
                    if not isinstance(error, Unavailable):
                        log.exception("attempt.untold", attempt=attempt_id)
            inside.discard(attempt_id)
            self._leave(attempt_id)

        try:
            batch.run({attempt_id: self._look(attempt_id) for attempt_id in entered}, end)
        finally:
            for attempt_id in inside:
                self._leave(attempt_id)
        return {attempt_id: batch.outcomes.get(attempt_id, Look(Verdict.BUSY)) for attempt_id in asked}

    def _tell_more(self, attempt_id: AttemptId, outcome: Outcome) -> None:
        if isinstance(outcome, IllegalTransition):
            # A bug, and who looks for it needs to know what the job went through.
            outcome.history = self._history(attempt_id)
        elif isinstance(outcome, Look) and outcome.verdict is Verdict.GONE:
            # Of an end that another process has written meanwhile.
            log_leftovers(self.control.executor, attempt_id)

    def _history(self, attempt_id: AttemptId) -> tuple[dict[str, object], ...]:
        with unit_of_work(self.control.sessions, read_only=True) as session:
            job_id = session.execute(select(Attempt.job_id).where(Attempt.id == attempt_id)).scalar_one_or_none()
            return () if job_id is None else tuple(last_events_of_job(session, job_id, limit=_TOLD_EVENTS))

    def _leave(self, attempt_id: AttemptId) -> None:
        if self._in_hand.leave(attempt_id):
            self.control.bell.notify(TOPIC_RECONCILE, attempt_id)

    def _look(self, attempt_id: AttemptId) -> Steps[Look]:
        """Rounds under one lease, until there is nothing more to do now."""
        look = Look(Verdict.AGAIN)
        is_anew = True
        for _ in range(_MAX_ROUNDS):
            try:
                rows = yield Load(is_anew)
                is_anew = False
                if rows is None:
                    look = Look(Verdict.GONE)
                else:
                    memory = self._memories.setdefault(attempt_id, Memory())
                    look = yield from Round(self.control, rows, memory).run()
            except Busy:
                look = Look(Verdict.BUSY)
            except StaleWrite as stale:
                log.debug("attempt.stale", attempt=attempt_id, why=str(stale))
                is_anew = True  # somebody moved it meanwhile: look again, if we still may
                continue
            if look.verdict is not Verdict.AGAIN or look.next_look is not None:
                break
        if look.verdict is Verdict.GONE:
            self._memories.pop(attempt_id, None)
        elif look.verdict is Verdict.AGAIN and look.next_look is None:
            return replace(look, next_look=self.control.clock())
        return look
