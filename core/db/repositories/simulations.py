"""Simulations that are asked for, and who works on each: so that one whose scheduler died is taken up by the next.

They are questions of a kind of their own (``questions``). While one is worked on its answer is ``{"running": {...}}`` with
``by`` (whose it is), ``since``, ``seen`` (when that one last said so), ``tries`` (how often it was begun) and ``doing``, a sentence.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from core.db.repositories.questions import RUNNING, QuestionKind
from core.db.tables import Question

# Who works on one says so this often, in seconds; whoever has been silent for ``LOST_AFTER`` is gone.
SEEN_EVERY_S: Final = 2.0
LOST_AFTER: Final = timedelta(seconds=15)


@dataclass(frozen=True, slots=True)
class SimulationClaim:
    """One that is being worked on. ``tries``: the how manieth time; with ``holder`` it is the fence against an earlier one."""

    id: str
    arguments: Mapping[str, Any]
    holder: str
    tries: int
    since: datetime


def claim_next(
    session: Session, holder: str, now: datetime, in_progress: Collection[str] = ()
) -> SimulationClaim | None:
    """Take the oldest that nobody works on: not begun, left by one that is silent, or by an earlier life of ``holder``.

    Args:
        in_hand: those that this process works on.
    """
    rows = session.execute(
        select(Question.id, Question.arguments, Question.answer)
        .where(
            Question.kind == QuestionKind.SIMULATION.value, Question.expires_at > now, Question.id.not_in(in_progress)
        )
        .order_by(Question.created_at, Question.id)
        .with_for_update(skip_locked=True)
    ).all()
    for row in rows:
        running = None if row.answer is None else row.answer.get(RUNNING)
        if row.answer is not None and (running is None or not _is_left(running, holder, now)):
            continue
        claim = SimulationClaim(
            row.id, row.arguments, holder, 1 if running is None else running.get("tries", 1) + 1, now
        )
        _write(session, claim, {RUNNING: _progress(claim, now, "begins")}, now)
        return claim
    return None


@dataclass(frozen=True, slots=True)
class SimulationStatus:
    """How one stands. ``running``: who works on it; ``answer``: the result; ``before``: how many were asked for earlier and are not done."""

    created_at: datetime
    running: Mapping[str, Any] | None
    answer: Mapping[str, Any] | None
    before: int


def status_of(session: Session, simulation_id: str, user_id: str, now: datetime) -> SimulationStatus:
    """How it stands.

    Raises:
        LookupError: nobody asks for it any more, or another user does.
    """
    found = session.get(Question, simulation_id)
    if found is None or found.user_id != user_id or found.kind != QuestionKind.SIMULATION.value:
        raise LookupError(simulation_id)
    if found.answer is not None:
        running = found.answer.get(RUNNING)
        return SimulationStatus(found.created_at, running, None if running is not None else found.answer, 0)
    others = session.scalars(
        select(Question.answer).where(
            Question.kind == QuestionKind.SIMULATION.value,
            Question.expires_at > now,
            Question.created_at < found.created_at,
        )
    )
    return SimulationStatus(found.created_at, None, None, sum(answer is None or RUNNING in answer for answer in others))


def is_lost(running: Mapping[str, Any], now: datetime) -> bool:
    """Whether whoever works on it has been silent for too long."""
    return now - datetime.fromisoformat(running.get("seen", running["since"])) > LOST_AFTER


def keep(session: Session, claim: SimulationClaim, doing: str, now: datetime) -> bool:
    """Say that it is still worked on; ``False``: somebody else has taken it, or nobody asks for it any more."""
    return _is_mine(session, claim) and _write(session, claim, {RUNNING: _progress(claim, now, doing)}, now)


def finish(session: Session, claim: SimulationClaim, answer: Mapping[str, Any], now: datetime) -> bool:
    """Write the result, which stays for an hour; ``False`` as for :func:`keep`."""
    return _is_mine(session, claim) and _write(session, claim, answer, now)


def give_back(session: Session, claim: SimulationClaim, now: datetime) -> bool:
    """Leave it to the next, as if it had never been begun; ``False`` as for :func:`keep`."""
    return _is_mine(session, claim) and _write(session, claim, None, now)


def _is_left(running: Mapping[str, Any], holder: str, now: datetime) -> bool:
    return running["by"] == holder or is_lost(running, now)


def _is_mine(session: Session, claim: SimulationClaim) -> bool:
    answer = session.execute(select(Question.answer).where(Question.id == claim.id).with_for_update()).scalar()
    running = (answer or {}).get(RUNNING)
    return running is not None and (running["by"], running.get("tries", 1)) == (claim.holder, claim.tries)


def _progress(claim: SimulationClaim, now: datetime, doing: str) -> dict[str, Any]:
    since, seen = claim.since.isoformat(), now.isoformat()
    return {"by": claim.holder, "since": since, "seen": seen, "tries": claim.tries, "doing": doing}


def _write(session: Session, claim: SimulationClaim, answer: Mapping[str, Any] | None, now: datetime) -> bool:
    # What is worked on, or just done, does not go out of date meanwhile.
    values = {"answer": None if answer is None else dict(answer), "expires_at": now + QuestionKind.SIMULATION.patience}
    done = session.execute(update(Question).where(Question.id == claim.id).values(**values))
    return bool(done.rowcount == 1)  # type: ignore[attr-defined]
