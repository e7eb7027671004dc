"""How long jobs will still run: from the progress that they report, else from jobs that have ended."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from math import floor, isfinite, log
from typing import Final

from sqlalchemy import and_, exists, func, not_, or_, select
from sqlalchemy.orm import Session

from core.db.repositories.nodes import is_live
from core.db.tables import Attempt, Checkpoint, Job, Project, Replica, User
from core.domain.jobs.name_patterns import pattern_of
from core.domain.jobs.progress_rate import progress_view
from core.domain.jobs.states import AttemptState, JobState
from core.domain.serving.jobs import ENDPOINT_LABEL
from scheduler.planning.forecast.durations import (
    DurationModel,
    JobTraits,
    PastRun,
    UnfinishedRun,
    capped,
    estimate_from_progress,
)
from scheduler.planning.model import Estimate
from scheduler.planning.queue.policy_key import RUN_TIME_BUCKETS, run_time_bucket

# The newest ended jobs; more would hardly change an estimate.
_HISTORY: Final = 5000
_LEARN_AGAIN: Final = timedelta(minutes=1)
_LOOK_AGAIN: Final = timedelta(seconds=15)
_LONG_AGO: Final = datetime.min.replace(tzinfo=UTC)
_ENDED: Final = (JobState.SUCCEEDED.value, JobState.FAILED.value, JobState.CANCELLED.value, JobState.EXPIRED.value)
# A job that failed within this time never came to its work, and its run time is no sample.
_LEAST_S: Final = 1.0
# A replica of an endpoint runs until it is not wanted any more: run times of earlier ones are no samples for any job.
_IS_ENDLESS: Final = and_(
    func.coalesce(Job.spec["contract"].as_string(), "") == "serving",
    Job.spec["labels"][ENDPOINT_LABEL].as_string().is_not(None),
)
IS_ENDLESS: Final = _IS_ENDLESS.label("is_endless")
HAS_CHECKPOINTS: Final = exists().where(Checkpoint.job_id == Job.id).label("has_checkpoints")
# Run times of running jobs are rounded down to a power of this, so that new ones are learnt rarely.
_COARSE: Final = 1.25
# A job that lasts thirty years or more has no end worth waiting for.
ENDLESS_S: Final = 1e9


@dataclass(slots=True)
class Estimates:
    """What one process has learnt. For one thread.

    Attributes:
        version: grows with each new sample. finished_run_times: as of a snapshot.
    """

    version: int = 0
    finished_run_times: tuple[int, ...] = ()
    durations: DurationModel = field(default_factory=lambda: DurationModel(()))
    _unfinished: tuple[UnfinishedRun, ...] = ()
    _history: deque[PastRun] = field(default_factory=lambda: deque(maxlen=_HISTORY))
    _had_checkpoints: deque[bool] = field(default_factory=lambda: deque(maxlen=_HISTORY))  # of the same jobs
    _resumable: dict[tuple[str, str, str], bool] = field(default_factory=dict)  # the last by project, user, name
    _newest: tuple[datetime, str] = (_LONG_AGO, "")
    _learnt_at: datetime = _LONG_AGO
    _looked_at: datetime = _LONG_AGO
    _progress: dict[str, Mapping[str, object]] = field(default_factory=dict)

    def refresh(self, session: Session, now: datetime) -> None:
        """Learn from the jobs that have ended since, and read the progress of running jobs, unless done lately."""
        if now - self._learnt_at >= _LEARN_AGAIN:
            self._learnt_at = now
            fresh = self._read_history(session)
            unfinished = _read_unfinished(session, now)
            if fresh or (self.version and unfinished != self._unfinished):
                self._remember(fresh)
                self._unfinished = unfinished
                self.durations = DurationModel(self._history, unfinished)
                self.version += 1
        if now - self._looked_at >= _LOOK_AGAIN:
            self._looked_at = now
            self._progress = _read_progress(session)

    def _remember(self, fresh: Sequence[tuple[PastRun, bool]]) -> None:
        self._history.extend(past for past, _ in fresh)
        self._had_checkpoints.extend(had for _, had in fresh)
        counts = [0] * (len(RUN_TIME_BUCKETS) + 1)
        for past in self._history:
            counts[run_time_bucket(past.ran_s)] += 1
        self.finished_run_times = tuple(counts)
        self._resumable = {
            _namesakes(past.traits): had for past, had in zip(self._history, self._had_checkpoints, strict=True)
        }

    def is_resumable(self, traits: JobTraits) -> bool:
        """Whether the user's last ended job of that name in the project had checkpoints; so this one will, too."""
        return self._resumable.get(_namesakes(traits), False)

    def of_running(
        self, attempt_id: str, traits: JobTraits, ran_s: float, max_run_time_s: float | None, now: datetime
    ) -> Estimate | None:
        """Of a running job. ``ran_s``: run time of all its attempts."""
        progress = self._progress.get(attempt_id)
        if progress is not None:
            own = finite(estimate_from_progress(progress, now))
            if own is not None:
                return own
        return self.of_waiting(traits, ran_s, max_run_time_s)

    def of_waiting(self, traits: JobTraits, ran_s: float, max_run_time_s: float | None) -> Estimate | None:
        """Remaining run time of a waiting job once it runs; ``None`` until any job has ended."""
        if not self.version:
            return None
        return finite(self.durations.estimate(traits, ran_s=ran_s, max_run_time_s=max_run_time_s))

    def _read_history(self, session: Session) -> list[tuple[PastRun, bool]]:
        """With whether each job had checkpoints, the oldest first."""
        at, job_id = self._newest
        rows = session.execute(
            select(
                Job.id, Job.name, Job.shape, Job.run_s, Job.finished_at, Job.state,
                Project.name.label("project"), User.name.label("user"), Job.spec["code"].as_string().label("code"),
                HAS_CHECKPOINTS,
            )
            .join(Project, Project.id == Job.project_id)
            .join(User, User.id == Job.user_id)
            .where(
                Job.state.in_(_ENDED),
                Job.run_s >= _LEAST_S,
                not_(_IS_ENDLESS),
                or_(Job.finished_at > at, and_(Job.finished_at == at, Job.id > job_id)),
            )
            .order_by(Job.finished_at.desc(), Job.id.desc())
            .limit(_HISTORY)
        ).all()  # fmt: skip
        if rows:
            self._newest = (rows[0].finished_at, rows[0].id)
        return [
            (
                PastRun(
                    JobTraits(row.project, row.user, row.name, row.code or "", row.shape),
                    row.run_s,
                    row.finished_at,
                    is_cut_off=row.state == JobState.EXPIRED.value,
                ),
                row.has_checkpoints,
            )
            for row in reversed(rows)
        ]


