"""Cancelling a trial's or a serving replica's job, in the caller's transaction."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import null, select, update
from sqlalchemy.orm import Session

from core.db.repositories.attempts import live_attempt_id
from core.db.tables import Job
from core.domain.errors import StaleWrite
from core.domain.jobs.lifecycle import JobEvent, advance
from core.domain.jobs.states import DesiredState, JobState
from core.wakeups import TOPIC_RECONCILE, TOPIC_TICK
from scheduler.control.journal import Journal


def cancel_job(session: Session, job_id: str, code: str, sentence: str, now: datetime) -> list[tuple[str, str]]:
    """Cancel the job; a queued one ends at once. Harmless when it has ended, or is being cancelled.

    Args:
        code: why, for programs: ``stopped_early``, ``study_stopped`` or ``serving``.

    Returns:
        The wake-ups to send after the commit.

    Raises:
        StaleWrite: the job has moved at the same moment.
    """
    found = session.execute(
        select(Job.state, Job.desired_state, Job.generation, Job.project_id).where(Job.id == job_id)
    ).one_or_none()
    if found is None or JobState(found.state).is_terminal or found.desired_state == DesiredState.CANCEL:
        return []
    state = JobState(found.state)
    values = {"desired_state": DesiredState.CANCEL.value, "generation": found.generation + 1, "updated_at": now}
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
    hit = session.execute(
        update(Job)
        .where(Job.id == job_id, Job.generation == found.generation)
        .values(**values)
        .execution_options(synchronize_session=False)
    )
    if hit.rowcount != 1:  # type: ignore[attr-defined]
        raise StaleWrite("the trial's job has moved since it was read")
    Journal(session, found.project_id, job_id).add(kind, sentence, at=now, data={"code": code})
    live = live_attempt_id(session, job_id)
    return [(TOPIC_RECONCILE, live)] if live is not None else [(TOPIC_TICK, "")]
