"""The queue as the API shows it: order of waiting jobs, resource usage, and total demand."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from sqlalchemy import ColumnElement, and_, case, func, literal, select, tuple_
from sqlalchemy.orm import Session

from core.db.engine import UntypedRow
from core.db.leases import TICK_DONE
from core.db.repositories.nodes import is_holding
from core.db.repositories.planning import reason_columns, with_reasons
from core.db.tables import Job, Lease, Project, Replica, StartForecastRow, User, UtcDateTime
from core.domain.jobs.states import JobState
from core.domain.sharing.quota import CPU, GPUS, JOBS, MEMORY
from core.domain.sharing.resources import Gang

# Sorts after all jobs with a forecast position: jobs that came since the last tick, or beyond the forecast's limit.
_LAST: Final = 2**31 - 1
_place: Final = func.coalesce(StartForecastRow.position, _LAST)
_waits: Final = and_(Job.state == JobState.QUEUED.value, Job.deleted_at.is_(None))
_rank: Final = -Job.priority


@dataclass(frozen=True, slots=True)
class QueueCursor:
    """The end of a page of the queue."""

    place: int
    priority: int
    queued_at: datetime
    job_id: str


def waiting_page(
    session: Session, *, project_id: str | None, after: QueueCursor | None, limit: int
) -> Sequence[UntypedRow]:
    """At most ``limit`` waiting jobs in queue order, each with its ``number`` among all waiting jobs, from 1.

    The order is the planner's as last written; jobs without a written position follow by priority and age.
    """
    order = (_place, _rank, Job.queued_at, Job.id)
    line = (
        select(
            Job.id.label("job_id"),
            _place.label("place"),
            _rank.label("rank"),
            Job.queued_at.label("since"),
            Job.project_id.label("of_project"),
            func.row_number().over(order_by=order).label("number"),
        )
        .join(StartForecastRow, StartForecastRow.job_id == Job.id, isouter=True)
        .where(_waits)
        .subquery()
    )
    own = tuple_(line.c.place, line.c.rank, line.c.since, line.c.job_id)
    page = select(line).order_by(line.c.number).limit(limit)
    if project_id is not None:
        page = page.where(line.c.of_project == project_id)
    if after is not None:
        last = (
            literal(after.place),
            literal(-after.priority),
            literal(after.queued_at, UtcDateTime),
            literal(after.job_id),
        )
        page = page.where(own > tuple_(*last))
    cut = page.subquery()
    query = (
        select(
            cut.c.number, cut.c.place, Job.id, Job.name, Job.priority, Job.queued_at, Job.gang, Job.project_id,
            Job.state, Job.wait_reason, Project.name.label("project"), User.name.label("user"),
            *reason_columns(), StartForecastRow.earliest, StartForecastRow.likely, StartForecastRow.latest,
            StartForecastRow.code.label("start_code"), StartForecastRow.sentence.label("start_sentence"),
            StartForecastRow.nodes,
            _ticked().label("ticked_at"),
        )
        .join(cut, cut.c.job_id == Job.id)
        .join(Project, Project.id == Job.project_id)
        .join(User, User.id == Job.user_id)
        .join(StartForecastRow, StartForecastRow.job_id == Job.id, isouter=True)
        .order_by(cut.c.number)
    )  # fmt: skip
    return session.execute(with_reasons(query)).all()


def _ticked() -> Any:
    return select(Lease.expires_at).where(Lease.name == TICK_DONE).scalar_subquery()


def waiting_count(session: Session) -> tuple[int, datetime | None]:
    """The number of waiting jobs, and the time of the last tick."""
    count = session.execute(select(func.count()).select_from(Job).where(_waits)).scalar_one()
    return count, session.execute(select(_ticked())).scalar_one()


def number_of(session: Session, *, job_id: str, priority: int, queued_at: datetime) -> int:
    """The queue position of a job, from 1; in the order of :func:`waiting_page`."""
    own_place = session.execute(
        select(StartForecastRow.position).where(StartForecastRow.job_id == job_id)
    ).scalar_one_or_none()
    own = (
        literal(_LAST if own_place is None else own_place),
        literal(-priority),
        literal(queued_at, UtcDateTime),
        literal(job_id),
    )
    query = (
        select(func.count()).select_from(Job).join(StartForecastRow, StartForecastRow.job_id == Job.id, isouter=True)
    )
    ahead = tuple_(_place, _rank, Job.queued_at, Job.id) < tuple_(*own)
    return session.execute(query.where(_waits, ahead)).scalar_one() + 1


# --- resource usage --------------------------------------------------------------------------------------------------


def allocated_by_job(session: Session, job_ids: Collection[str]) -> dict[str, dict[str, int]]:
    """Resources that these jobs hold, by quota key; jobs that hold nothing are left out."""
    query = (
        select(Replica.job_id, Replica.gpu_model, *_sums(session))
        .where(is_holding(), Replica.job_id.in_(job_ids))
        .group_by(Replica.job_id, Replica.gpu_model)
    )
    found: dict[str, dict[str, int]] = {}
    rows: Iterable[UntypedRow] = session.execute(query)
    for job_id, model, *sums in rows:
        _add(found.setdefault(job_id, {JOBS: 1, CPU: 0, MEMORY: 0, GPUS: 0}), model, sums)
    return found


def allocated_by_user(
    session: Session, *, project_ids: Collection[str] | None = None
) -> dict[str, dict[str, dict[str, int]]]:
    """Resources that users hold, by project, user and quota key; in all projects, or in these."""
    where = [is_holding()] if project_ids is None else [is_holding(), Job.project_id.in_(project_ids)]
    of_user = (Job.project_id, Job.user_id)
    # Amounts per GPU model, and the number of jobs separately: a job may have replicas on several models.
    amounts = (
        select(*of_user, Replica.gpu_model, *_sums(session))
        .join(Job, Job.id == Replica.job_id)
        .where(*where)
        .group_by(*of_user, Replica.gpu_model)
    )
    counted = (
        select(*of_user, func.count(Job.id.distinct()))
        .join(Replica, Replica.job_id == Job.id)
        .where(*where)
        .group_by(*of_user)
    )
    found: dict[str, dict[str, dict[str, int]]] = {}
    for project, user, jobs in session.execute(counted):
        found.setdefault(project, {})[user] = {JOBS: jobs, CPU: 0, MEMORY: 0, GPUS: 0}
    rows: Iterable[UntypedRow] = session.execute(amounts)
    for project, user, model, *sums in rows:
        of_project = found.setdefault(project, {})
        _add(of_project.setdefault(user, {JOBS: 0, CPU: 0, MEMORY: 0, GPUS: 0}), model, sums)
    return found


def _sums(session: Session) -> tuple[ColumnElement[Any], ...]:
    return func.sum(Replica.cpu_milli), func.sum(Replica.memory_bytes), func.sum(_gpu_milli(session))


def _add(usage: dict[str, int], model: str | None, sums: Sequence[Any]) -> None:
    cpu, memory, milli = (int(total) for total in sums)
    usage[CPU] += cpu
    usage[MEMORY] += memory
    usage[GPUS] += milli
    if milli and model is not None:
        usage[f"{GPUS}/{model}"] = usage.get(f"{GPUS}/{model}", 0) + milli


def _gpu_milli(session: Session) -> ColumnElement[Any]:
    """Thousandths of GPUs that a replica's row holds."""
    is_postgres = session.get_bind().dialect.name == "postgresql"
    devices = (func.jsonb_array_length if is_postgres else func.json_array_length)(Replica.gpus)
    return case((Replica.gpu_milli > 0, Replica.gpu_milli), else_=1000 * devices)


