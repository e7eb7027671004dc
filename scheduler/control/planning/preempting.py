"""Applying preemptions of the plan: attempts are stopped, elastic gangs shrink.

Only the request is written here, compared with what the plan saw; the reconcile of the attempt carries it out. All
preemptions for one waiting job are written in one transaction: were half of them refused, the other half would be in
vain.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from core.db.tables import Attempt, Job, Replica
from core.domain.errors import StaleWrite
from core.domain.ids import AttemptId, JobId
from core.domain.jobs.states import AttemptState, DesiredState, JobState, ReplicaState
from scheduler.control.attempts.attempt_snapshot import Stop, StopCause
from scheduler.control.attempts.storage.statement_batch import lock_attempts
from scheduler.control.journal import Journal
from scheduler.control.planning.placing import change_attempt
from scheduler.planning.model import Plan, Preempt, Shrink

_LIVE: Final = tuple(state.value for state in AttemptState if state.is_live)
_RUNS: Final = (JobState.STARTING.value, JobState.RUNNING.value)
_OVER: Final = tuple(state.value for state in ReplicaState if state.is_terminal)


@dataclass(frozen=True, slots=True)
class PreemptionClaim:
    """All preemptions for one waiting job; ``None``: for no job, as where a booking begins."""

    for_job: JobId | None
    preempts: tuple[Preempt, ...]
    shrinks: tuple[Shrink, ...]


def claims_of(plan: Plan) -> tuple[PreemptionClaim, ...]:
    """The plan's preemptions by waiting job, in their order. Those for no job are separate."""
    jobs: dict[JobId, tuple[list[Preempt], list[Shrink]]] = {}
    alone: list[PreemptionClaim] = []
    for preempt in plan.preempts:
        if preempt.for_job is None:
            alone.append(PreemptionClaim(None, (preempt,), ()))
        else:
            jobs.setdefault(preempt.for_job, ([], []))[0].append(preempt)
    for shrink in plan.shrinks:
        if shrink.for_job is None:
            alone.append(PreemptionClaim(None, (), (shrink,)))
        else:
            jobs.setdefault(shrink.for_job, ([], []))[1].append(shrink)
    return (
        *alone,
        *(PreemptionClaim(job, tuple(preempts), tuple(shrinks)) for job, (preempts, shrinks) in jobs.items()),
    )


def preempt_for(
    session: Session,
    claim: PreemptionClaim,
    *,
    generations: Mapping[JobId, int],
    attempts: Mapping[JobId, AttemptId],
    grace: timedelta,
    now: datetime,
) -> list[AttemptId]:
    """Write that these attempts end or shrink. The caller holds the tick's lease. Harmless to repeat.

    Args:
        generations: of waiting jobs, as the plan saw them.
        attempts: the live attempt of each running job, as the plan saw it.

    Returns:
        The attempts to reconcile now; not those of which all had been written before.

    Raises:
        StaleWrite: a job has changed since the plan saw it; nothing is written.
    """
    jobs = [item.job_id for item in claim.preempts] + [item.job_id for item in claim.shrinks]
    victims = [attempts.get(job_id) for job_id in jobs]
    lock_attempts(session, {attempt_id for attempt_id in victims if attempt_id is not None})
    if claim.for_job is not None:
        _note_room_made(session, claim.for_job, generations.get(claim.for_job), now)
    found = [_preempt(session, item, attempts.get(item.job_id), grace, now) for item in claim.preempts]
    found += [_shrink(session, item, attempts.get(item.job_id), now) for item in claim.shrinks]
    return [attempt_id for attempt_id in found if attempt_id is not None]


def _note_room_made(session: Session, job_id: JobId, generation: int | None, now: datetime) -> None:
    """Write since when others make room for the job, unless that is written."""
    waits = session.execute(
        select(Job.generation, Job.preempting_since).where(
            Job.id == job_id, Job.state == JobState.QUEUED.value, Job.desired_state == DesiredState.RUN.value
        )
    ).one_or_none()
    if waits is not None and waits.generation == generation and waits.preempting_since is not None:
        return
    hit = session.execute(
        update(Job)
        .where(
            Job.id == job_id,
            Job.state == JobState.QUEUED.value,
            Job.desired_state == DesiredState.RUN.value,
            Job.generation == generation,
        )
        .values(preempting_since=now, generation=Job.generation + 1)
        .execution_options(synchronize_session=False)
    )
    if hit.rowcount != 1:  # type: ignore[attr-defined]
        raise StaleWrite(f"job {job_id} does not wait any more, for which others were to give their places")


