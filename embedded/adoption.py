"""Jobs that kept running while the platform was down: found, listed, and noted in their history."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from sqlalchemy import literal, select, update
from sqlalchemy.engine import Engine

from core.db.engine import make_engine, make_sessions, unit_of_work
from core.db.repositories.events import append_event
from core.db.tables import Attempt, Job, Lease
from core.domain.errors import TrainmasterError
from core.domain.jobs.states import AttemptState
from core.settings import Settings

# The scheduler reconciles every live attempt soon after its start; `up` does not wait for all of a thousand.
WITHIN_S: Final = 3.0
_LONG_AGO: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LOOK_EVERY_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class RunningAttempt:
    """An attempt that was running when the platform stopped."""

    attempt_id: str
    job_id: str
    project_id: str
    name: str
    number: int


def running_before(settings: Settings) -> list[RunningAttempt]:
    """The attempts that ran when the last platform stopped; empty if the database is unreadable.

    The next scheduler reconciles these first; otherwise healthy attempts are reconciled rarely.
    """
    query = (
        select(Attempt.id, Job.id, Job.project_id, Job.name, Attempt.number)
        .join(Job, Job.id == Attempt.job_id)
        .where(Attempt.state == AttemptState.RUNNING.value)
        .order_by(Job.created_at)
    )
    engine = make_engine(settings.resolved_database_url)
    try:
        with unit_of_work(make_sessions(engine)) as session:
            attempts = [RunningAttempt(*row) for row in session.execute(query)]
            looks = [f"attempt:{attempt.attempt_id}" for attempt in attempts]
            session.execute(update(Lease).where(Lease.name.in_(looks)).values(expires_at=_LONG_AGO))
            return attempts
    except TrainmasterError:
        return []
    finally:
        engine.dispose()


def adopt(settings: Settings, before: Sequence[RunningAttempt], *, since: datetime) -> list[str]:
    """The names of the jobs of ``before`` that the scheduler has reconciled after ``since`` and found running; adds an
    event.

    Waits for the reconcile passes, at most ``WITHIN_S``.
    """
    if not before:
        return []
    engine = make_engine(settings.resolved_database_url)
    try:
        deadline_s = time.monotonic() + WITHIN_S
        while True:
            states = _looked_at(engine, [attempt.attempt_id for attempt in before], since)
            if len(states) == len(before) or time.monotonic() > deadline_s:
                break
            time.sleep(_LOOK_EVERY_S)  # noqa: TID251 (polls for the reconcile passes, with a deadline)
        adopted = [attempt for attempt in before if states.get(attempt.attempt_id) == AttemptState.RUNNING.value]
        with unit_of_work(make_sessions(engine)) as session:
            for attempt in adopted:
                append_event(
                    session,
                    at=datetime.now(UTC),  # noqa: TID251 (the edge of the process)
                    kind="attempt.adopted",
                    actor="scheduler",
                    project_id=attempt.project_id,
                    job_id=attempt.job_id,
                    attempt_id=attempt.attempt_id,
                    reason=f"The platform came back and found attempt {attempt.number} running.",
                )
        return [attempt.name for attempt in adopted]
    except TrainmasterError:
        return []  # informative only; the platform works
    finally:
        engine.dispose()


def _looked_at(engine: Engine, attempts: Sequence[str], since: datetime) -> dict[str, str]:
    """States of the attempts reconciled since then; a released lease expires at the end of the pass."""
    query = (
        select(Attempt.id, Attempt.state)
        .join(Lease, Lease.name == literal("attempt:") + Attempt.id)
        .where(Attempt.id.in_(attempts), Lease.expires_at >= since)
    )
    with unit_of_work(make_sessions(engine), read_only=True) as session:
        return {row[0]: row[1] for row in session.execute(query)}
