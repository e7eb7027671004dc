"""Progress of simulated jobs (work done, work lost to preemptions, restart costs), and the run time estimates that a
simulation gives to the planner.

``unknown``: none. ``known``: the true remaining time. ``learnt``: the true time once a job has worked for a while (60
s by default), as its progress report would tell the platform; before that none. ``history``: what the platform learns
from jobs finished so far (:mod:`scheduler.planning.forecast.durations`), and nothing of the job itself.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from core.domain.jobs.speed_curve import SpeedPoint
from scheduler.planning.forecast.durations import DurationModel, JobTraits, PastRun, UnfinishedRun
from scheduler.planning.model import Estimate
from scheduler.simulator.reading.arrival import Arrival
from scheduler.simulator.work_rate import WorkRate

LEARNT_AFTER_S: Final = 60.0
_HISTORY_LIMIT: Final = 2000  # finished jobs that are remembered
_NEWER: Final = 0.05  # the history is read again once it has grown by this fraction, as production does now and then
_SOON_S: Final = 1e-6


@dataclass(slots=True)
class Progress:
    """Seconds of work; one second is what the job does in a second with its maximum of replicas.

    ``restart_left_s``: remaining time of its present restart. ``checkpoint_every_s``: ``None`` if a preempted job
    writes a checkpoint in its grace period and loses nothing.
    """

    arrival: Arrival
    checkpoint_every_s: float | None = None
    done_s: float = 0.0
    restart_left_s: float = 0.0
    attained_gpu_s: float = 0.0
    pace: WorkRate | None = None  # of its work; ``None``: not running
    replicas: int = 0  # of its elastic role
    rate: float = 0.0  # GPUs held; 1 for a gang without GPUs
    ran_s: float = 0.0  # working time of all attempts in seconds, without restarts
    allocated_s: float = 0.0  # time of holding resources in all attempts, in seconds
    now_s: float = 0.0
    lost_s: float = 0.0  # repeated work in total
    starts: int = 0
    measured: dict[int, SpeedPoint] = field(default_factory=dict)  # by replicas, as its reports would tell

    def advance(self, to_s: float) -> None:
        past_s = to_s - self.now_s
        self.now_s = to_s
        if self.pace is None or past_s <= 0:
            return
        self.allocated_s += past_s
        self.attained_gpu_s += past_s * self.rate
        paid_s = min(self.restart_left_s, past_s)
        self.restart_left_s -= paid_s
        self.ran_s += past_s - paid_s
        if past_s > paid_s:
            before_s = self.done_s
            self.done_s = min(self.arrival.duration_s, self.pace.after(before_s, past_s - paid_s))
            if self.replicas:
                self._measure(before_s, past_s - paid_s)

    def _measure(self, before_s: float, seconds: float) -> None:
        """Note the speed at this size; while a program starts it reports no steps."""
        profile = self.arrival.profile
        start_s = 0.0 if profile is None else profile.start_s
        if self.pace is None or self.done_s <= start_s:
            return
        if before_s < start_s:
            seconds -= self.pace.seconds(before_s, start_s)
            before_s = start_s
        # Scale-invariant steps, as AdaScale counts them: a step of one replica is always the same work.
        single = profile.rate(1, 1) if profile is not None else self.pace
        before = self.measured.get(self.replicas, SpeedPoint(self.replicas, 0.0, 0.0))
        work = single.seconds(before_s, self.done_s)
        self.measured = {**self.measured, self.replicas: before.with_work(work, seconds, self.now_s)}

    def start(self, at_s: float, *, pace: WorkRate, replicas: int, rate: float, cost_s: float) -> None:
        """Run from now on; a start after the first costs ``cost_s``."""
        self.advance(at_s)
        self.restart_left_s = cost_s if self.starts else 0.0
        self.starts += 1
        self.pace, self.replicas, self.rate = pace, replicas, rate

    def resize(self, at_s: float, *, pace: WorkRate, replicas: int, rate: float, cost_s: float) -> None:
        """Continue with more or fewer replicas."""
        self.advance(at_s)
        self.restart_left_s = max(self.restart_left_s, cost_s)
        self.pace, self.replicas, self.rate = pace, replicas, rate

    def stop(self, at_s: float) -> None:
        """Preempted: work since the last checkpoint is lost."""
        self.advance(at_s)
        lost_s = self.unsaved_s
        self.lost_s += lost_s
        self.done_s -= lost_s
        self.pace, self.replicas, self.rate = None, 0, 0.0

    @property
    def unsaved_s(self) -> float:
        """Work since the last checkpoint."""
        if not self.arrival.is_resumable:
            return self.done_s
        every_s = self.checkpoint_every_s
        return math.fmod(self.done_s, every_s) if every_s else 0.0

    @property
    def remaining_s(self) -> float:
        """Work that is left."""
        return self.arrival.duration_s - self.done_s

    @property
    def ends_s(self) -> float:
        """When it ends if nothing changes."""
        if self.pace is None or math.isinf(self.arrival.duration_s):
            return math.inf
        return self.now_s + self.restart_left_s + self.pace.seconds(self.done_s, self.arrival.duration_s)

    def ran_by_s(self, run_s: float) -> float:
        """When it will have worked for ``run_s`` seconds if nothing changes."""
        left_s = run_s - self.ran_s
        return self.now_s + self.restart_left_s + left_s if self.pace is not None and left_s > 0 else math.inf


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

    def ended(self, progress: Progress, at_s: float, *, is_cut_off: bool, others: Iterable[Progress] = ()) -> None:
        """Learn from a finished job. ``others``: the jobs that still run."""
        if self.knowledge is not Knowledge.HISTORY:
            return
        ended_at = self.start + timedelta(seconds=at_s)
        self._ended.append(PastRun(_traits(progress.arrival), progress.ran_s, ended_at, is_cut_off))
        self._fresh += 1
        if self._fresh >= 1 + _NEWER * len(self._ended):
            self._fresh = 0
            running = [UnfinishedRun(_traits(other.arrival), other.ran_s) for other in others if other.pace is not None]
            self._durations = DurationModel(self._ended, running)


def _traits(arrival: Arrival) -> JobTraits:
    return JobTraits(arrival.project, arrival.user, arrival.title or arrival.name, arrival.code, arrival.shape)
