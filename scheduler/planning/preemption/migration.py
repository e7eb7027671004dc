"""Small jobs that could go on elsewhere, so that a large gang finds room: nobody loses a place, only the time of a restart.

A move is proposed only if all of it surely works: the gang fits when those are gone, and each of them fits where nobody
else is to be, all placed as a plan places them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from core.domain.ids import JobId
from scheduler.planning.model import Move, QueuedGang
from scheduler.planning.placement.cluster import Cluster
from scheduler.planning.placement.demand import Demand, demand_of
from scheduler.planning.placement.partial import Draft
from scheduler.planning.preemption.eviction import Clearing, Piece
from scheduler.planning.preemption.node_ranking import Ranking
from scheduler.planning.preemption.victims import Victims

# Other sets of jobs that are tried when some of the first do not fit elsewhere.
_TRIES: Final = 4


@dataclass(frozen=True, slots=True)
class Moved:
    """``pieces``: who goes on elsewhere, and where. ``draft``: the place of the gang."""

    pieces: tuple[Piece, ...]
    moves: tuple[Move, ...]
    draft: Draft


def find_moves(job: QueuedGang, demand: Demand, pieces: Sequence[Piece], clearing: Clearing) -> Moved | None:
    """The cheapest set of moves that is found with which ``job`` starts. ``clearing`` is left as it was.

    Args:
        pieces: whole gangs that may be moved.
    """
    size = job.gang.gpu_count
    smaller = [piece for piece in pieces if piece.gang.gang.gpu_count < size and piece.gang.priority <= job.priority]
    ranking = Ranking(smaller)
    for _ in range(_TRIES):
        choice = Victims(demand, ranking, clearing).choose()
        if choice is None:
            return None
        found = _elsewhere(job, choice.pieces, choice.draft, clearing)
        if not isinstance(found, Piece):
            return Moved(choice.pieces, found, choice.draft)
        ranking.drop({found.gang.job_id})
    return None


def is_enough(demand: Demand, clearing: Clearing) -> bool:
    """Whether as many GPUs are free in all as the gang needs, so that moving could help: it makes no more of them."""
    free = clearing.room.gpus
    if not demand.uses_gpus:
        return False
    for group in demand.merged:
        wanted = group.request.gpu_count * group.count
        there = sum(free.within(model, demand.pool) for model in group.models)
        if there < wanted:
            return False
    return True


def _elsewhere(job: QueuedGang, pieces: Sequence[Piece], draft: Draft, clearing: Clearing) -> tuple[Move, ...] | Piece:
    """Places for all of them beside the gang; the first that finds none."""
    room = clearing.copy()
    cluster: Cluster = room.base.cluster
    room.clear(pieces)
    room.take(draft)
    moves: dict[JobId, Move] = {}
    for piece in sorted(pieces, key=lambda piece: (-piece.gang.gang.gpu_count, piece.key)):
        demand = demand_of(piece.gang.gang, cluster)
        keeping = room.base.keeping
        demand = demand if keeping is None else keeping.bind(demand)
        found = room.fits(demand)
        if found is None:
            return piece
        room.take(found)
        moves[piece.gang.job_id] = Move(piece.gang.job_id, job.job_id, found.placements(demand))
    return tuple(moves[piece.gang.job_id] for piece in pieces)
