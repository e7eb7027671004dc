"""What a gang that is being started waits for, told at its job: nobody looks at replicas to learn why nothing runs."""

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

# What passes within it is how every replica starts.
STARTUP_QUIET_TIME: Final = timedelta(seconds=5)
_CODE: Final = "starting"
_CHARS: Final = 2000
_NUMBERS: Final = re.compile(r"\d+")


def startup_status(members: Iterable[GangMember], seen: Sequence[Observation]) -> str:
    """The first replica, by rank, that says what it waits for, and what it says; empty: none does."""
    shown = {(o.key.role, o.key.index, o.key.generation): o for o in seen}
    for member in members:
        one = shown.get((member.role, member.index, member.generation))
        if one is not None and one.phase is Phase.PENDING and one.detail:
            return f"{member.name}: {one.detail}"[:_CHARS]
        if one is None and member.state is ReplicaState.PENDING and member.detail:
            return f"{member.name}: {member.detail}"[:_CHARS]
    return ""


def write_startup_status(session: Session, rows: AttemptRows, sentence: str, now: datetime) -> None:
    """Write it at the job, unless it stands there. The caller has checked the lease in this transaction.

    The history gets a line when there is another reason, not when only its numbers have moved, as a pull's do.
    """
    job = rows.job
    told = session.execute(select(Job.wait_reason).where(Job.id == job.id)).scalar_one() or {}
    before = str(told.get("sentence", ""))
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
