"""Run time estimates that a simulation gives to the planner.

``unknown``: none. ``known``: the true remaining time. ``learnt``: the true time once a job has worked for a while (60
s by default), as its progress report would tell the platform; before that none. ``history``: what the platform learns
from jobs finished so far (:mod:`scheduler.planning.forecast.durations`), and nothing of the job itself.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from scheduler.planning.forecast.durations import DurationModel, JobTraits, PastRun
from scheduler.planning.model import Estimate
from scheduler.simulator.progress import Progress
from scheduler.simulator.reading.arrival import Arrival

LEARNT_AFTER_S: Final = 60.0
_HISTORY_LIMIT: Final = 2000  # finished jobs that are remembered
_NEWER: Final = 0.05  # the history is read again once it has grown by this fraction, as production does now and then
_SOON_S: Final = 1e-6


class Knowledge(StrEnum):
    UNKNOWN = "unknown"
    KNOWN = "known"
    LEARNT = "learnt"
    HISTORY = "history"


@dataclass(slots=True)
class Estimator:
    """Estimates for one simulation. ``after_s``: working time after which a job's progress reveals its length."""

    knowledge: Knowledge
    after_s: float
    start: datetime
    _ended: deque[PastRun] = field(default_factory=lambda: deque(maxlen=_HISTORY_LIMIT))
    _fresh: int = 0
    _durations: DurationModel = field(default_factory=lambda: DurationModel(()))

    def of(self, progress: Progress) -> Estimate | None:
        """Remaining run time of the job with its maximum of replicas, as far as known now."""
        arrival = progress.arrival
        if self.knowledge is Knowledge.HISTORY:
            return self._durations.estimate(
                _traits(arrival), ran_s=progress.ran_s, max_run_time_s=arrival.max_run_time_s
            )
        is_known = self.knowledge is Knowledge.KNOWN or (
            self.knowledge is Knowledge.LEARNT and progress.ran_s >= self.after_s - _SOON_S
        )
        if not is_known or not math.isfinite(arrival.duration_s):
            return None
        left_s = progress.remaining_s + progress.restart_left_s
        return Estimate(left_s, left_s, left_s, "stated" if self.knowledge is Knowledge.KNOWN else "its own progress")

    def changes_s(self, progress: Progress) -> float:
        """When the estimate of a running job will change; infinity if never."""
        return progress.ran_by_s(self.after_s) if self.knowledge is Knowledge.LEARNT else math.inf

    def ended(self, progress: Progress, at_s: float, *, is_cut_off: bool) -> None:
        """Learn from a finished job."""
        if self.knowledge is not Knowledge.HISTORY:
            return
        ended_at = self.start + timedelta(seconds=at_s)
        self._ended.append(PastRun(_traits(progress.arrival), progress.ran_s, ended_at, is_cut_off))
        self._fresh += 1
        if self._fresh >= 1 + _NEWER * len(self._ended):
            self._fresh = 0
            self._durations = DurationModel(self._ended)


def _traits(arrival: Arrival) -> JobTraits:
    return JobTraits(arrival.project, arrival.user, arrival.title or arrival.name, arrival.code, arrival.shape)
