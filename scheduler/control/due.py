"""Which live attempts are worth a look now: what beat rings, so that a lost bell costs only time."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import ColumnElement, and_, exists, literal, or_, select
from sqlalchemy.orm import Session

from core.db.repositories.nodes import is_live
from core.db.tables import Attempt, Job, Lease, Node, Replica
from core.domain.ids import AttemptId
from core.domain.states import AttemptState, ReplicaState, Wanted

# An attempt that runs and of which nothing is expected is looked at this often.
STEADY_LOOK: Final = timedelta(seconds=5)
_LIMIT: Final = 2000
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
        Job.wanted != Wanted.RUN.value,
    )
    is_forgotten = looked_at < now - STEADY_LOOK
    if steady > STEADY_LOOK:
        is_forgotten = or_(looked_at < now - steady, and_(is_forgotten, _is_troubled()))
    rows = session.execute(
        select(Attempt.id)
        .join(Job, Job.id == Attempt.job_id)
        .outerjoin(Lease, Lease.name == literal("attempt:") + Attempt.id)
        .where(
            is_live(),
            or_(is_expecting, looked_at.is_(None), is_forgotten),
            # Held by somebody at this moment: they see what there is to see.
            or_(looked_at.is_(None), looked_at <= now),
        )
        .order_by(looked_at)
        .limit(_LIMIT)
    )
    return [AttemptId(row.id) for row in rows]


def _is_troubled() -> ColumnElement[bool]:
    """A replica that failed may be due to start again, and a node that is not ready will count as lost: by time alone."""
    return exists(
        select(Replica.id)
        .outerjoin(Node, Node.name == Replica.node)
        .where(Replica.attempt_id == Attempt.id, or_(Replica.state.not_in(_WELL), Node.is_ready.is_not(True)))
    )
