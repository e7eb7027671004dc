"""What a simulation tells the planner about how long jobs will still run.

``unknown``: nothing. ``known``: the truth. ``learnt``: the truth once a job has worked for a while (60 s unless stated), as
its own progress, step of steps, tells it to the platform's runtime; before that nothing. ``history``: what the platform
learns from the jobs that have ended so far (:mod:`scheduler.planning.forecast.durations`), and nothing of the job itself.
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
_KEPT: Final = 2000  # jobs that history goes back
_NEWER: Final = 0.05  # history is read again once it has grown by this part, as production reads it now and then
_SOON_S: Final = 1e-6


class Knowledge(StrEnum):
    UNKNOWN = "unknown"
    KNOWN = "known"
    LEARNT = "learnt"
    HISTORY = "history"


@dataclass(slots=True)
class Estimator:
    """Answers for one simulation. ``after_s``: how long a job must have worked until its progress tells its length."""

    knowledge: Knowledge
    after_s: float
    start: datetime
    _ended: deque[PastRun] = field(default_factory=lambda: deque(maxlen=_KEPT))
    _fresh: int = 0
    _durations: DurationModel = field(default_factory=lambda: DurationModel(()))

    def of(self, progress: Progress) -> Estimate | None:
        """How much longer the job runs with all its replicas, as far as that is known now."""
        arrival = progress.arrival
        if self.knowledge is Knowledge.HISTORY:
            return self._durations.estimate(
                _traits(arrival), ran_s=progress.ran_s, max_run_time_s=arrival.max_run_time_s
            )
        is_told = self.knowledge is Knowledge.KNOWN or (
            self.knowledge is Knowledge.LEARNT and progress.ran_s >= self.after_s - _SOON_S
        )
        if not is_told or not math.isfinite(arrival.duration_s):
            return None
        left_s = progress.remaining_s + progress.restart_left_s
        return Estimate(left_s, left_s, left_s, "stated" if self.knowledge is Knowledge.KNOWN else "its own progress")

    def changes_s(self, progress: Progress) -> float:
        """When more will be known of a job that runs; infinity if never."""
        return progress.ran_by_s(self.after_s) if self.knowledge is Knowledge.LEARNT else math.inf

    def ended(self, progress: Progress, at_s: float, *, is_cut_off: bool) -> None:
        """A job has ended: what can be learnt of it."""
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
