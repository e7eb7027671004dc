"""Periodic resync: which live attempts are reconciled without a wake-up, so that a lost one costs only time."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import ColumnElement, and_, exists, literal, or_, select
from sqlalchemy.orm import Session

from core.db.repositories.nodes import is_live
from core.db.tables import Attempt, Job, Lease, Node, Replica
from core.domain.ids import AttemptId
from core.domain.jobs.states import AttemptState, DesiredState, ReplicaState

# A steady attempt is reconciled this often.
STEADY_RESYNC: Final = timedelta(seconds=5)
# The same where a drift check and pushed changes exist: only for the unforeseen.
SAFETY_RESYNC: Final = timedelta(minutes=5)
_LIMIT: Final = 2000
# Attempts that are due by time alone are spread: thousands that began together must not all be due together again.
_STEADY_LIMIT: Final = 20
_WELL: Final = (ReplicaState.RUNNING.value, ReplicaState.SUCCEEDED.value)


def due_attempts(session: Session, now: datetime, *, steady: timedelta = STEADY_RESYNC) -> list[AttemptId]:
    """Live attempts that start, end, or should: at once; the others when they were not reconciled for a while.

    Args:
        steady: that while, for attempts of which every replica runs or is done, on a node that is ready. Longer than
            ``STEADY_RESYNC`` where the executor pushes changes.
    """
    reconciled_at = Lease.expires_at  # a released lease expired at the end of the reconcile
    is_expecting = or_(
        Attempt.state != AttemptState.RUNNING.value,
        Attempt.stop.is_not(None),
        Attempt.decided_at.is_not(None),
        Job.desired_state != DesiredState.RUN.value,
    )
    reconciled_since = now - STEADY_RESYNC
    query = (
        select(Attempt.id)
        .join(Job, Job.id == Attempt.job_id)
        .outerjoin(Lease, Lease.name == literal("attempt:") + Attempt.id)
        # Not where the lease is held: that process is reconciling it.
        .where(is_live(), or_(reconciled_at.is_(None), reconciled_at <= now))
        .order_by(reconciled_at)
    )
    if steady <= STEADY_RESYNC:
        rows = session.scalars(
            query.where(or_(is_expecting, reconciled_at.is_(None), reconciled_at < reconciled_since)).limit(_LIMIT)
        )
        return [AttemptId(attempt_id) for attempt_id in rows]
    is_urgent = or_(is_expecting, reconciled_at.is_(None), and_(reconciled_at < reconciled_since, _is_troubled()))
    due = dict.fromkeys(session.scalars(query.where(is_urgent).limit(_LIMIT)))
    due |= dict.fromkeys(session.scalars(query.where(reconciled_at < now - steady).limit(_STEADY_LIMIT)))
    return [AttemptId(attempt_id) for attempt_id in due]


def _is_troubled() -> ColumnElement[bool]:
    """A failed replica may be due to restart, and a node that is not ready will count as lost: both by time alone."""
    return exists(
        select(Replica.id)
        .outerjoin(Node, Node.name == Replica.node)
        .where(Replica.attempt_id == Attempt.id, or_(Replica.state.not_in(_WELL), Node.is_ready.is_not(True)))
    )
