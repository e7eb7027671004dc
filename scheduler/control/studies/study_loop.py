"""Reconciling studies: passes under the study's lease, until there is nothing more to do now."""

from __future__ import annotations

import threading
from typing import Final

from core.db.engine import unit_of_work
from core.db.repositories.studies import live_studies
from core.wakeups import TOPIC_STUDY
from scheduler.control.context import ControlContext
from scheduler.control.fence import RenewedLease
from scheduler.control.leased_loop import LeasedLoop
from scheduler.control.studies.facts import load_study
from scheduler.control.studies.history import StudyHistory
from scheduler.control.studies.study_pass import StudyPass
from scheduler.tuning.proposers import Proposers

_MAX_PASSES: Final = 12
# Studies whose results are cached.
_CACHED_HISTORIES: Final = 64
# Rows of one query; no study is left out, however many there are.
_PAGE: Final = 1000


class StudyLoop:
    """One per process, thread-safe."""

    def __init__(self, control: ControlContext, proposers: Proposers | None = None) -> None:
        self._control = control
        self._proposers = proposers or Proposers()
        self._histories: dict[str, StudyHistory] = {}
        self._loop = LeasedLoop(control, kind="study", topic=TOPIC_STUDY, max_passes=_MAX_PASSES)
        self._lock = threading.Lock()

    def reconcile(self, study_id: str) -> None:
        """Bring the study as far as it goes now. Harmless to repeat, and to call from two threads at once.

        Raises:
            Unavailable: the database is away.
        """

        def run_pass(lease: RenewedLease) -> bool:
            history = self._history(study_id)
            with unit_of_work(self._control.sessions, read_only=True) as session:
                facts = load_study(session, study_id, self._control.clock(), history)
            return facts is not None and StudyPass(self._control, lease, facts, history, self._proposers).run()

        self._loop.reconcile(study_id, run_pass)

    def notify_due(self) -> None:
        """Wake up every study that may have something to do, in case its wake-up was lost."""
        with unit_of_work(self._control.sessions, read_only=True) as session:
            page = due = list(live_studies(session, limit=_PAGE))
            while len(page) == _PAGE:
                page = list(live_studies(session, after=page[-1], limit=_PAGE))
                due += page
        for study_id in due:
            self._control.wakeup.notify(TOPIC_STUDY, study_id)

    def close(self) -> None:
        self._proposers.close()

    def _history(self, study_id: str) -> StudyHistory:
        with self._lock:
            found = self._histories.pop(study_id, None) or StudyHistory()
            self._histories[study_id] = found
            while len(self._histories) > _CACHED_HISTORIES:
                del self._histories[next(iter(self._histories))]
        return found
