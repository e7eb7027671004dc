"""Measured storage usage of projects, and what of it is in the database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import ColumnElement, Select, case, func, or_, select, union
from sqlalchemy.orm import Session

from core.db.engine import insert_into
from core.db.tables import Archive, Job, MetricStream, Project, StorageUsage, Study
from core.domain.errors import NotFound
from core.domain.jobs.states import JobState
from core.domain.sharing.storage import StorageKind, StorageState, due_when_active, storage_limit

# A point's step, time and value, compressed, and its part of the digests.
_POINT_BYTES: Final = 16
# An unfinished upload of code is deleted after so long without progress.
UNFINISHED_AFTER: Final = timedelta(days=1)
# Uploads through the API are added at once, and measured soon after.
_AFTER_UPLOAD: Final = timedelta(minutes=1)
_ACTIVE: Final = (JobState.STARTING.value, JobState.RUNNING.value)


@dataclass(frozen=True, slots=True)
class StorageDetails:
    """``parts``: bytes by kind. ``unreadable``: folders that the platform may not read, and so does not count."""

    state: StorageState
    parts: Mapping[str, int]
    unreadable: int = 0


def state_columns() -> tuple[Any, ...]:
    """For a query over projects, outer joined to ``StorageUsage``; see :func:`state_of_row`."""
    return (
        Project.name.label("project_name"), Project.quota, StorageUsage.used_bytes, StorageUsage.added_bytes,
        StorageUsage.measured_at,
    )  # fmt: skip


def state_of_row(row: Any) -> StorageState:
    used = (row.used_bytes or 0) + (row.added_bytes or 0)
    return StorageState(row.project_name, used, storage_limit(row.quota), row.measured_at)


def read_state(session: Session, project_id: str) -> StorageState:
    """The project's usage against its quota. Raises ``NotFound``."""
    query = select(*state_columns()).outerjoin(StorageUsage, StorageUsage.project_id == Project.id)
    row = session.execute(query.where(Project.id == project_id)).one_or_none()
    if row is None:
        raise NotFound("The project was deleted.")
    return state_of_row(row)


def find_project(session: Session, name: str) -> str | None:
    """Its id."""
    return session.scalars(select(Project.id).where(Project.name == name, Project.deleted_at.is_(None))).one_or_none()


def read_details(session: Session, project_ids: Sequence[str]) -> dict[str, StorageDetails]:
    """By project id."""
    columns = (Project.id, StorageUsage.parts, StorageUsage.unreadable, *state_columns())
    query = select(*columns).outerjoin(StorageUsage, StorageUsage.project_id == Project.id)
    return {
        row.id: StorageDetails(state_of_row(row), row.parts or {}, row.unreadable or 0)
        for row in session.execute(query.where(Project.id.in_(project_ids)))
    }


def add_bytes(session: Session, project_id: str, size_bytes: int, now: datetime) -> None:
    """Count an upload until the next measurement, which is due soon after it."""
    _upsert(session, project_id, now + _AFTER_UPLOAD, size_bytes)


def request_measurement(session: Session, project_id: str, now: datetime) -> None:
    """Have the project measured soon: its files were deleted, or its quota was changed."""
    _upsert(session, project_id, now, 0)


def delay_measurement(session: Session, project_id: str, due_at: datetime) -> None:
    """Measure the project later: a volume is away."""
    fresh = insert_into(session, StorageUsage).values(project_id=project_id, parts={}, due_at=due_at)
    session.execute(fresh.on_conflict_do_update(index_elements=["project_id"], set_={"due_at": due_at}))


def _upsert(session: Session, project_id: str, due_at: datetime, added_bytes: int) -> None:
    row = {"project_id": project_id, "parts": {}, "due_at": due_at, "added_bytes": added_bytes}
    fresh = insert_into(session, StorageUsage).values(row)
    earlier = case((StorageUsage.due_at > fresh.excluded.due_at, fresh.excluded.due_at), else_=StorageUsage.due_at)
    added = StorageUsage.added_bytes + fresh.excluded.added_bytes
    changes = {"added_bytes": added, "due_at": earlier}
    session.execute(fresh.on_conflict_do_update(index_elements=["project_id"], set_=changes))


# --- for the measurement ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MeasuredRow:
    """What is known before a measurement. ``added_bytes``: at its begin. ``outputs``: (volume, path) of its jobs' and
    studies' outputs outside of its own folder, none below another.
    """

    project: str
    added_bytes: int
    level: int
    is_active: bool
    outputs: tuple[tuple[str, str], ...]
    archive_bytes: int
    metric_bytes: int


