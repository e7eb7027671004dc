"""Requested simulations and their claims, so that a simulation whose scheduler died is taken over by another one.

A simulation is a question of its own kind (``questions``). While a scheduler works on it, its answer is ``{"running":
{...}}`` with ``by`` (the scheduler), ``since``, ``seen`` (last heartbeat), ``tries`` (number of starts) and ``doing``,
a sentence.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from core.db.repositories.questions import RUNNING, QuestionKind
from core.db.tables import Question

# Seconds between the heartbeats of a working scheduler; after ``LOST_AFTER`` of silence it counts as lost.
HEARTBEAT_S: Final = 2.0
LOST_AFTER: Final = timedelta(seconds=15)


@dataclass(frozen=True, slots=True)
class SimulationClaim:
    """A simulation in progress. ``tries``: the number of this start; with ``holder`` it is the fence against earlier
    starts.
    """

    id: str
    arguments: Mapping[str, Any]
    holder: str
    tries: int
    since: datetime


def claim_next(session: Session, holder: str, now: datetime) -> SimulationClaim | None:
    """Claim the oldest simulation that is not begun, or was left by a lost scheduler or an earlier process of
    ``holder``.
    """
    rows = session.execute(
        select(Question.id, Question.arguments, Question.answer)
        .where(Question.kind == QuestionKind.SIMULATION.value, Question.expires_at > now)
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
    """``running``: the scheduler that works on it; ``answer``: the result; ``before``: earlier requests not done."""

    created_at: datetime
    running: Mapping[str, Any] | None
    answer: Mapping[str, Any] | None
    before: int


def status_of(session: Session, simulation_id: str, user_id: str, now: datetime) -> SimulationStatus:
    """The simulation's status.

    Raises:
        LookupError: it has expired, or is another user's.
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
    """Whether the scheduler that works on it has been silent for too long."""
    return now - datetime.fromisoformat(running.get("seen", running["since"])) > LOST_AFTER


def keep(session: Session, claim: SimulationClaim, doing: str, now: datetime) -> bool:
    """Renew the claim; ``False``: another scheduler has taken it, or the question has expired."""
    return _holds_claim(session, claim) and _write(session, claim, {RUNNING: _progress(claim, now, doing)}, now)


def finish(session: Session, claim: SimulationClaim, answer: Mapping[str, Any], now: datetime) -> bool:
    """Write the result, which stays for an hour; ``False`` as for :func:`keep`."""
    return _holds_claim(session, claim) and _write(session, claim, answer, now)


def give_back(session: Session, claim: SimulationClaim, now: datetime) -> bool:
    """Release the claim, as if the simulation had never been begun; ``False`` as for :func:`keep`."""
    return _holds_claim(session, claim) and _write(session, claim, None, now)


def _is_left(running: Mapping[str, Any], holder: str, now: datetime) -> bool:
    return running["by"] == holder or is_lost(running, now)


def _holds_claim(session: Session, claim: SimulationClaim) -> bool:
    answer = session.execute(select(Question.answer).where(Question.id == claim.id).with_for_update()).scalar()
    running = (answer or {}).get(RUNNING)
    return running is not None and (running["by"], running.get("tries", 1)) == (claim.holder, claim.tries)


def _progress(claim: SimulationClaim, now: datetime, doing: str) -> dict[str, Any]:
    since, heartbeat = claim.since.isoformat(), now.isoformat()
    return {"by": claim.holder, "since": since, "seen": heartbeat, "tries": claim.tries, "doing": doing}


def _write(session: Session, claim: SimulationClaim, answer: Mapping[str, Any] | None, now: datetime) -> bool:
    # A running or just finished simulation does not expire meanwhile.
    values = {"answer": None if answer is None else dict(answer), "expires_at": now + QuestionKind.SIMULATION.patience}
    done = session.execute(update(Question).where(Question.id == claim.id).values(**values))
    return bool(done.rowcount == 1)  # type: ignore[attr-defined]
