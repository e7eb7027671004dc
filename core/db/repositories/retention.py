"""Ended jobs whose data a retention policy gives up, and the removal of their rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, cast

from sqlalchemy import ColumnElement, Table, delete, exists, func, or_, select, update
from sqlalchemy.orm import Session, aliased

from core.db.repositories.metrics.writes import delete_metrics
from core.db.repositories.storage_usage import metric_bytes_of
from core.db.tables import (
    Archive,
    Attempt,
    Base,
    Checkpoint,
    Event,
    Job,
    MetricStream,
    ModelVersion,
    PinnedCheckpoint,
    Project,
    ServingReplica,
    Study,
    Trial,
)
from core.domain.jobs.states import JobState
from core.domain.sharing.retention import DataKind
from core.domain.studies.states import StudyState

_ENDED: Final = tuple(state.value for state in JobState if state.is_terminal)
_OVER: Final = tuple(state.value for state in StudyState if state.is_terminal)
# ``Job.expired`` of a job whose files are being deleted: kind -> when that began.
PENDING: Final = "pending"


def projects_with_policies(session: Session) -> Sequence[Project]:
    """Projects whose data expire; deleted projects too, whose policy still applies."""
    return session.scalars(select(Project).where(Project.retention.is_not(None)).order_by(Project.id)).all()


def expired_jobs(project_id: str, kind: DataKind, ended_before: datetime) -> Any:
    """A query of the ids of jobs, the first ended first, whose data of ``kind`` may be deleted.

    Never: pinned jobs, sources of registered models, jobs with pinned checkpoints (their outputs), jobs from whose
    checkpoints a live job goes on, trials of live studies, and what is not cleaned up yet.
    """
    clone = aliased(Job)
    conditions: list[ColumnElement[bool]] = [
        Job.project_id == project_id,
        Job.state.in_(_ENDED),
        Job.finished_at < ended_before,
        Job.pinned_by.is_(None),
        ~exists().where(ModelVersion.job_id == Job.id, ModelVersion.deleted_at.is_(None)),
        ~exists().where(Attempt.job_id == Job.id, Attempt.ended_at.is_(None)),
        ~exists().where(clone.cloned_from == Job.id, clone.state.not_in(_ENDED)),
        ~exists().where(Trial.job_id == Job.id, Trial.study_id == Study.id, Study.state.not_in(_OVER)),
    ]
    if kind in (DataKind.OUTPUTS, DataKind.JOBS):
        conditions.append(~exists().where(PinnedCheckpoint.job_id == Job.id))
    if kind is DataKind.JOBS:
        # Rows that others need stay: deleted versions and served revisions have histories, studies their trials.
        conditions += [
            ~exists().where(ModelVersion.job_id == Job.id),
            ~exists().where(ServingReplica.job_id == Job.id),
            ~exists().where(Trial.job_id == Job.id),
        ]
    else:
        conditions += [Job.deleted_at.is_(None), Job.expired[kind.value].as_string().is_(None)]
    return select(Job.id).where(*conditions).order_by(Job.finished_at, Job.id)


def count_expired(session: Session, project_id: str, kind: DataKind, ended_before: datetime) -> int:
    ids = expired_jobs(project_id, kind, ended_before).order_by(None).subquery()
    return session.execute(select(func.count()).select_from(ids)).scalar_one()


def freed_in_database(session: Session, project_id: str, kind: DataKind, ended_before: datetime) -> int | None:
    """Bytes of metrics, or of code archives that no other job or study names; ``None``: neither."""
    ids = expired_jobs(project_id, kind, ended_before).order_by(None)
    if kind is DataKind.METRICS:
        return metric_bytes_of(session, MetricStream.owner_id.in_(ids))
    if kind is not DataKind.CODE:
        return None
    code, other = Job.spec["code"].as_string(), aliased(Job)
    named = select(code).where(Job.id.in_(ids))
    others = exists().where(
        other.spec["code"].as_string() == Archive.digest, other.deleted_at.is_(None),
        other.expired[DataKind.CODE.value].as_string().is_(None), other.id.not_in(ids),
    )  # fmt: skip
    query = select(func.coalesce(func.sum(Archive.size_bytes), 0)).where(Archive.digest.in_(named), ~others)
    return int(session.scalars(query).one())


def begin_expiry(session: Session, job_ids: Sequence[str], kind: DataKind, now: datetime) -> list[str]:
    """Mark the jobs whose data are deleted next, so that a killed process is followed by another; returns their ids
    without those that were pinned meanwhile.
    """
    rows = session.scalars(select(Job).where(Job.id.in_(job_ids), Job.pinned_by.is_(None)).with_for_update()).all()
    for job in rows:
        job.expired = {**(job.expired or {}), kind.value: now.isoformat(), PENDING: kind.value}
    return [job.id for job in rows]


def unfinished_expiries(session: Session, project_id: str, limit: int) -> list[Job]:
    """Jobs whose files were being deleted when a process ended."""
    query = select(Job).where(Job.project_id == project_id, Job.expired[PENDING].as_string().is_not(None))
    return list(session.scalars(query.order_by(Job.id).limit(limit)))


def finish_expiry(session: Session, job_ids: Sequence[str], kind: DataKind) -> None:
    """Delete the rows that belong to the deleted data, of ``jobs`` all rows."""
    if kind in (DataKind.METRICS, DataKind.JOBS):
        delete_metrics(session, job_ids)
    if kind in (DataKind.EVENTS, DataKind.JOBS):
        session.execute(delete(Event).where(Event.job_id.in_(job_ids)))
    if kind is DataKind.OUTPUTS:
        session.execute(delete(Checkpoint).where(Checkpoint.job_id.in_(job_ids)))
    if kind is DataKind.JOBS:
        _purge(session, job_ids)
        return
    for job in session.scalars(select(Job).where(Job.id.in_(job_ids))):
        job.expired = {name: at for name, at in (job.expired or {}).items() if name != PENDING}


def delete_project_events(session: Session, project_id: str, before: datetime, limit: int) -> int:
    """Delete events of the project itself, of no job; returns how many, ``limit`` at most."""
    old = select(Event.id).where(Event.project_id == project_id, Event.job_id.is_(None), Event.at < before)
    ids = session.scalars(old.limit(limit)).all()
    session.execute(delete(Event).where(Event.id.in_(ids)))
    return len(ids)


def expiry_times(expired: Mapping[str, str] | None) -> dict[str, datetime]:
    """When which kinds of data were deleted, of a job's ``expired``."""
    return {kind: datetime.fromisoformat(at) for kind, at in (expired or {}).items() if kind != PENDING}


def set_pin(session: Session, job_id: str, user: str | None, now: datetime) -> None:
    """``user``: who pins the job; ``None``: it is pinned no more."""
    values = {"pinned_by": user, "updated_at": now, "generation": Job.generation + 1}
    session.execute(update(Job).where(Job.id == job_id).values(values).execution_options(synchronize_session="fetch"))


def _purge(session: Session, job_ids: Sequence[str]) -> None:
    """Delete the jobs' rows in all tables, the referring ones first."""
    for table in reversed(Base.metadata.sorted_tables):
        if table is Job.__table__:
            break
        for column in table.columns:
            if any(key.column.table is Job.__table__ for key in column.foreign_keys):
                session.execute(delete(table).where(column.in_(job_ids)))
    session.execute(delete(cast("Table", Job.__table__)).where(Job.id.in_(job_ids)))


def has_released_code() -> ColumnElement[bool]:
    """Of a job: it was deleted, or retention gave up its code."""
    return or_(Job.deleted_at.is_not(None), Job.expired[DataKind.CODE.value].as_string().is_not(None))
