"""The queue in the planner's order, running jobs with their expected ends, and shares of the cluster.

Shares are current and past usage and the fair share by weight, of projects and users.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Annotated, Any, Final

from fastapi import Query
from pydantic import Field
from sqlalchemy import func, select
from sqlalchemy.orm import Session
from trainmaster.spec.priorities import priority_name
from trainmaster.wire.base import Page
from trainmaster.wire.forecasts import ExpectedStartView
from trainmaster.wire.scheduling import (
    ForecastAccuracyView,
    QueuePage,
    RunningJobView,
    SharesView,
    ShareView,
    UserShareView,
    WaitingJobView,
)

from api.app.unit_of_work import AppContextDep, UnitOfWork
from api.auth import Caller, Reader
from api.forecasts.service import start_view
from api.http.paging import PageParams, PageQuery, bad_cursor, make_cursor, read_cursor, rows_by_name
from api.http.routing import new_router
from api.jobs.schemas import wait_reason_of
from api.quotas.amounts import capacity, models_of, shown
from core.db.engine import UntypedRow
from core.db.repositories.forecast_records import accuracy
from core.db.repositories.jobs import NOT_RUN, RunSummary, runs_of
from core.db.repositories.nodes import is_holding
from core.db.repositories.planning import read_policy, read_usage
from core.db.repositories.queue import (
    QueueCursor,
    allocated_by_job,
    allocated_by_user,
    demand_by_project,
    waiting_count,
    waiting_page,
)
from core.db.tables import Attempt, Job, Project, Replica, User
from core.domain.jobs.progress_rate import progress_view
from core.domain.jobs.states import JobState
from core.domain.sharing.gpus import accepted_models
from core.domain.sharing.quota import CPU, GPUS, JOBS, MEMORY
from core.domain.sharing.recorded_forecasts import ForecastAccuracy
from core.domain.sharing.resources import Gang
from core.domain.sharing.usage import ShareClaim, entitlements

router = new_router("queue")

_DOMINANT_KEYS = (CPU, MEMORY)
_INTEGER_MAX: Final = 2**31 - 1
_HOLDING: Final = (JobState.STARTING.value, JobState.RUNNING.value, JobState.CANCELLING.value)


class QueueQuery(PageQuery):
    """Filter of the queue."""

    project: str | None = Field(default=None, max_length=100, description="Only this project's jobs.")


@router.get("/queue", operation_id="list_queue", summary="The queued jobs, in the planner's order")
def list_queue(caller: Reader, context: AppContextDep, query: Annotated[QueueQuery, Query()]) -> QueuePage:
    """The next job first, with wait reasons and expected starts. Jobs of projects that you may not see are not
    named.
    """
    with context.read() as work:
        project_id = caller.member_of(work.session, query.project).project_id if query.project else None
        after = None if query.cursor is None else _place(query.cursor)
        rows = waiting_page(work.session, project_id=project_id, after=after, limit=query.limit + 1)
        page = rows[: query.limit]
        count, planned_at = waiting_count(work.session)
        return QueuePage(
            items=[_waiting_view(row, caller, work.now) for row in page],
            next_cursor=_cursor(page[-1]) if len(rows) > query.limit else None,
            waiting=count,
            planned_at=planned_at,
            accuracy=_accuracy_view(accuracy(work.session)),
        )


@router.get("/queue/running", operation_id="list_running", summary="The running jobs, with their expected ends")
def list_running(caller: Reader, context: AppContextDep, page: PageParams) -> Page[RunningJobView]:
    """In order of their ids. Jobs of projects that you may not see are not named."""
    query = (
        select(
            Job.name, Job.project_id, Job.state, Job.priority, Job.max_run_time_s, Attempt.started_at,
            Attempt.stop, Project.name.label("project"), User.name.label("user"),
        )
        .join(Attempt, (Attempt.job_id == Job.id) & (Attempt.number == Job.attempt_count))
        .join(Project, Project.id == Job.project_id)
        .join(User, User.id == Job.user_id)
        .where(Job.state.in_(_HOLDING), Job.deleted_at.is_(None))
    )  # fmt: skip
    with context.read() as work:
        rows, cursor = rows_by_name(work.session, query, Job.id, page)
        ids = [row[-1] for row in rows]
        allocated = allocated_by_job(work.session, ids)
        replicas, runs = _replica_counts(work.session, ids), runs_of(work.session, ids)
        items = [
            _running_view(row, caller, allocated, replicas, _done_at(row, runs.get(row[-1], NOT_RUN))) for row in rows
        ]
        return Page(items=items, next_cursor=cursor)


@router.get("/shares", operation_id="get_shares", summary="The projects' shares of the cluster")
def get_shares(caller: Reader, context: AppContextDep) -> SharesView:
    """For each project: usage, demand, fair share by weight, and recent usage. Projects that you may not see are one
    item.
    """
    with context.read() as work:
        return _shares_view(work, caller)


def _accuracy_view(found: ForecastAccuracy) -> ForecastAccuracyView | None:
    if not found.forecasts:
        return None
    return ForecastAccuracyView(
        forecasts=found.forecasts, inside=found.inside, median_error_s=found.median_error_s, sentence=found.sentence
    )


def _cursor(row: UntypedRow) -> str:
    return make_cursor(row.place, row.priority, row.queued_at.isoformat(), row.id)


def _place(cursor: str) -> QueueCursor:
    place, priority, since, job_id = read_cursor(cursor, (int, int, str, str))
    try:
        queued_at = datetime.fromisoformat(since)
    except ValueError as error:
        raise bad_cursor() from error
    if queued_at.tzinfo is None or abs(place) > _INTEGER_MAX or abs(priority) > _INTEGER_MAX or "\0" in job_id:
        raise bad_cursor()
    return QueueCursor(place, priority, queued_at, job_id)


def _waiting_view(row: UntypedRow, caller: Caller, now: datetime) -> WaitingJobView:
    gang, reason = Gang.from_json(row.gang), wait_reason_of(row, now)
    is_never = reason is not None and reason.is_infeasible
    is_known = caller.is_admin or row.project_id in caller.projects
    public: dict[str, Any] = {
        "position": None if is_never else row.number,
        "priority": row.priority,
        "priority_class": priority_name(row.priority),
        "gpus": gang.gpu_milli / 1000,
        "cpus": sum(role.replicas * role.request.cpu_milli for role in gang.roles) / 1000,
        "memory_bytes": sum(role.replicas * role.request.memory_bytes for role in gang.roles),
        "gpu_models": list(dict.fromkeys(model for role in gang.roles for model in role.request.gpu_models)),
        "queued_at": row.queued_at,
        "start": _start(row, is_known=is_known),
    }
    if not is_known:
        return WaitingJobView(**public)
    return WaitingJobView(
        **public,
        job_id=row.id,
        name=row.name,
        project=row.project,
        user=row.user,
        roles={role.role: role.replicas for role in gang.roles},
        reason=reason,
    )


def _start(row: UntypedRow, *, is_known: bool) -> ExpectedStartView | None:
    """The planner's last start forecast; ``None`` if there is none."""
    return None if row.start_code is None else start_view(row.start_code, row.start_sentence, row, is_known=is_known)


