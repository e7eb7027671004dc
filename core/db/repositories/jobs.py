"""Jobs as the API reads and writes them, and their attempts and replicas as it reads them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, Final

from sqlalchemy import (
    ColumnElement,
    and_,
    exists,
    func,
    literal,
    or_,
    select,
    tuple_,
    union_all,
    update,
)
from sqlalchemy.orm import Session, aliased

from core.db.engine import UntypedRow, UntypedSelect
from core.db.leases import TICK_DONE
from core.db.repositories.planning import reason_columns, with_reasons
from core.db.tables import Attempt, Job, JobLabel, Lease, Project, Replica, Trial, User, UtcDateTime
from core.domain.errors import StaleWrite
from core.domain.jobs.states import JobState
from core.domain.studies.trials import WINNER_LABEL

# Roles are stored among the labels under a key that no label can have: label keys begin with a letter or a digit.
ROLE_KEY: Final = ".role"

# The columns of a job list; of spec and gang only the parts named here leave the database.
_VIEW_COLUMNS = (
    Job.id,
    Job.name,
    Project.name.label("project"),
    User.name.label("user"),
    Job.state,
    Job.desired_state,
    Job.priority,
    Job.spec["labels"].label("labels"),
    Job.gang,
    Job.gpu_milli,
    Job.attempt_count,
    Job.restart_count,
    Job.wait_reason,
    *reason_columns(),
    Job.exit,
    Job.created_at,
    Job.queued_at,
    Job.started_at,
    Job.finished_at,
    Job.output_volume,
    Job.output_path,
    Job.cloned_from,
    Job.pinned_by,
    Job.expired,
    Job.generation,
    # evaluated once per statement, not per job
    select(Lease.expires_at).where(Lease.name == TICK_DONE).scalar_subquery().label("ticked_at"),
)


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Which jobs to list. Several values of one field: any of them; ``labels``: all of them.

    ``project_ids``: ``None`` means all. A label's value ``None``: any value. ``names`` may end in ``*``. ``since``
    (inclusive) and ``until`` (exclusive) refer to the submission. ``study_ids``: the jobs of the studies' trials and
    the reruns of their best trials. ``search``: part of the name or of a label's value, or an id.
    """

    project_ids: tuple[str, ...] | None = None
    states: tuple[str, ...] = ()
    labels: tuple[tuple[str, str | None], ...] = ()
    roles: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    users: tuple[str, ...] = ()
    study_ids: tuple[str, ...] = ()
    since: datetime | None = None
    until: datetime | None = None
    search: str = ""


class JobSort(StrEnum):
    """Sort orders of job lists. Ties are sorted newest first."""

    NEWEST = "newest"
    OLDEST = "oldest"
    NAME = "name"
    PRIORITY = "priority"  # the largest first
    STATE = "state"
    USER = "user"
    STARTED = "started"  # newest start first, never started last
    GPUS = "gpus"  # the most first


_NEVER: Final = literal(datetime.min.replace(tzinfo=UTC), UtcDateTime)
# The sort key of each order, and whether it is descending.
_KEYS: Final[Mapping[JobSort, tuple[ColumnElement[Any], bool]]] = {
    JobSort.NAME: (Job.name.expression, False),
    JobSort.PRIORITY: (Job.priority.expression, True),
    JobSort.STATE: (Job.state.expression, False),
    JobSort.USER: (User.name.expression, False),
    JobSort.STARTED: (func.coalesce(Job.started_at, _NEVER), True),
    JobSort.GPUS: (Job.gpu_milli.expression, True),
}


@dataclass(frozen=True, slots=True)
class JobCursor:
    """The end of a page: submission time and id of the last job, and its sort key.

    ``key`` when sorted by start: ``None`` for a job that never started.
    """

    created_at: datetime
    id: str
    key: str | int | datetime | None = None


def list_jobs(
    session: Session, wanted: JobFilter, *, limit: int, before: JobCursor | None, order: JobSort = JobSort.NEWEST
) -> Sequence[UntypedRow]:
    """At most ``limit`` view rows after ``before``, a cursor of the same ``order``. One statement."""
    query = _view_query().where(Job.deleted_at.is_(None), *_conditions(wanted))
    if before is not None:
        query = query.where(_is_behind(before, order))
    newest = (Job.created_at.desc(), Job.id.desc())
    if order in _KEYS:
        key, is_largest_first = _KEYS[order]
        query = query.order_by(key.desc() if is_largest_first else key, *newest)
    elif order is JobSort.OLDEST:
        query = query.order_by(Job.created_at, Job.id)
    else:
        query = query.order_by(*newest)
    return session.execute(query.limit(limit)).all()


