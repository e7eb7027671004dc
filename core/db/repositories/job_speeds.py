"""Measured speeds of elastic jobs by their number of replicas."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from sqlalchemy import delete, func, select, update
from sqlalchemy.orm import Session

from core.db.engine import insert_into
from core.db.tables import Job, JobSpeed, Project, User
from core.domain.jobs.name_patterns import pattern_of
from core.domain.jobs.speed_curve import SpeedPoint
from core.domain.jobs.states import JobState

# A job that ran at more sizes than this keeps the first ones: a curve needs a handful.
_MOST_SIZES: Final = 64
# Rows of the newest jobs from which later jobs of the same name learn.
_HISTORY: Final = 2000
_TERMINAL: Final = tuple(state.value for state in JobState if state.is_terminal)


@dataclass(frozen=True, slots=True)
class MeasuredJob:
    """The measurements of one job, ascending by replicas."""

    job_id: str
    project: str
    user: str
    name: str
    points: tuple[SpeedPoint, ...]


def add_measurement(
    session: Session, job_id: str, replicas: int, *, steps: float, seconds: float, now: datetime
) -> None:
    """Count ``steps`` in ``seconds`` with ``replicas``. The caller has locked the replica that reports."""
    known = {point.replicas: point for point in points_of(session, job_id)}
    if replicas not in known and len(known) >= _MOST_SIZES:
        return
    point = known.get(replicas, SpeedPoint(replicas, 0.0, 0.0)).with_work(steps, seconds, now.timestamp())
    values = {"steps_per_s": point.work_per_s, "measured_s": point.measured_s, "updated_at": now}
    if replicas in known:
        session.execute(
            update(JobSpeed)
            .where(JobSpeed.job_id == job_id, JobSpeed.replicas == replicas)
            .values(**values)
            .execution_options(synchronize_session=False)
        )
        return
    row = {"job_id": job_id, "replicas": replicas, **values}
    session.execute(insert_into(session, JobSpeed).values(row).on_conflict_do_nothing())


def points_of(session: Session, job_id: str) -> tuple[SpeedPoint, ...]:
    """The measurements of one job, ascending by replicas."""
    rows = session.execute(
        select(JobSpeed.replicas, JobSpeed.steps_per_s, JobSpeed.measured_s, JobSpeed.updated_at)
        .where(JobSpeed.job_id == job_id)
        .order_by(JobSpeed.replicas)
    )
    return tuple(SpeedPoint(*row[:3], row.updated_at.timestamp()) for row in rows)


def earlier_points(session: Session, job: Job) -> tuple[SpeedPoint, ...]:
    """The measurements of the user's last other job of this name in the project; empty if there is none."""
    rows = session.execute(
        select(JobSpeed.job_id, Job.name)
        .join(Job, Job.id == JobSpeed.job_id)
        .where(Job.project_id == job.project_id, Job.user_id == job.user_id, Job.id != job.id)
        .order_by(JobSpeed.updated_at.desc())
        .limit(_HISTORY)
    )
    alike = pattern_of(job.name)
    found = next((row.job_id for row in rows if pattern_of(row.name) == alike), None)
    return () if found is None else points_of(session, found)


def measured_jobs(session: Session) -> list[MeasuredJob]:
    """The measurements of the jobs measured last, the newest job last."""
    newest = select(JobSpeed.job_id, func.max(JobSpeed.updated_at).label("at")).group_by(JobSpeed.job_id).subquery()
    rows = session.execute(
        select(
            JobSpeed.job_id, JobSpeed.replicas, JobSpeed.steps_per_s, JobSpeed.measured_s, JobSpeed.updated_at,
            Job.name, Project.name.label("project"), User.name.label("user"),
        )
        .join(newest, newest.c.job_id == JobSpeed.job_id)
        .join(Job, Job.id == JobSpeed.job_id)
        .join(Project, Project.id == Job.project_id)
        .join(User, User.id == Job.user_id)
        .order_by(newest.c.at.desc(), JobSpeed.job_id, JobSpeed.replicas)
        .limit(_HISTORY)
    )  # fmt: skip
    names: dict[str, tuple[str, str, str]] = {}
    points: defaultdict[str, list[SpeedPoint]] = defaultdict(list)
    for row in rows:
        names[row.job_id] = (row.project, row.user, row.name)
        points[row.job_id].append(SpeedPoint(*row[1:4], row.updated_at.timestamp()))
    return [MeasuredJob(job_id, *names[job_id], tuple(points[job_id])) for job_id in reversed(names)]


def delete_of_deleted_jobs(session: Session) -> int:
    """Delete the measurements of deleted jobs; returns how many."""
    deleted: Iterable[str] = session.scalars(
        select(JobSpeed.job_id)
        .join(Job, Job.id == JobSpeed.job_id)
        .where(Job.deleted_at.is_not(None), Job.state.in_(_TERMINAL))
        .distinct()
        .limit(_HISTORY)
    ).all()
    hit = session.execute(delete(JobSpeed).where(JobSpeed.job_id.in_(deleted)))
    return int(hit.rowcount)  # type: ignore[attr-defined]