def demand_by_project(session: Session) -> dict[tuple[str, str], tuple[int, list[tuple[Gang, int]]]]:
    """For each (project, user) with waiting jobs: the number of jobs, and the number of each gang."""
    counted = session.execute(
        select(Job.project_id, Job.user_id, Job.shape, func.count(), func.min(Job.id))
        .where(_waits)
        .group_by(Job.project_id, Job.user_id, Job.shape)
    ).all()
    sample_job = {shape: job_id for _, _, shape, _, job_id in counted}
    gangs = _gangs(session, sample_job)
    found: defaultdict[tuple[str, str], tuple[int, list[tuple[Gang, int]]]] = defaultdict(lambda: (0, []))
    for project, user, shape, count, _ in counted:
        before, wanted = found[project, user]
        if shape in gangs:
            wanted.append((gangs[shape], count))
        found[project, user] = (before + count, wanted)
    return dict(found)


_AT_ONCE: Final = 500  # ids in one statement


def _gangs(session: Session, sample_job: Mapping[str, str]) -> dict[str, Gang]:
    ids = list(sample_job.values())
    found: dict[str, Gang] = {}
    for at in range(0, len(ids), _AT_ONCE):
        rows = session.execute(select(Job.shape, Job.gang).where(Job.id.in_(ids[at : at + _AT_ONCE])))
        found |= {shape: Gang.from_json(gang) for shape, gang in rows}
    return found
