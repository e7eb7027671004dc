"""Jobs that hold resources, as the planner sees them: their run time, the cost of a stop, whether they are ending, and
whether they may get more replicas.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import func, select
from sqlalchemy.orm import Session
from trainmaster.spec import Grace

from core.db.repositories.nodes import is_holding, is_live
from core.db.tables import Attempt, Checkpoint, Job, Project, Replica, User
from core.domain.ids import AttemptId, JobId, NodeId
from core.domain.jobs.speed_curve import UNMEASURED
from core.domain.jobs.states import AttemptState, DesiredState, JobState, ReplicaState
from core.domain.sharing.resources import Gang
from scheduler.control.attempts.attempt_snapshot import Stop
from scheduler.control.attempts.backoff import restart_delay
from scheduler.control.attempts.completion_rules import DEADLINE_SLACK
from scheduler.control.attempts.decide import KILL_SLACK
from scheduler.control.planning.estimates import ENDLESS_S, HAS_CHECKPOINTS, IS_ENDLESS, Estimates
from scheduler.control.planning.node_cache import ReplicaHolding
from scheduler.control.planning.speeds import Speeds
from scheduler.planning.forecast.durations import JobTraits
from scheduler.planning.model import GrowingGang, RunningGang
from scheduler.planning.queue.shares import gpus_of

# An ending attempt without an end time of its own is expected to be gone after this.
_SOON: Final = timedelta(seconds=30)
# An overdue end is expected at any moment.
_OVERDUE: Final = timedelta(seconds=1)
# From SIGTERM to SIGKILL, in seconds.
_STOP_GRACE_S: Final[float] = Grace().stop
STOP_GRACE_S: Final = Job.spec["grace"]["stop"].as_float().label("stop_grace_s")
# The leaving part of an elastic gang is a gang of its own for the planner, which is stopping.
_LEAVING: Final = "~leaving"
_GROWS: Final = (AttemptState.STARTING.value, AttemptState.RUNNING.value)
_DEPARTED: Final = (ReplicaState.FAILED.value, ReplicaState.LOST.value, ReplicaState.STOPPED.value)


@dataclass(frozen=True, slots=True)
class LiveAttempt:
    """An attempt that has not ended, with its job."""

    job_id: JobId
    attempt_id: AttemptId
    user_id: str
    view: RunningGang


def running_rows(session: Session) -> Sequence[Any]:
    return session.execute(
        select(
            Job.id, Job.name, Job.priority, Job.shape, Job.max_run_time_s, Job.queued_at, Job.state, Job.desired_state,
            Job.attained_gpu_s, Job.run_s, Job.user_id, Job.spec["code"].as_string().label("code"),
            Job.spec["preemptible"].as_boolean().label("preemptible"),
            Project.name.label("project"), User.name.label("user"),
            Attempt.id.label("attempt_id"), Attempt.state.label("attempt_state"), Attempt.started_at,
            Attempt.stop, Attempt.decided_at, STOP_GRACE_S, IS_ENDLESS, HAS_CHECKPOINTS,
        )
        .join(Attempt, Attempt.job_id == Job.id)
        .join(Project, Project.id == Job.project_id)
        .join(User, User.id == Job.user_id)
        .where(is_live())
    ).all()  # fmt: skip


def load_running(
    session: Session,
    rows: Sequence[Any],
    gangs: Mapping[str, Gang],
    holdings: Mapping[str, tuple[ReplicaHolding, ...]],
    known: tuple[Estimates, Speeds],
    now: datetime,
) -> tuple[list[LiveAttempt], list[RunningGang]]:
    """One for each of ``rows``, and the leaving parts of elastic gangs. ``known``: of run times and speeds."""
    saved_at = _last_checkpoints(session)
    has_elastic = any(gang.elastic for gang in gangs.values())
    leavers = _leavers(session) if has_elastic else {}
    size_changed_at = _size_changes(session) if has_elastic else {}
    live, leaving = [], []
    for row in rows:
        gang = gangs[row.shape]
        holders = list(holdings.get(row.attempt_id, ()))
        view = _view(row, gang, holders, saved_at.get(row.attempt_id), known, now)
        if gang.elastic is not None:
            view = replace(view, size_changed_at=size_changed_at.get(row.attempt_id))
        leaving_replicas = leavers.get(row.attempt_id)
        if leaving_replicas and not view.is_stopping:
            view, parts = _split(view, holders, leaving_replicas, now)
            leaving += parts
        live.append(LiveAttempt(view.job_id, AttemptId(row.attempt_id), row.user_id, view))
    return live, leaving


def _view(
    row: Any,
    gang: Gang,
    holders: Sequence[ReplicaHolding],
    saved_at: datetime | None,
    known: tuple[Estimates, Speeds],
    now: datetime,
) -> RunningGang:
    estimates, speeds = known
    ran_s = _since(row.started_at, now)
    gpus = _gpus(gang, holders)
    is_stopping, ends_at = _ending(row, now)
    for_job = None if row.stop is None else Stop.from_json(row.stop).for_job
    limit_s = plannable_limit_s(row.max_run_time_s)
    if ends_at is None and limit_s is not None:
        ends_at = ends_at_last(row.started_at, limit_s, row.stop_grace_s, now)
    traits = JobTraits(row.project, row.user, row.name, row.code or "", row.shape)
    since = row.started_at if saved_at is None or row.started_at is None else max(saved_at, row.started_at)
    return RunningGang(
        JobId(row.id),
        row.name,
        row.project,
        row.priority,
        gang,
        tuple((holding.role, holding.node) for holding in holders),
        ends_at,
        tuple(holding.gpu_model for holding in holders),
        user=row.user,
        queued_at=row.queued_at,
        started_at=row.started_at,
        attained_gpu_s=row.attained_gpu_s + ran_s * gpus,
        lost_gpu_s=_since(since, now) * gpus,
        estimate=None
        if row.is_endless
        else estimates.of_running(row.attempt_id, traits, row.run_s + ran_s, limit_s, now),
        is_preemptible=row.preemptible is not False,
        is_stopping=is_stopping,
        stopping_for=None if for_job is None else JobId(for_job),
        indices=tuple(holding.index for holding in holders),
        earlier_s=row.run_s,
        is_endless=row.is_endless,
        speed=UNMEASURED if gang.elastic is None else speeds.of(JobId(row.id), row.project, row.user, row.name),
        is_resumable=row.has_checkpoints or estimates.is_resumable(traits),
    )


def plannable_limit_s(max_run_time_s: float | None) -> float | None:
    """``None`` for a limit that no calendar reaches."""
    return max_run_time_s if max_run_time_s is not None and 0 <= max_run_time_s < ENDLESS_S else None


def ends_at_last(
    started_at: datetime | None, max_run_time_s: float, stop_grace_s: float | None, now: datetime
) -> datetime:
    """When the place of an attempt with this limit is free at the latest, whatever its program does.

    Before its start that moves with the clock: its time has not begun, and nothing bounds the pull of an image.
    """
    return (started_at or now) + timedelta(seconds=max_run_time_s) + late_after_limit(stop_grace_s)


def late_after_limit(stop_grace_s: float | None) -> timedelta:
    """From the end of ``max_run_time`` until the executor removes the rest, as ``decide_attempt`` waits."""
    return DEADLINE_SLACK + timedelta(seconds=_STOP_GRACE_S if stop_grace_s is None else stop_grace_s) + KILL_SLACK


def _ending(row: Any, now: datetime) -> tuple[bool, datetime | None]:
    """Whether it is being ended, and when its place is expected to be free."""
    if row.stop is not None:
        stop = Stop.from_json(row.stop)
        return True, max(now + _OVERDUE, stop.at + (stop.grace if stop.grace is not None else _SOON))
    if (
        row.decided_at is not None
        or row.desired_state != DesiredState.RUN.value
        or row.state == JobState.CANCELLING.value
    ):
        return True, now + _SOON
    return False, None


def _since(at: datetime | None, now: datetime) -> float:
    return 0.0 if at is None else max(0.0, (now - at).total_seconds())


def _gpus(gang: Gang, holders: Iterable[ReplicaHolding]) -> float:
    """GPUs that the gang holds; 1 for a gang without GPUs."""
    if not any(role.request.gpu_count or role.request.gpu_milli for role in gang.roles):
        return 1.0
    milli = {role.role: 1000 * role.request.gpu_count + role.request.gpu_milli for role in gang.roles}
    return sum(milli.get(holding.role, 0) for holding in holders) / 1000 or gpus_of(gang)


def _split(
    view: RunningGang,
    holders: Sequence[ReplicaHolding],
    leaving_replicas: Mapping[tuple[str, int], str | None],
    now: datetime,
) -> tuple[RunningGang, list[RunningGang]]:
    """The remaining part of the gang, and a leaving part for each job that gets its place."""

    def part(of: Iterable[ReplicaHolding]) -> dict[str, Any]:
        these = tuple(of)
        return {
            "nodes": tuple((holding.role, holding.node) for holding in these),
            "gpu_models": tuple(holding.gpu_model for holding in these),
            "indices": tuple(holding.index for holding in these),
        }

    leaving = [
        replace(
            view,
            job_id=JobId(f"{view.job_id}{_LEAVING}{number or ''}"),
            expected_end=now + _SOON,
            is_stopping=True,
            is_part=True,
            stopping_for=None if for_job is None else JobId(for_job),
            is_preemptible=False,
            **part(
                holding
                for holding in holders
                if (holding.role, holding.index) in leaving_replicas
                and leaving_replicas[holding.role, holding.index] == for_job
            ),
        )
        for number, for_job in enumerate(sorted(set(leaving_replicas.values()), key=str))
    ]
    return replace(
        view, **part(holding for holding in holders if (holding.role, holding.index) not in leaving_replicas)
    ), leaving


def _last_checkpoints(session: Session) -> dict[str, datetime]:
    """When live attempts reported their newest checkpoint; without attempts that reported none."""
    live = select(Attempt.job_id).where(is_live(), Attempt.state == AttemptState.RUNNING.value)
    rows = session.execute(
        select(Checkpoint.attempt_id, func.max(Checkpoint.created_at))
        .where(Checkpoint.job_id.in_(live))
        .group_by(Checkpoint.attempt_id)
    )
    return {attempt_id: at for attempt_id, at in rows if at is not None}


def _size_changes(session: Session) -> dict[str, datetime]:
    """When a replica of each live attempt last started or ended."""
    rows = session.execute(
        select(Replica.attempt_id, func.max(Replica.started_at), func.max(Replica.ended_at))
        .join(Attempt, Attempt.id == Replica.attempt_id)
        .where(is_live())
        .group_by(Replica.attempt_id)
    )
    return {attempt_id: max(at for at in moments if at) for attempt_id, *moments in rows if any(moments)}


def _leavers(session: Session) -> dict[str, dict[tuple[str, int], str | None]]:
    """By attempt, the replicas that leave elastic gangs, each with the job that gets its place."""
    rows = session.execute(
        select(Replica.attempt_id, Replica.role, Replica.index.label("number"), Replica.removal).where(
            is_holding(), Replica.removal.is_not(None)
        )
    )
    found: dict[str, dict[tuple[str, int], str | None]] = {}
    for row in rows:
        if row.removal is not None:
            found.setdefault(row.attempt_id, {})[row.role, row.number] = row.removal.get("for_job")
    return found


def load_growing(
    session: Session, gangs: Mapping[str, Gang], now: datetime
) -> tuple[tuple[GrowingGang, ...], datetime | None]:
    """The elastic jobs below their maximum that may get another replica now, and when the next job may.

    Args:
        gangs: by shape, of all running jobs.
    """
    shapes = [shape for shape, gang in gangs.items() if gang.elastic is not None]
    if not shapes:
        return (), None
    rows = session.execute(
        select(
            Job.id, Job.priority, Job.queued_at, Job.shape,
            Replica.role, Replica.index.label("number"), Replica.state, Replica.generation, Replica.ended_at,
            Replica.node, Replica.gpu_model, Replica.memory_bytes, Replica.removal,
        )
        .join(Attempt, Attempt.job_id == Job.id)
        .join(Replica, Replica.attempt_id == Attempt.id)
        .where(
            Job.shape.in_(shapes),
            Job.state.in_([JobState.STARTING.value, JobState.RUNNING.value]),
            Job.desired_state == DesiredState.RUN.value,
            Attempt.state.in_(_GROWS),
            Attempt.stop.is_(None),
            Attempt.decided_at.is_(None),
        )
    ).all()  # fmt: skip
    by_job: defaultdict[str, list[Any]] = defaultdict(list)
    for row in rows:
        by_job[row.id].append(row)
    growing, dues = [], []
    for job_id, replicas in by_job.items():
        gang = gangs[replicas[0].shape]
        role = gang.elastic
        if role is None:
            continue
        role_rows = [row for row in replicas if row.role == role.role]
        if any(row.state == ReplicaState.SUCCEEDED.value for row in role_rows):
            continue  # it is about to end
        given_up = {row.number: row for row in role_rows if row.state in _DEPARTED and row.memory_bytes == 0}
        present = [row for row in role_rows if row.number not in given_up]
        lacking = sorted(set(range(role.most or 0)) - {row.number for row in present})
        due = {
            index: row.ended_at + restart_delay(row.generation)
            for index, row in given_up.items()
            if row.ended_at is not None
        }
        dues += [at for at in due.values() if at > now]
        free = tuple(index for index in lacking if index not in due or due[index] <= now)
        if free:
            placed = tuple((NodeId(row.node), row.gpu_model) for row in present if row.removal is None)
            growing.append(GrowingGang(JobId(job_id), replicas[0].priority, replicas[0].queued_at, gang, free, placed))
    return tuple(growing), min(dues, default=None)
