"""Transitions of jobs outside of the reconcile of an attempt: of waiting jobs, which need no executor, and requests to
cancel any job.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import structlog
from sqlalchemy import null, select, update
from sqlalchemy.orm import Session

from core.db import leases
from core.db.engine import unit_of_work
from core.db.repositories.jobs import live_attempt_id
from core.db.tables import Job
from core.domain.errors import StaleWrite
from core.domain.ids import JobId
from core.domain.jobs.exits import ExitKind
from core.domain.jobs.lifecycle import Effect, JobEvent, advance
from core.domain.jobs.states import DesiredState, JobState
from core.wakeups import TOPIC_RECONCILE, TOPIC_TICK
from scheduler.control import fence
from scheduler.control.context import ControlContext
from scheduler.control.journal import Journal

log = structlog.get_logger(__name__)


def cancel_job(session: Session, job_id: str, code: str, sentence: str, now: datetime) -> list[tuple[str, str]]:
    """Cancel the job; a queued one ends at once. Harmless when it has ended, or is being cancelled.

    Args:
        code: why, for programs: ``stopped_early``, ``study_stopped`` or ``serving``.

    Returns:
        The wake-ups to send after the commit.

    Raises:
        StaleWrite: the job has moved at the same moment.
    """
    job = session.execute(
        select(Job.state, Job.desired_state, Job.generation, Job.project_id).where(Job.id == job_id)
    ).one_or_none()
    if job is None or JobState(job.state).is_terminal or job.desired_state == DesiredState.CANCEL:
        return []
    state = JobState(job.state)
    values = {"desired_state": DesiredState.CANCEL.value, "generation": job.generation + 1, "updated_at": now}
    kind = "job.cancel_requested"
    if state in (JobState.QUEUED, JobState.PAUSED):
        move = advance(state, JobEvent.CANCEL)
        kind = move.kind
        values |= {
            "state": move.state.value,
            "finished_at": now,
            "wait_reason": null(),
            "not_before": None,
            "exit": {"kind": "cancelled", "sentence": sentence},
        }
    result = session.execute(
        update(Job)
        .where(Job.id == job_id, Job.generation == job.generation)
        .values(**values)
        .execution_options(synchronize_session=False)
    )
    if result.rowcount != 1:  # type: ignore[attr-defined]
        raise StaleWrite("the trial's job has moved since it was read")
    Journal(session, job.project_id, job_id).add(kind, sentence, at=now, data={"code": code})
    attempt_id = live_attempt_id(session, job_id)
    return [(TOPIC_RECONCILE, attempt_id)] if attempt_id is not None else [(TOPIC_TICK, "")]


def move_queued(
    session: Session,
    job_id: JobId,
    event: JobEvent,
    reason: str,
    now: datetime,
    *,
    exit_: Mapping[str, Any] | None = None,
) -> None:
    """Move a queued job by ``event``, with an event in its history.

    Raises:
        StaleWrite: it is not queued any more.
    """
    move = advance(JobState.QUEUED, event)
    values: dict[str, Any] = {"state": move.state.value, "generation": Job.generation + 1, "updated_at": now}
    if Effect.STAMP_FINISHED in move.effects:
        values["finished_at"] = now
    if Effect.CLEAR_WAIT in move.effects:
        values |= {"wait_reason": null(), "not_before": None}
    if move.state.is_terminal:
        values["exit"] = dict(exit_) if exit_ is not None else {"kind": "cancelled", "sentence": reason}
    result = session.execute(
        update(Job)
        .where(Job.id == job_id, Job.state == JobState.QUEUED.value)
        .values(**values)
        .execution_options(synchronize_session=False)
    )
    if result.rowcount != 1:  # type: ignore[attr-defined]
        raise StaleWrite("the job does not wait any more")
    project_id = session.execute(select(Job.project_id).where(Job.id == job_id)).scalar_one()
    Journal(session, project_id, job_id).add(move.kind, reason, at=now)


def expire_waiting(control: ControlContext) -> int:
    """End the jobs that waited longer than their ``max_wait`` for their first start; returns how many."""
    now = control.clock()
    limit = Job.spec["max_wait"].as_float()
    with unit_of_work(control.sessions, read_only=True) as session:
        rows = session.execute(
            select(Job.id, Job.queued_at, limit.label("max_wait")).where(
                Job.state == JobState.QUEUED.value, Job.started_at.is_(None), limit.is_not(None)
            )
        ).all()
    late_jobs = [row for row in rows if row.queued_at + timedelta(seconds=row.max_wait) <= now]
    if not late_jobs:
        return 0
    expired = 0
    with fence.leased(control, leases.TICK) as lease:
        if lease is None:
            return 0
        for row in late_jobs:
            sentence = f"It waited longer than max_wait ({row.max_wait:g} s) for its start; raise it, or ask for less."
            exit_ = {"kind": ExitKind.DEADLINE.value, "sentence": sentence}
            try:
                with lease.fenced() as session:
                    move_queued(session, JobId(row.id), JobEvent.EXPIRE, sentence, control.clock(), exit_=exit_)
            except StaleWrite:
                continue  # it starts at this moment
            expired += 1
            log.info("job.expired", job=row.id)
    if expired:
        control.wakeup.notify(TOPIC_TICK)
    return expired
