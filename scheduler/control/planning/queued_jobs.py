"""Transitions of queued jobs, which have no attempt and need no executor."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import null, select, update
from sqlalchemy.orm import Session

from core.db.tables import Job
from core.domain.errors import StaleWrite
from core.domain.ids import JobId
from core.domain.jobs.lifecycle import Effect, JobEvent, advance
from core.domain.jobs.states import JobState
from scheduler.control.journal import Journal


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
    hit = session.execute(
        update(Job)
        .where(Job.id == job_id, Job.state == JobState.QUEUED.value)
        .values(**values)
        .execution_options(synchronize_session=False)
    )
    if hit.rowcount != 1:  # type: ignore[attr-defined]
        raise StaleWrite("the job does not wait any more")
    project_id = session.execute(select(Job.project_id).where(Job.id == job_id)).scalar_one()
    Journal(session, project_id, job_id).add(move.kind, reason, at=now)
