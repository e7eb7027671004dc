"""Keeping studies going: one round after the other, under a fenced lease, until there is nothing more to do now."""

from __future__ import annotations

import threading
from typing import Final

import structlog

from core.db.engine import unit_of_work
from core.db.leases import HeldLease
from core.db.repositories.studies import live_studies
from core.domain.errors import StaleWrite, Unavailable
from core.wakeups import TOPIC_STUDY
from scheduler.control import fence
from scheduler.messaging.work_queue import InFlight
from scheduler.control.context import ControlContext
from scheduler.control.studies.facts import StudyFacts, load_study
from scheduler.control.studies.history import StudyHistory
from scheduler.control.studies.study_pass import StudyPass
from scheduler.tuning.proposers import Proposers

log = structlog.get_logger(__name__)

_MAX_ROUNDS: Final = 12
# Studies whose results are kept in memory.
_CACHED_HISTORIES: Final = 64
# Of one statement; no study is left out for there being many.
_PAGE: Final = 1000


class StudyLoop:
    """One per process, safe for many threads."""

    def __init__(self, control: ControlContext, proposers: Proposers | None = None) -> None:
        self._control = control
        self._proposers = proposers or Proposers()
        self._histories: dict[str, StudyHistory] = {}
        self._inflight: InFlight[str] = InFlight()
        self._lock = threading.Lock()

    def reconcile(self, study_id: str) -> None:
        """Bring the study as far as it goes now. Harmless to repeat, and to call from two threads at once.

        Raises:
            Unavailable: the database is away.
        """
        if not self._inflight.start(study_id):
            return
        try:
            self._run_passes(study_id)
        finally:
            if self._inflight.finish(study_id):
                self._control.wakeup.notify(TOPIC_STUDY, study_id)

    def notify_due(self) -> None:
        """Ring for every study that something may happen to: what a lost bell would have done."""
        with unit_of_work(self._control.sessions, read_only=True) as session:
            page = due = list(live_studies(session, limit=_PAGE))
            while len(page) == _PAGE:
                page = list(live_studies(session, after=page[-1], limit=_PAGE))
                due += page
        for study_id in due:
            self._control.wakeup.notify(TOPIC_STUDY, study_id)

    def close(self) -> None:
        self._proposers.close()

    def _run_passes(self, study_id: str) -> None:
        lease: HeldLease | None = None
        for _ in range(_MAX_ROUNDS):
            try:
                if lease is not None:
                    lease = fence.renew(self._control, lease)  # a round may take seconds
                lease, facts, history = self._load(study_id, lease)
                if lease is None or facts is None:
                    break
                this = StudyPass(self._control, lease, facts, history, self._proposers)
                goes_on = this.run()
                lease = this.lease
            except StaleWrite as stale:
                log.debug("study.stale", study=study_id, why=str(stale))
                lease = None  # somebody moved it meanwhile: look again, if we still may
                continue
            if not goes_on:
                break
        if lease is not None:
            try:
                fence.release(self._control, lease)
            except Unavailable:
                pass  # it expires by itself

    def _load(self, study_id: str, lease: HeldLease | None) -> tuple[HeldLease | None, StudyFacts | None, StudyHistory]:
        control = self._control
        history = self._history(study_id)
        # Taken before it is looked: what another process writes under it, such as memos, is seen whole. And reading a long
        # history holds up nobody who writes.
        lease = lease or fence.acquire(control, f"study:{study_id}")
        if lease is None:
            return None, None, history
        with unit_of_work(control.sessions, read_only=True) as session:
            return lease, load_study(session, study_id, control.clock(), history), history

    def _history(self, study_id: str) -> StudyHistory:
        with self._lock:
            found = self._histories.pop(study_id, None) or StudyHistory()
            self._histories[study_id] = found
            while len(self._histories) > _CACHED_HISTORIES:
                del self._histories[next(iter(self._histories))]
        return found