def _done_at(row: UntypedRow, run: RunSummary) -> datetime | None:
    """The expected end by the job's reported progress rate; ``None`` without one."""
    done_at = progress_view(run.progress, is_running=row.state == JobState.RUNNING).get("done_at")
    return datetime.fromisoformat(done_at) if isinstance(done_at, str) else done_at


def _replica_counts(session: Session, job_ids: Sequence[str]) -> dict[str, int]:
    query = (
        select(Replica.job_id, func.count()).where(is_holding(), Replica.job_id.in_(job_ids)).group_by(Replica.job_id)
    )
    return dict(session.execute(query).all())


def _running_view(
    row: UntypedRow,
    caller: Caller,
    allocated: Mapping[str, Mapping[str, int]],
    replicas: Mapping[str, int],
    likely_end_at: datetime | None,
) -> RunningJobView:
    job_id = row[-1]
    amounts = allocated.get(job_id, {})
    ends_at = None
    if row.started_at is not None and row.max_run_time_s is not None:
        ends_at = row.started_at + timedelta(seconds=row.max_run_time_s)
    public: dict[str, Any] = {
        "state": row.state,
        "priority": row.priority,
        "gpus": shown(GPUS, amounts.get(GPUS, 0)),
        "cpus": shown(CPU, amounts.get(CPU, 0)),
        "memory_bytes": amounts.get(MEMORY, 0),
        "gpu_models": {key.partition("/")[2]: shown(key, milli) for key, milli in amounts.items() if "/" in key},
        "replicas": replicas.get(job_id, 0),
        "started_at": row.started_at,
        "ends_at": ends_at,
        "likely_end_at": likely_end_at,
    }
    if not (caller.is_admin or row.project_id in caller.projects):
        return RunningJobView(**public)
    return RunningJobView(**public, job_id=job_id, name=row.name, project=row.project, user=row.user)