def due_projects(session: Session, now: datetime, limit: int) -> list[str]:
    """Projects to be measured, those first that were never measured; last those that have got running jobs since."""
    query = (
        select(Project.id)
        .outerjoin(StorageUsage, StorageUsage.project_id == Project.id)
        .where(Project.deleted_at.is_(None), or_(StorageUsage.due_at.is_(None), StorageUsage.due_at <= now))
        .order_by(StorageUsage.measured_at.is_not(None), StorageUsage.due_at)
        .limit(limit)
    )
    due = list(session.scalars(query))
    active = (
        select(StorageUsage.project_id, StorageUsage.measured_at, StorageUsage.duration_s)
        .join(Project, Project.id == StorageUsage.project_id)
        .where(
            StorageUsage.due_at > now,
            StorageUsage.measured_at.is_not(None),
            StorageUsage.project_id.in_(select(Job.project_id).where(Job.state.in_(_ACTIVE))),
            Project.deleted_at.is_(None),
        )
    )
    due += [
        project_id
        for project_id, measured_at, duration_s in session.execute(active)
        if measured_at is not None and due_when_active(measured_at, duration_s) <= now
    ]
    return due[:limit]


def load_measured(session: Session, project_id: str, default_volume: str, now: datetime) -> MeasuredRow | None:
    """``None``: the project was deleted."""
    project = session.get(Project, project_id)
    if project is None or project.deleted_at is not None:
        return None
    usage = session.get(StorageUsage, project_id)
    return MeasuredRow(
        project=project.name,
        added_bytes=usage.added_bytes if usage else 0,
        level=usage.level if usage else 0,
        is_active=session.scalars(_running(project_id).limit(1)).first() is not None,
        outputs=_outputs_elsewhere(session, project_id, default_volume, project.name),
        archive_bytes=_archive_bytes(session, project_id, now),
        metric_bytes=metric_bytes_of(session, Job.project_id == project_id),
    )


def save_measurement(
    session: Session,
    project_id: str,
    parts: Mapping[StorageKind, int],
    *,
    before: MeasuredRow,
    unreadable: int,
    duration_s: float,
    now: datetime,
) -> StorageState:
    """Write a measurement; returns the state. What was uploaded during it stays added, since it may not be included."""
    _upsert(session, project_id, now, 0)
    row = session.scalars(select(StorageUsage).where(StorageUsage.project_id == project_id).with_for_update()).one()
    row.parts = {kind.value: size for kind, size in parts.items()}
    row.used_bytes = sum(parts.values())
    row.added_bytes = max(0, row.added_bytes - before.added_bytes)
    row.unreadable, row.duration_s, row.measured_at = unreadable, duration_s, now
    session.flush()
    state = read_state(session, project_id)
    row.level = state.level(before.level)
    row.due_at = state.next_measurement(now, is_active=before.is_active, duration_s=duration_s)
    if row.added_bytes:
        row.due_at = min(row.due_at, now + _AFTER_UPLOAD)
    return state


def running_jobs(session: Session, project_id: str) -> list[str]:
    """Ids of the project's jobs that write now."""
    return list(session.scalars(_running(project_id)))


def _running(project_id: str) -> Select[str]:
    return select(Job.id).where(Job.project_id == project_id, Job.state.in_(_ACTIVE), Job.deleted_at.is_(None))


def _outputs_elsewhere(
    session: Session, project_id: str, default_volume: str, project: str
) -> tuple[tuple[str, str], ...]:
    query = select(Job.output_volume, Job.output_path).where(Job.project_id == project_id, Job.deleted_at.is_(None))
    own = f"{project}/"
    found: list[tuple[str, str]] = []
    for volume, path in sorted({(row[0], row[1]) for row in session.execute(query.distinct())}):
        if volume == default_volume and (path == project or path.startswith(own)):
            continue
        is_below = found and found[-1][0] == volume and f"{path}/".startswith(f"{found[-1][1]}/".lstrip("/"))
        if not is_below:
            found.append((volume, path))
    return tuple(found)


def _archive_bytes(session: Session, project_id: str, now: datetime) -> int:
    code = Job.spec["code"].as_string()
    of_studies = Study.spec["template"]["code"].as_string()
    used = union(
        select(code).where(Job.project_id == project_id, Job.deleted_at.is_(None), code.is_not(None)),
        select(of_studies).where(Study.project_id == project_id, Study.deleted_at.is_(None), of_studies.is_not(None)),
    )
    query = select(func.coalesce(func.sum(Archive.size_bytes), 0)).where(
        or_(Archive.project_id == project_id, Archive.digest.in_(used)),
        or_(Archive.is_complete, Archive.used_at > now - UNFINISHED_AFTER),
    )
    return int(session.scalars(query).one())


def metric_bytes_of(session: Session, condition: ColumnElement[bool]) -> int:
    """What the metrics of the jobs of ``condition`` take in the database, in bytes."""
    query = (
        select(
            func.coalesce(func.sum(MetricStream.points), 0), func.coalesce(func.sum(MetricStream.object_bytes), 0)
        )
        .join(Job, Job.id == MetricStream.owner_id)
        .where(condition)
    )  # fmt: skip
    points, objects = session.execute(query).one()
    return int(points) * _POINT_BYTES + int(objects)
