"""Elastic jobs below their maximum: candidates to which the planner may give more replicas."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from sqlalchemy import select
from sqlalchemy.orm import Session

from core.db.tables import Attempt, Job, Replica
from core.domain.ids import JobId, NodeId
from core.domain.jobs.states import AttemptState, DesiredState, JobState, ReplicaState
from core.domain.sharing.resources import Gang
from scheduler.control.attempts.backoff import restart_delay
from scheduler.planning.model import GrowingGang

_GROWS: Final = (AttemptState.STARTING.value, AttemptState.RUNNING.value)
_GONE: Final = (ReplicaState.FAILED.value, ReplicaState.LOST.value, ReplicaState.STOPPED.value)


def load_growing(
    session: Session, gangs: Mapping[str, Gang], now: datetime
) -> tuple[tuple[GrowingGang, ...], datetime | None]:
    """The jobs that may get another replica now, and when the next job may.

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
        mine = [row for row in replicas if row.role == role.role]
        if any(row.state == ReplicaState.SUCCEEDED.value for row in mine):
            continue  # it is about to end
        given_up = {row.number: row for row in mine if row.state in _GONE and row.memory_bytes == 0}
        present = [row for row in mine if row.number not in given_up]
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
