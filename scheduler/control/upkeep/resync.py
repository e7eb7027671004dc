"""Which live attempts are worth a look now: what beat rings, so that a lost bell costs only time."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import ColumnElement, and_, exists, literal, or_, select
from sqlalchemy.orm import Session

from core.db.repositories.nodes import is_live
from core.db.tables import Attempt, Job, Lease, Node, Replica
from core.domain.ids import AttemptId
from core.domain.jobs.states import AttemptState, DesiredState, ReplicaState

# An attempt that runs and of which nothing is expected is looked at this often.
STEADY_LOOK: Final = timedelta(seconds=5)
# The same where something else tells of changes: then it is for what nobody foresaw.
SAFETY_LOOK: Final = timedelta(minutes=5)
_LIMIT: Final = 2000
# Those that only time has made due are spread: thousands that began together shall not come together again.
_STEADY_LIMIT: Final = 20
_WELL: Final = (ReplicaState.RUNNING.value, ReplicaState.SUCCEEDED.value)


def due_attempts(session: Session, now: datetime, *, steady: timedelta = STEADY_LOOK) -> list[AttemptId]:
    """Live attempts that start, end, or should: at once; the others when nobody has looked for a while.

    Args:
        steady: that while, for attempts of which every replica runs or is done, on a node that is ready. Longer than
            ``STEADY_LOOK`` where the executor tells of changes.
    """
    looked_at = Lease.expires_at  # a lease that was given back expired at the end of the look
    is_expecting = or_(
        Attempt.state != AttemptState.RUNNING.value,
        Attempt.stop.is_not(None),
        Attempt.decided_at.is_not(None),
        Job.desired_state != DesiredState.RUN.value,
    )
    looked_since = now - STEADY_LOOK
    query = (
        select(Attempt.id)
        .join(Job, Job.id == Attempt.job_id)
        .outerjoin(Lease, Lease.name == literal("attempt:") + Attempt.id)
        # Held by somebody at this moment: they see what there is to see.
        .where(is_live(), or_(looked_at.is_(None), looked_at <= now))
        .order_by(looked_at)
    )
    if steady <= STEADY_LOOK:
        rows = session.scalars(
            query.where(or_(is_expecting, looked_at.is_(None), looked_at < looked_since)).limit(_LIMIT)
        )
        return [AttemptId(attempt_id) for attempt_id in rows]
    is_urgent = or_(is_expecting, looked_at.is_(None), and_(looked_at < looked_since, _is_troubled()))
    due = dict.fromkeys(session.scalars(query.where(is_urgent).limit(_LIMIT)))
    due |= dict.fromkeys(session.scalars(query.where(looked_at < now - steady).limit(_STEADY_LIMIT)))
    return [AttemptId(attempt_id) for attempt_id in due]


def _is_troubled() -> ColumnElement[bool]:
    """A replica that failed may be due to start again, and a node that is not ready will count as lost: by time alone."""
    return exists(
        select(Replica.id)
        .outerjoin(Node, Node.name == Replica.node)
        .where(Replica.attempt_id == Attempt.id, or_(Replica.state.not_in(_WELL), Node.is_ready.is_not(True)))
    )
