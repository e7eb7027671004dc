"""Replicas that their gang goes on without: one that reports all the same must hear that it is to end.

It may have been cut off with its node, and have trained on in a world that its peers have left.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from core.db.tables import Replica
from core.domain.errors import AttemptEnded
from core.domain.jobs.states import ReplicaState


def check_wanted(replica: Replica, generation: int, now: datetime, late: timedelta) -> None:
    """Raise :class:`AttemptEnded` when the start that reports was given up.

    Args:
        generation: of the start that reports.
        late: what a start that has just ended still had to say may come in for this long.
    """
    has_ended = replica.ended_at is not None and now - replica.ended_at > late
    if replica.generation == generation:
        is_left = replica.state == ReplicaState.LOST.value or (replica.state == ReplicaState.FAILED.value and has_ended)
    else:
        # Another one runs in its place.
        is_left = replica.generation > generation and (
            replica.started_at is not None and now - replica.started_at > late
        )
    if is_left:
        raise AttemptEnded("The gang of this replica goes on without it; it is to end, and reports no more.")