@dataclass(slots=True)
class _Demand:
    """What a project or a user uses and requests, by the keys of quotas."""

    allocated: dict[str, int] = field(default_factory=dict)
    requested: dict[str, int] = field(default_factory=dict)
    running: int = 0
    waiting: int = 0

    def wanted(self) -> dict[str, int]:
        return {
            key: self.allocated.get(key, 0) + self.requested.get(key, 0) for key in {*self.allocated, *self.requested}
        }


def _shares_view(work: UnitOfWork, caller: Caller) -> SharesView:
    """All projects with usage, demand or past usage; those that the caller may not see are combined into one item."""
    has = capacity(work.session)
    parts = _demands(work, has)
    projects = {row.id: row for row in work.session.scalars(select(Project).where(Project.deleted_at.is_(None)))}
    users = dict(work.session.execute(select(User.id, User.name)).all())
    policy = read_policy(work.session).policy
    past = {key: usage.value_at(work.now, policy.usage_half_life_s) for key, usage in read_usage(work.session).items()}
    weights = {project_id: projects[project_id].weight if project_id in projects else 1.0 for project_id in parts}
    wholes = {project_id: _total(of_users.values()) for project_id, of_users in parts.items()}
    claims = {
        project_id: ShareClaim(weights[project_id], min(1.0, _dominant(whole.wanted(), has)))
        for project_id, whole in wholes.items()
    }
    due = entitlements(claims)
    known: list[ShareView] = []
    others: list[ShareView] = []
    for project_id, whole in wholes.items():
        is_known = project_id in projects and (caller.is_admin or project_id in caller.projects)
        share = ShareView(
            project=projects[project_id].name if is_known else None,
            weight=weights[project_id],
            allocated=_dominant(whole.allocated, has),
            wanted=claims[project_id].wanted,
            entitlement=due[project_id],
            usage=past.get((project_id, "")),
            gpus=_gpus_by_model(whole.allocated),
            cpus=shown(CPU, whole.allocated.get(CPU, 0)),
            memory_bytes=whole.allocated.get(MEMORY, 0),
            running=whole.running,
            waiting=whole.waiting,
            users=[
                UserShareView(
                    user=users.get(user_id, "?"),
                    allocated=_dominant(part.allocated, has),
                    usage=past.get((project_id, user_id), 0.0),
                    running=part.running,
                    waiting=part.waiting,
                )
                for user_id, part in sorted(parts[project_id].items(), key=lambda item: users.get(item[0], ""))
            ]
            if is_known
            else [],
        )
        (known if is_known else others).append(share)
    known.sort(key=lambda share: share.project or "")
    return SharesView(
        projects=[*known, *_combined(others)],
        gpus={model: shown(GPUS, has[f"{GPUS}/{model}"]) for model in models_of(has)},
        cpu_milli=has[CPU],
        memory_bytes=has[MEMORY],
    )