def _preempt(
    session: Session, preempt: Preempt, attempt_id: AttemptId | None, grace: timedelta, now: datetime
) -> AttemptId | None:
    stop = Stop(
        StopCause.PREEMPT,
        _whole(preempt.sentence),
        now,
        grace=grace,
        code=preempt.code.value,
        for_job=preempt.for_job,
    )
    project_id = _project(session, preempt.job_id)
    hit = change_attempt(
        session,
        Attempt.id == attempt_id,
        Attempt.job_id == preempt.job_id,
        Attempt.state.in_(_LIVE),
        stop=stop.to_json(),
    )
    if hit is None or project_id is None or attempt_id is None:
        raise StaleWrite(f"job {preempt.job_id} has moved since the plan was made")
    session.execute(
        update(Job).where(Job.id == preempt.job_id).values(updated_at=now).execution_options(synchronize_session=False)
    )
    Journal(session, project_id, preempt.job_id, attempt_id).add(
        "attempt.stopping",
        stop.sentence,
        at=now,
        data={
            "cause": stop.cause.value,
            "code": stop.code,
            "for_job": stop.for_job,
            "grace_s": grace.total_seconds(),
            "attempt": hit.number,
        },
    )
    return attempt_id


def _shrink(session: Session, shrink: Shrink, attempt_id: AttemptId | None, now: datetime) -> AttemptId | None:
    project_id = _project(session, shrink.job_id)
    members = session.execute(
        select(Replica.index.label("number"), Replica.removal).where(
            Replica.attempt_id == attempt_id,
            Replica.role == shrink.role,
            Replica.memory_bytes > 0,
            Replica.state.not_in(_OVER),
        )
    ).all()
    staying = {row.number for row in members if row.removal is None}
    leaving = {row.number for row in members if row.removal is not None}
    wanted = set(shrink.indices) - leaving
    if project_id is None or attempt_id is None or not wanted <= staying:
        raise StaleWrite(f"job {shrink.job_id} has moved since the plan was made")
    if not wanted:
        return None  # written before
    least = session.execute(select(Job.gang).where(Job.id == shrink.job_id)).scalar_one()
    if len(staying - wanted) < _least(least, shrink.role):
        raise StaleWrite(f"job {shrink.job_id} has too few replicas to give any")
    hit = change_attempt(session, Attempt.id == attempt_id, Attempt.state == AttemptState.RUNNING.value)
    if hit is None:
        raise StaleWrite(f"job {shrink.job_id} has moved since the plan was made")
    session.execute(
        update(Replica)
        .where(Replica.attempt_id == attempt_id, Replica.role == shrink.role, Replica.index.in_(sorted(wanted)))
        .values(removal={"sentence": _whole(shrink.sentence), "for_job": shrink.for_job})
        .execution_options(synchronize_session=False)
    )
    names = [f"{shrink.role}-{number}" for number in sorted(wanted)]
    Journal(session, project_id, shrink.job_id, attempt_id).add(
        "attempt.shrinking",
        _whole(shrink.sentence),
        at=now,
        data={"attempt": hit.number, "replicas": names[:100], "count": len(names), "for_job": shrink.for_job},
    )
    return attempt_id


def _project(session: Session, job_id: JobId) -> str | None:
    """The project of a job that runs and is wanted to; a request of its user comes first."""
    return session.execute(
        select(Job.project_id).where(
            Job.id == job_id, Job.state.in_(_RUNS), Job.desired_state == DesiredState.RUN.value
        )
    ).scalar_one_or_none()


def _whole(phrase: str) -> str:
    """The planner's phrase as a sentence."""
    return f"{phrase[:1].upper()}{phrase[1:].rstrip('.')}."


def _least(gang: Mapping[str, Sequence[Sequence[object]]], role: str) -> int:
    return max((int(str(item[1])) for item in gang["roles"] if item[0] == role), default=0)