def _namesakes(traits: JobTraits) -> tuple[str, str, str]:
    return traits.project, traits.user, pattern_of(traits.name)


def finite(estimate: Estimate | None) -> Estimate | None:
    """``estimate``, capped at a horizon of decades; ``None`` where it is no finite number of seconds."""
    if estimate is None or not all(map(isfinite, (estimate.likely_s, estimate.early_s, estimate.late_s))):
        return None
    return capped(estimate, ENDLESS_S)


def _read_unfinished(session: Session, now: datetime) -> tuple[UnfinishedRun, ...]:
    rows = session.execute(
        select(
            Job.name, Job.shape, Job.run_s, Attempt.started_at,
            Project.name.label("project"), User.name.label("user"), Job.spec["code"].as_string().label("code"),
        )
        .join(Attempt, Attempt.job_id == Job.id)
        .join(Project, Project.id == Job.project_id)
        .join(User, User.id == Job.user_id)
        .where(is_live(), Attempt.started_at.is_not(None), not_(_IS_ENDLESS))
        .order_by(Job.id)
    )  # fmt: skip
    return tuple(
        UnfinishedRun(JobTraits(row.project, row.user, row.name, row.code or "", row.shape), _coarse(ran_s))
        for row in rows
        if (ran_s := row.run_s + (now - row.started_at).total_seconds()) >= _LEAST_S
    )


def _coarse(seconds: float) -> float:
    return _COARSE ** floor(log(seconds, _COARSE))


def of_stopped(session: Session, job_ids: Sequence[str]) -> dict[str, Estimate]:
    """Of jobs that wait again: the remaining run time as they reported it before their last attempt ended."""
    rows = session.execute(
        select(Attempt.job_id, Attempt.ended_at, Replica.progress)
        .join(Job, and_(Job.id == Attempt.job_id, Job.attempt_count == Attempt.number))
        .join(Replica, and_(Replica.attempt_id == Attempt.id, Replica.rank == 0))
        .where(Attempt.job_id.in_(job_ids), Attempt.ended_at.is_not(None))
    )
    progress = {
        row.job_id: finite(estimate_from_progress(progress_view(row.progress, is_running=True), row.ended_at))
        for row in rows
        if row.progress
    }
    return {job_id: estimate for job_id, estimate in progress.items() if estimate is not None}


def _read_progress(session: Session) -> dict[str, Mapping[str, object]]:
    """The progress that the first replica of each running attempt reports, by attempt."""
    rows = session.execute(
        select(Replica.attempt_id, Replica.progress)
        .join(Attempt, Attempt.id == Replica.attempt_id)
        .where(is_live(), Attempt.state == AttemptState.RUNNING.value, Replica.rank == 0)
    )
    progress = {row.attempt_id: progress_view(row.progress, is_running=True) for row in rows if row.progress}
    return {attempt_id: view for attempt_id, view in progress.items() if "done_at" in view}