def _is_behind(place: JobCursor, order: JobSort) -> ColumnElement[bool]:
    own = tuple_(Job.created_at, Job.id)
    last = tuple_(literal(place.created_at, UtcDateTime), literal(place.id))
    if order is JobSort.OLDEST:
        return own > last
    if order not in _KEYS:
        return own < last
    key, is_largest_first = _KEYS[order]
    last_key = _NEVER if place.key is None else literal(place.key, key.type)
    return or_(key < last_key if is_largest_first else key > last_key, and_(key == last_key, own < last))


def view_row(session: Session, job_id: str) -> UntypedRow:
    """The view row of one existing job."""
    return session.execute(_view_query().where(Job.id == job_id)).one()


def view_rows(session: Session, job_ids: Sequence[str]) -> Sequence[UntypedRow]:
    """The view rows of these jobs, unordered. One statement, or none without jobs."""
    return session.execute(_view_query().where(Job.id.in_(job_ids))).all() if job_ids else ()


def _view_query() -> UntypedSelect:
    query = select(*_VIEW_COLUMNS).join(Project, Project.id == Job.project_id).join(User, User.id == Job.user_id)
    return with_reasons(query, Job.state == JobState.QUEUED)


def _conditions(wanted: JobFilter) -> list[ColumnElement[bool]]:
    found: list[ColumnElement[bool]] = []
    if wanted.project_ids is not None:
        found.append(Job.project_id.in_(wanted.project_ids))
    if wanted.states:
        found.append(Job.state.in_(wanted.states))
    for key, value in wanted.labels:
        found.append(_has_label(key, () if value is None else (value,)))
    if wanted.roles:
        found.append(_has_label(ROLE_KEY, wanted.roles))
    if wanted.names:
        found.append(or_(*(_like(name) for name in wanted.names)))
    if wanted.users:
        found.append(User.name.in_(wanted.users))
    if wanted.study_ids:
        found.append(_is_of_study(wanted.study_ids))
    if wanted.since is not None:
        found.append(Job.created_at >= wanted.since)
    if wanted.until is not None:
        found.append(Job.created_at < wanted.until)
    if wanted.search:
        found.append(_is_found_by(wanted.search))
    return found


def _is_found_by(text: str) -> ColumnElement[bool]:
    labels = select(literal(1)).where(
        JobLabel.job_id == Job.id, JobLabel.key != ROLE_KEY, JobLabel.value.icontains(text, autoescape=True)
    )
    return or_(Job.name.icontains(text, autoescape=True), Job.id == text, exists(labels))


def _is_of_study(study_ids: Sequence[str]) -> ColumnElement[bool]:
    # By the platform's own columns: several studies may share the name in the label, and a template may set the label.
    tried = select(Trial.job_id).where(Trial.study_id.in_(study_ids), Trial.job_id.is_not(None))
    # The rerun of a best trial is no trial; its label narrows the rows whose origin is checked.
    again = aliased(Job)
    winners = (
        select(again.id)
        .join(JobLabel, JobLabel.job_id == again.id)
        .where(JobLabel.key == WINNER_LABEL, again.trial["study_id"].as_string().in_(study_ids))
    )
    return Job.id.in_(union_all(tried, winners))


def _has_label(key: str, values: Sequence[str]) -> ColumnElement[bool]:
    query = select(literal(1)).where(JobLabel.job_id == Job.id, JobLabel.key == key)
    return exists(query.where(JobLabel.value.in_(values)) if values else query)


def _like(name: str) -> ColumnElement[bool]:
    if name.endswith("*"):
        return Job.name.startswith(name[:-1], autoescape=True)
    return Job.name == name


@dataclass(slots=True)
class RunSummary:
    """What the attempts of a job amount to.

    ``ran``: run time of the ended attempts, without waits and pauses. ``since``: start of the running attempt.
    ``progress``:
    as reported by the first replica of the newest attempt.
    """

    ran: timedelta = timedelta()
    since: datetime | None = None
    progress: Mapping[str, Any] = field(default_factory=dict)


NOT_RUN: Final = RunSummary()


