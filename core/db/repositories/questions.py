"""Questions to the planner. The asking process polls for the answer; an answer that is not fetched expires.

Kinds: what would become of a job (``forecast``), why it waited at a moment (``explanation``), how past jobs would have
fared under another policy (``simulation``), what a study's trials show (``study``). An answer is a mapping; if the
question cannot be answered, it has ``error``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final

from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session

from core.db.tables import Question
from core.domain.errors import Unavailable

# The asking process waits at most this long.
PATIENCE: Final = timedelta(seconds=20)
# A simulation of a month takes minutes, and its result stays for later readers.
_LONG_PATIENCE: Final = timedelta(hours=1)
_OPEN: Final = 64
_OPEN_PER_USER: Final = 4
_SIMULATIONS_PER_USER: Final = 2
ERROR: Final = "error"
RUNNING: Final = "running"


class QuestionKind(StrEnum):
    FORECAST = "forecast"
    EXPLANATION = "explanation"
    SIMULATION = "simulation"
    STUDY = "study"

    @property
    def patience(self) -> timedelta:
        return _LONG_PATIENCE if self is QuestionKind.SIMULATION else PATIENCE


@dataclass(frozen=True, slots=True)
class ForecastQuestion:
    """A waiting job, or a hypothetical one: then ``job_id`` is empty. ``gang``: ``Gang.to_json``.

    ``code``: the archive's digest, or the command. A changed cluster: ``more_nodes`` like the node ``like``, and
    without the nodes ``without``.
    """

    job_id: str
    name: str
    project: str
    user: str
    priority: int
    queued_at: datetime
    gang: Mapping[str, Any]
    max_run_time_s: float | None
    code: str = ""
    more_nodes: int = 0
    like: str | None = None
    without: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "queued_at": self.queued_at.isoformat(), "without": list(self.without)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ForecastQuestion:
        queued_at, without = datetime.fromisoformat(data["queued_at"]), tuple(data["without"])
        return cls(**{**data, "queued_at": queued_at, "without": without})


def put(
    session: Session,
    question_id: str,
    user_id: str,
    arguments: Mapping[str, Any],
    now: datetime,
    kind: QuestionKind = QuestionKind.FORECAST,
) -> None:
    """Submit a question.

    Raises:
        Unavailable: too many open questions of this user, or in all.
    """
    rows = session.execute(
        select(Question.user_id, Question.answer).where(Question.expires_at > now, Question.kind == kind.value)
    )
    waiting = [row.user_id for row in rows if row.answer is None or RUNNING in row.answer]
    most = _SIMULATIONS_PER_USER if kind is QuestionKind.SIMULATION else _OPEN_PER_USER
    if waiting.count(user_id) >= most or len(waiting) >= _OPEN:
        raise Unavailable("The planner is asked too much at once; ask again in a moment.", retry_after_s=1.0)
    session.add(
        Question(
            id=question_id,
            user_id=user_id,
            created_at=now,
            kind=kind.value,
            arguments=dict(arguments),
            expires_at=now + kind.patience,
        )
    )


def answer_to(session: Session, question_id: str) -> Mapping[str, Any] | None:
    """``None``: no answer yet; ``{"running": …}``: a scheduler works on it.

    Raises:
        LookupError: the question has expired.
    """
    row = session.execute(select(Question.answer).where(Question.id == question_id)).one_or_none()
    if row is None:
        raise LookupError(question_id)
    answer: Mapping[str, Any] | None = row.answer
    return answer


def drop(session: Session, question_id: str) -> None:
    session.execute(delete(Question).where(Question.id == question_id))


@dataclass(frozen=True, slots=True)
class OpenQuestion:
    id: str
    kind: QuestionKind
    arguments: Mapping[str, Any]


def unanswered(
    session: Session,
    now: datetime,
    limit: int,
    kinds: Collection[QuestionKind] = (QuestionKind.FORECAST, QuestionKind.EXPLANATION, QuestionKind.STUDY),
) -> Sequence[OpenQuestion]:
    """The oldest unexpired questions without an answer."""
    rows = session.execute(
        select(Question.id, Question.kind, Question.arguments)
        .where(
            Question.answer.is_(None),
            Question.expires_at > now,
            Question.kind.in_([kind.value for kind in kinds]),
        )
        .order_by(Question.created_at, Question.id)
        .limit(limit)
    )
    return [OpenQuestion(row.id, QuestionKind(row.kind), row.arguments) for row in rows]


def answer(session: Session, answers: Mapping[str, Mapping[str, Any]], now: datetime) -> None:
    """Write the answers by the questions' ids, and delete expired questions."""
    for question_id, content in answers.items():
        session.execute(update(Question).where(Question.id == question_id).values(answer=dict(content)))
    session.execute(delete(Question).where(Question.expires_at < now - PATIENCE))
