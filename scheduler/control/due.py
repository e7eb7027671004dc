"""Which live attempts are worth a look now: what beat rings, so that a lost bell costs only time."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import literal, or_, select
from sqlalchemy.orm import Session

from core.db.repositories.nodes import is_live
from core.db.tables import Attempt, Job, Lease
from core.domain.ids import AttemptId
from core.domain.states import AttemptState, Wanted

# An attempt that runs and of which nothing is expected is looked at this often.
STEADY_LOOK: Final = timedelta(seconds=5)
_LIMIT: Final = 2000


def due_attempts(session: Session, now: datetime) -> list[AttemptId]:
    """Live attempts that start, end, or should: at once; the others when nobody has looked for a while."""
    looked_at = Lease.expires_at  # a lease that was given back expired at the end of the look
    is_expecting = or_(
        Attempt.state != AttemptState.RUNNING.value,
        Attempt.stop.is_not(None),
        Attempt.decided_at.is_not(None),
        Job.wanted != Wanted.RUN.value,
    )
    rows = session.execute(
        select(Attempt.id)
        .join(Job, Job.id == Attempt.job_id)
        .outerjoin(Lease, Lease.name == literal("attempt:") + Attempt.id)
        .where(
            is_live(),
            or_(is_expecting, looked_at.is_(None), looked_at < now - STEADY_LOOK),
            # Held by somebody at this moment: they see what there is to see.
            or_(looked_at.is_(None), looked_at <= now),
        )
        .order_by(looked_at)
        .limit(_LIMIT)
    )
    return [AttemptId(row.id) for row in rows]