def runs_of(session: Session, job_ids: Sequence[str]) -> dict[str, RunSummary]:
    """By job; jobs without an attempt are left out. One statement."""
    if not job_ids:
        return {}
    rows = session.execute(
        select(Attempt.job_id, Attempt.started_at, Attempt.ended_at, Replica.started_at, Replica.progress)
        .join(Replica, and_(Replica.attempt_id == Attempt.id, Replica.rank == 0), isouter=True)
        .where(Attempt.job_id.in_(job_ids))
        .order_by(Attempt.number)
    )
    found: defaultdict[str, RunSummary] = defaultdict(RunSummary)
    for job_id, all_started_at, ended_at, first_started_at, progress in rows:
        run = found[job_id]
        run.progress = progress or {}
        # A gang that ended before it was observed running has no start of its own.
        run.since = all_started_at or first_started_at
        if run.since is not None and ended_at is not None:
            run.ran += max(timedelta(), ended_at - run.since)
            run.since = None
    return dict(found)


def set_job(session: Session, job: Job, **values: Any) -> None:
    """Optimistic update of the job's row; ``job`` then shows the new values.

    Raises:
        StaleWrite: the row has changed since it was read.
    """
    changed = {**values, "generation": job.generation + 1}
    hit = session.execute(
        update(Job)
        .where(Job.id == job.id, Job.generation == job.generation)
        .values(**changed)
        .execution_options(synchronize_session=False)
    )
    if hit.rowcount != 1:  # type: ignore[attr-defined]
        raise StaleWrite(f"job {job.id} has moved on")
    session.refresh(job)


AttemptRows = tuple[Attempt, list[Replica]]


def attempts_of_job(session: Session, job_id: str, *, after: int, limit: int) -> list[AttemptRows]:
    """At most ``limit`` attempts with numbers above ``after``, oldest first, each with its replicas in rank order.

    Two statements.
    """
    query = select(Attempt).where(Attempt.job_id == job_id, Attempt.number > after).order_by(Attempt.number)
    return _with_replicas(session, session.execute(query.limit(limit)).scalars().all())


def newest_attempt(session: Session, job_id: str) -> AttemptRows | None:
    query = select(Attempt).where(Attempt.job_id == job_id).order_by(Attempt.number.desc()).limit(1)
    return next(iter(_with_replicas(session, session.execute(query).scalars().all())), None)


def attempt_by_number(session: Session, job_id: str, number: int) -> AttemptRows | None:
    attempt = bare_attempt(session, job_id, number)
    return None if attempt is None else _with_replicas(session, [attempt])[0]


def replicas_of_attempt(session: Session, attempt_id: str, *, after: int, limit: int) -> Sequence[Replica]:
    """At most ``limit`` replicas of ranks above ``after``, in rank order."""
    query = select(Replica).where(Replica.attempt_id == attempt_id, Replica.rank > after).order_by(Replica.rank)
    return session.execute(query.limit(limit)).scalars().all()


def replica_by_name(session: Session, attempt_id: str, role: str, index: int) -> Replica | None:
    query = select(Replica).where(Replica.attempt_id == attempt_id, Replica.role == role, Replica.index == index)
    return session.execute(query).scalar_one_or_none()


def bare_attempt(session: Session, job_id: str, number: int) -> Attempt | None:
    """The attempt without its replicas, which may be thousands."""
    return session.execute(
        select(Attempt).where(Attempt.job_id == job_id, Attempt.number == number)
    ).scalar_one_or_none()


def live_attempt_id(session: Session, job_id: str) -> str | None:
    """The attempt that has not ended, if there is one."""
    query = select(Attempt.id).where(Attempt.job_id == job_id, Attempt.ended_at.is_(None))
    return session.execute(query.order_by(Attempt.number.desc()).limit(1)).scalar_one_or_none()


def is_decided(session: Session, job_id: str) -> bool:
    """Whether the script has finished by itself, and only the job's end remains to be written."""
    query = select(Attempt.id).where(
        Attempt.job_id == job_id, Attempt.ended_at.is_(None), Attempt.decided_at.is_not(None)
    )
    return session.execute(query.limit(1)).first() is not None


def _with_replicas(session: Session, attempts: Sequence[Attempt]) -> list[AttemptRows]:
    if not attempts:
        return []
    ids = [attempt.id for attempt in attempts]
    members: defaultdict[str, list[Replica]] = defaultdict(list)
    for replica in session.execute(select(Replica).where(Replica.attempt_id.in_(ids)).order_by(Replica.rank)).scalars():
        members[replica.attempt_id].append(replica)
    return [(attempt, members[attempt.id]) for attempt in attempts]
