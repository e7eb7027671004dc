"""The reconcile loop of attempts: rows against the executor's observations, until both agree.

Each pass loads in a short transaction, works outside of any, and writes fenced. A pass may die between any two steps:
the next pass, here or in another process, sees the same truth and goes on. Many attempts are reconciled in parallel and
share their transactions (``storage/transaction_batcher.py``).
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
from core.work_queue import InFlight
from scheduler.control.attempts.launching.commands import log_unkilled
from scheduler.control.attempts.launching.replica_orders import AddressCache
from scheduler.control.attempts.reconcile_pass import ReconcilePass
from scheduler.control.attempts.reconcile_result import ReconcileOutcome, ReconcilerCache, ReconcileResult
from scheduler.control.attempts.storage.attempt_loader import SpecCache
from scheduler.control.attempts.storage.effects import Effects, LeaseTaken, LoadAttempt
from scheduler.control.attempts.storage.transaction_batcher import ResultOrError, TransactionBatcher
from scheduler.control.context import ControlContext

log = structlog.get_logger(__name__)

# A reconcile needs a handful of passes; an attempt that needs more gives other attempts their turn.
_MAX_PASSES: Final = 12
_HISTORY_EVENTS: Final = 20  # of a job whose transition was illegal


class Reconciler:
    """Reconciles attempts; one per process, thread-safe."""

    def __init__(self, control: ControlContext) -> None:
        self.control = control
        self._specs = SpecCache()
        self._taken = AddressCache()
        self._caches: dict[AttemptId, ReconcilerCache] = {}
        self._inflight: InFlight[AttemptId] = InFlight()

    def reconcile(self, attempt_id: AttemptId) -> ReconcileResult:
        """Bring the attempt as far as it goes now. Harmless to repeat, and to call from two threads at once.

        Raises:
            Unavailable: the database is away.
        """
        result = self.reconcile_all([attempt_id])[attempt_id]
        if isinstance(result, Exception):
            raise result
        return result

    def reconcile_all(
        self,
        attempt_ids: Iterable[AttemptId],
        on_end: Callable[[AttemptId, ResultOrError], None] = lambda _name, _outcome: None,
    ) -> dict[AttemptId, ResultOrError]:
        """Like :meth:`reconcile` for many attempts, with shared transactions. An exception is the result of its own
        attempt and does not affect the others.

        Args:
            on_end: called with each attempt as soon as it has its result, while slower ones go on; not for
                attempts that another thread reconciles.
        """
        requested = list(dict.fromkeys(attempt_ids))
        entered = [attempt_id for attempt_id in requested if self._inflight.start(attempt_id)]
        inside = set(entered)
        batch = TransactionBatcher(self.control, self._specs, self._taken)

        def end(attempt_id: AttemptId, result: ResultOrError) -> None:
            for callback in (self._add_details, on_end):
                try:
                    callback(attempt_id, result)
                except Exception as error:
                    if not isinstance(error, Unavailable):
                        log.exception("attempt.callback_failed", attempt=attempt_id)
            inside.discard(attempt_id)
            self._leave(attempt_id)

        try:
            batch.run({attempt_id: self._reconcile(attempt_id) for attempt_id in entered}, end)
        finally:
            for attempt_id in inside:
                self._leave(attempt_id)
        return {
            attempt_id: batch.outcomes.get(attempt_id, ReconcileResult(ReconcileOutcome.BUSY))
            for attempt_id in requested
        }

    def _add_details(self, attempt_id: AttemptId, result: ResultOrError) -> None:
        if isinstance(result, IllegalTransition):
            # A bug: its analysis needs the job's history.
            result.history = self._history(attempt_id)
        elif isinstance(result, ReconcileResult) and result.outcome is ReconcileOutcome.ENDED:
            # The end was written by another process meanwhile.
            log_unkilled(self.control.executor, attempt_id)

    def _history(self, attempt_id: AttemptId) -> tuple[dict[str, object], ...]:
        with unit_of_work(self.control.sessions, read_only=True) as session:
            job_id = session.execute(select(Attempt.job_id).where(Attempt.id == attempt_id)).scalar_one_or_none()
            return () if job_id is None else tuple(last_events_of_job(session, job_id, limit=_HISTORY_EVENTS))

    def _leave(self, attempt_id: AttemptId) -> None:
        if self._inflight.finish(attempt_id):
            self.control.wakeup.notify(TOPIC_RECONCILE, attempt_id)

    def _reconcile(self, attempt_id: AttemptId) -> Effects[ReconcileResult]:
        """Passes under one lease, until there is nothing more to do now."""
        result = ReconcileResult(ReconcileOutcome.REQUEUE)
        acquires_lease = True
        for _ in range(_MAX_PASSES):
            try:
                rows = yield LoadAttempt(acquires_lease)
                acquires_lease = False
                if rows is None:
                    result = ReconcileResult(ReconcileOutcome.ENDED)
                else:
                    cache = self._caches.setdefault(attempt_id, ReconcilerCache())
                    result = yield from ReconcilePass(self.control, rows, cache).run()
            except LeaseTaken:
                result = ReconcileResult(ReconcileOutcome.BUSY)
            except StaleWrite as stale:
                log.debug("attempt.stale", attempt=attempt_id, why=str(stale))
                acquires_lease = True  # another process has moved it: load again, if the lease can be acquired
                continue
            if result.outcome is not ReconcileOutcome.REQUEUE or result.recheck_at is not None:
                break
        if result.outcome is ReconcileOutcome.ENDED:
            self._caches.pop(attempt_id, None)
        elif result.outcome is ReconcileOutcome.REQUEUE and result.recheck_at is None:
            return replace(result, recheck_at=self.control.clock())
        return result