def _demands(work: UnitOfWork, has: Mapping[str, int]) -> dict[str, dict[str, _Demand]]:
    found: dict[str, dict[str, _Demand]] = {}
    for project_id, of_users in allocated_by_user(work.session).items():
        for user_id, amounts in of_users.items():
            found.setdefault(project_id, {})[user_id] = _Demand(dict(amounts), running=amounts[JOBS])
    models = models_of(has)
    for (project_id, user_id), (count, gangs) in demand_by_project(work.session).items():
        part = found.setdefault(project_id, {}).setdefault(user_id, _Demand())
        part.waiting += count
        for gang, times in gangs:
            _add_amounts(part.requested, _demand_of(gang, models, has), times)
    for project_id, user_id in read_usage(work.session):
        of_project = found.setdefault(project_id, {})
        if user_id:
            of_project.setdefault(user_id, _Demand())
    return found


def _add_amounts(allocated: dict[str, int], amounts: Mapping[str, int], times: int = 1) -> None:
    for key, amount in amounts.items():
        allocated[key] = allocated.get(key, 0) + times * amount


def _total(parts: Iterable[_Demand]) -> _Demand:
    whole = _Demand()
    for part in parts:
        whole.running += part.running
        whole.waiting += part.waiting
        _add_amounts(whole.allocated, part.allocated)
        _add_amounts(whole.requested, part.requested)
    return whole


def _demand_of(gang: Gang, models: list[str], has: Mapping[str, int]) -> dict[str, int]:
    """What the gang requests; if it accepts several GPU models, the most frequent one counts."""
    requested = {CPU: 0, MEMORY: 0, JOBS: 1}
    for role in gang.roles:
        requested[CPU] += role.replicas * role.request.cpu_milli
        requested[MEMORY] += role.replicas * role.request.memory_bytes
        milli = role.replicas * (1000 * role.request.gpu_count + role.request.gpu_milli)
        if not milli:
            continue
        requested[GPUS] = requested.get(GPUS, 0) + milli
        fitting = accepted_models(role.request.gpu_models, models) if role.request.gpu_models else tuple(models)
        if fitting:
            model = max(fitting, key=lambda each: has[f"{GPUS}/{each}"])
            requested[f"{GPUS}/{model}"] = requested.get(f"{GPUS}/{model}", 0) + milli
    return requested


def _dominant(allocated: Mapping[str, int], has: Mapping[str, int]) -> float:
    """The dominant share (DRF): the largest fraction used of CPU, memory, or a GPU model."""
    keys = [key for key in allocated if key in _DOMINANT_KEYS or "/" in key]
    return max((allocated[key] / has[key] for key in keys if has.get(key)), default=0.0)


def _gpus_by_model(allocated: Mapping[str, int]) -> dict[str, float]:
    return {
        key.partition("/")[2]: shown(key, amount) for key, amount in sorted(allocated.items()) if "/" in key and amount
    }


def _combined(others: list[ShareView]) -> list[ShareView]:
    if not others:
        return []
    gpus: dict[str, float] = {}
    for share in others:
        for model, count in share.gpus.items():
            gpus[model] = gpus.get(model, 0) + count
    return [
        ShareView(
            project=None,
            weight=sum(share.weight for share in others),
            allocated=min(1.0, sum(share.allocated for share in others)),
            wanted=min(1.0, sum(share.wanted for share in others)),
            entitlement=min(1.0, sum(share.entitlement for share in others)),
            usage=min(1.0, sum(share.usage or 0.0 for share in others)),
            gpus=gpus,
            cpus=sum(share.cpus for share in others),
            memory_bytes=sum(share.memory_bytes for share in others),
            running=sum(share.running for share in others),
            waiting=sum(share.waiting for share in others),
        )
    ]
