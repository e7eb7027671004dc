"""Results of a study's trials in the form that proposals need, cached between passes. May be lost at any time."""

from __future__ import annotations

from bisect import bisect
from collections import Counter, deque
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy.orm import Session
from trainmaster.studies import Goal

from core.db.repositories import studies
from core.domain.studies.budget import BudgetUsage
from core.domain.studies.curves import Curve, Trace
from core.domain.studies.results import values_of
from core.domain.studies.states import TrialState
from scheduler.control.studies.follow import TraceFollower
from scheduler.tuning import ObservedTrial

# Above this number all trials are read: a statement takes a limited number of parameters.
_MAX_NAMED: Final = 500
# The newest reasons of failed trials.
_ERRORS: Final = 1_000


class StudyHistory:
    """An ended trial never changes, so only newly ended ones are read and counted."""

    def __init__(self) -> None:
        self.by_number: dict[int, ObservedTrial] = {}  # every trial with a result
        # The same sorted by number, in two lists: sorting ten thousand for each question takes longer than to answer
        # it. Not to be changed, and to be used before the next ``refresh``.
        self._numbers: list[int] = []
        self.results: list[ObservedTrial] = []
        # Trials up to this number that are not known to have ended.
        self._open: set[int] = set()
        self._trial_count = 0
        self._counts: Counter[TrialState] = Counter()
        self._errors: deque[str] = deque(maxlen=_ERRORS)
        self._gpu_s = 0.0
        self._failed_points: dict[int, Mapping[str, Any]] = {}
        self._traces: dict[int, Trace] = {}
        # Memos of ended trials that went on from another trial, by number.
        self.memos: dict[int, Mapping[str, Any]] = {}
        # Members of a population that ended for a replacement, with its possible parents, the best first.
        self.replaced_members: dict[int, tuple[int, ...]] = {}
        self._checked_at: datetime | None = None
        self.trace_follower = TraceFollower()

    def is_due(self, now: datetime, every: timedelta) -> bool:
        """Whether the curves were not checked for so long; if so, they count as checked now."""
        is_due = self._checked_at is None or now - self._checked_at >= every
        if is_due:
            self._checked_at = now
        return is_due

    def mark_due(self) -> None:
        """The curves could not be checked after all: they are due."""
        self._checked_at = None

    def traces(self, session: Session, study_id: str, goal: Goal, *, limit: int) -> list[Trace]:
        """Curves of the newest ended trials, at most ``limit``."""
        ended = sorted(self.by_number, reverse=True)[:limit]
        fresh = [number for number in ended if number not in self._traces]
        numbers = fresh if len(fresh) <= _MAX_NAMED else None
        for row in studies.curves_of(session, study_id, numbers=numbers, limit=limit) if fresh else ():
            points = row.curve
            is_over = row.state == TrialState.SUCCEEDED
            curve = Curve(row.number, tuple(points["steps"]), tuple(points["values"]), is_over)
            self._traces[row.number] = Trace.of(curve, goal)
        self._traces = {number: self._traces.get(number) or Trace(number, goal) for number in ended}
        return [trace for trace in self._traces.values() if trace]

    @property
    def failed_points(self) -> Sequence[Mapping[str, Any]]:
        """Points of trials without a result."""
        return list(self._failed_points.values())

    def spent(self, running: int, gpu_s: float, elapsed: timedelta) -> BudgetUsage:
        """What the study has spent. ``running``: number of running trials; ``gpu_s``: their GPU time up to now."""
        counts = {**self._counts, TrialState.RUNNING: running}
        return BudgetUsage(counts, elapsed, self._gpu_s + gpu_s, list(self._errors))

    def refresh(
        self, session: Session, study_id: str, metrics: Sequence[str], trial_count: int, running: Collection[int]
    ) -> None:
        """Read newly ended trials: those up to ``trial_count`` that are not ``running``."""
        self._open.update(range(self._trial_count + 1, trial_count + 1))
        self._trial_count = max(self._trial_count, trial_count)
        fresh = sorted(self._open.difference(running))
        if not fresh:
            return
        numbers = fresh if len(fresh) <= _MAX_NAMED else None
        for row in studies.ended_trials(session, study_id, numbers=numbers):
            if row.number not in self._open or row.number in running:
                continue  # it may have ended since the running ones were read: the next pass counts it
            self._open.discard(row.number)
            self._counts[TrialState(row.state)] += 1
            self._gpu_s += row.gpu_s
            if row.state == TrialState.FAILED:
                self._errors.append(row.reason)
            if row.memo.get("parent") is not None:
                self.memos[row.number] = row.memo
            if row.stop is not None and row.stop.get("parents"):
                self.replaced_members[row.number] = tuple(row.stop["parents"])
            # A failed trial's reports say nothing about its point, and no trial goes on from it.
            values = values_of(row.result, metrics) if TrialState(row.state).has_result else None
            if values is not None:
                self._know(row.number, ObservedTrial(row.parameters, values, row.memo))
            else:
                self._failed_points[row.number] = row.parameters

    def _know(self, number: int, result: ObservedTrial) -> None:
        self.by_number[number] = result
        place = bisect(self._numbers, number)
        self._numbers.insert(place, number)
        self.results.insert(place, result)
