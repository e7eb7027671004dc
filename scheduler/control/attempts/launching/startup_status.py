"""The start-up status of a gang, written at its job, so that users need not look at replicas to see why it waits."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from core.db.tables import Job
from core.domain.jobs.states import JobState, ReplicaState
from executors.base import Observation, Phase
from scheduler.control.attempts.attempt_snapshot import GangMember
from scheduler.control.attempts.storage.attempt_loader import AttemptRows
from scheduler.control.journal import EXECUTOR, Journal

# Every start waits for so long.
STARTUP_QUIET_TIME: Final = timedelta(seconds=5)
_CODE: Final = "starting"
_CHARS: Final = 2000
_NUMBERS: Final = re.compile(r"\d+")


def startup_status(members: Iterable[GangMember], observations: Sequence[Observation]) -> str:
    """The detail of the first replica, by rank, that waits for something; empty: none does."""
    shown = {(o.key.role, o.key.index, o.key.generation): o for o in observations}
    for member in members:
        observation = shown.get((member.role, member.index, member.generation))
        if observation is not None and observation.phase is Phase.PENDING and observation.detail:
            return f"{member.name}: {observation.detail}"[:_CHARS]
        if observation is None and member.state is ReplicaState.PENDING and member.detail:
            return f"{member.name}: {member.detail}"[:_CHARS]
    return ""


def write_startup_status(session: Session, rows: AttemptRows, sentence: str, now: datetime) -> None:
    """Write it at the job, unless it is there already. The caller has checked the lease in this transaction.

    The history gets an event for a new reason, not when only numbers in it change, as those of an image pull do.
    """
    job = rows.job
    current = session.execute(select(Job.wait_reason).where(Job.id == job.id)).scalar_one() or {}
    before = str(current.get("sentence", ""))
    if before == sentence:
        return
    session.execute(
        update(Job)
        .where(Job.id == job.id, Job.state == JobState.STARTING.value)
        .values(wait_reason={"code": _CODE, "sentence": sentence, "numbers": {}}, updated_at=now)
        .execution_options(synchronize_session=False)
    )
    if _NUMBERS.sub("", before) != _NUMBERS.sub("", sentence):
        Journal(session, job.project_id, job.id, rows.attempt.id).add(
            "attempt.waiting", sentence, at=now, actor=EXECUTOR
        )
