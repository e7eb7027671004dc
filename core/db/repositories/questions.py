"""Questions to the planner: what would become of a job now. Who asks waits; an answer that nobody fetches is dropped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import delete, func, select, update
from sqlalchemy.orm import Session

from core.db.tables import Question
from core.domain.errors import Unavailable

# Who asked waits no longer than this for an answer.
PATIENCE: Final = timedelta(seconds=8)
_OPEN: Final = 64
_OPEN_OF_ONE: Final = 4


@dataclass(frozen=True, slots=True)
class Ask:
    """A job that waits, or that is only thought of: then ``job_id`` is empty. ``gang``: ``Gang.to_json``."""

    job_id: str
    name: str
    project: str
    user: str
    priority: int
    queued_at: datetime
    gang: Mapping[str, Any]
    max_run_time_s: float | None


def put(session: Session, question_id: str, user_id: str, ask: Ask, now: datetime) -> None:
    """Ask.

    Raises:
        Unavailable: this user, or everybody together, waits for too many answers already.
    """
    counts = select(func.count(), func.count().filter(Question.user_id == user_id))
    everybodys, own = session.execute(counts.where(Question.asked_at > now - PATIENCE)).one()
    if own >= _OPEN_OF_ONE or everybodys >= _OPEN:
        raise Unavailable("The planner is asked too much at once; ask again in a moment.", retry_after_s=1.0)
    told = {name: getattr(ask, name) for name in Ask.__slots__} | {"queued_at": ask.queued_at.isoformat()}
    session.add(Question(id=question_id, user_id=user_id, asked_at=now, ask=told))


def answer_to(session: Session, question_id: str) -> Mapping[str, Any] | None:
    return session.execute(select(Question.answer).where(Question.id == question_id)).scalar_one_or_none()


def drop(session: Session, question_id: str) -> None:
    session.execute(delete(Question).where(Question.id == question_id))


def unanswered(session: Session, now: datetime, limit: int) -> Sequence[tuple[str, Ask]]:
    """The oldest of those for whose answers somebody still waits."""
    rows = session.execute(
        select(Question.id, Question.ask)
        .where(Question.answer.is_(None), Question.asked_at > now - PATIENCE)
        .order_by(Question.asked_at)
        .limit(limit)
    )
    return [(row.id, Ask(**{**row.ask, "queued_at": datetime.fromisoformat(row.ask["queued_at"])})) for row in rows]


def answer(session: Session, answers: Mapping[str, Mapping[str, Any]], now: datetime) -> None:
    """Write the answers by the questions' ids, and drop what is left of those who went away."""
    for question_id, told in answers.items():
        session.execute(update(Question).where(Question.id == question_id).values(answer=dict(told)))
    session.execute(delete(Question).where(Question.asked_at < now - 2 * PATIENCE))
