"""Migrations: small jobs restart on other nodes so that a large gang finds room. They lose only the restart time.

A migration is proposed only if it certainly works: the gang fits once the jobs are gone, and each of them fits on
other nodes, all placed as the planner places gangs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from core.domain.ids import JobId
from scheduler.planning.model import Migration, QueuedGang
from scheduler.planning.placement.cluster import ClusterIndex
from scheduler.planning.placement.demand import Demand, demand_of
from scheduler.planning.placement.partial import PartialPlacement
from scheduler.planning.preemption.eviction import Evictable, EvictionWhatIf
from scheduler.planning.preemption.node_ranking import NodeRanking
from scheduler.planning.preemption.victims import VictimSearch

# Further sets of jobs to try when some job of the first set fits nowhere else.
_TRIES: Final = 4


@dataclass(frozen=True, slots=True)
class MigrationSet:
    """``evictables``: the jobs that migrate, ``moves``: their new places, ``draft``: placement of the large gang."""

    evictables: tuple[Evictable, ...]
    moves: tuple[Migration, ...]
    draft: PartialPlacement


def find_migrations(
    job: QueuedGang, demand: Demand, evictables: Sequence[Evictable], what_if: EvictionWhatIf
) -> MigrationSet | None:
    """The cheapest set of migrations found with which ``job`` starts. ``what_if`` is left unchanged.

    Args:
        evictables: whole gangs that may migrate.
    """
    size = job.gang.gpu_count
    smaller = [
        evictable
        for evictable in evictables
        if evictable.gang.gang.gpu_count < size and evictable.gang.priority <= job.priority
    ]
    ranking = NodeRanking(smaller)
    for _ in range(_TRIES):
        choice = VictimSearch(demand, ranking, what_if).choose()
        if choice is None:
            return None
        moves = _elsewhere(job, choice.evictables, choice.draft, what_if)
        if not isinstance(moves, Evictable):
            return MigrationSet(choice.evictables, moves, choice.draft)
        ranking.exclude({moves.gang.job_id})
    return None


def has_enough_gpus(demand: Demand, what_if: EvictionWhatIf) -> bool:
    """Whether the total of free GPUs suffices for the gang: migrations only defragment, they free no GPUs."""
    free = what_if.capacity.gpus
    if not demand.uses_gpus:
        return False
    for group in demand.merged:
        needed = group.request.gpu_count * group.count
        available = sum(free.within(model, demand.pool) for model in group.models)
        if available < needed:
            return False
    return True


def _elsewhere(
    job: QueuedGang, evictables: Sequence[Evictable], draft: PartialPlacement, what_if: EvictionWhatIf
) -> tuple[Migration, ...] | Evictable:
    """New places for all of them next to the gang, or the first job that finds none."""
    room = what_if.copy()
    cluster: ClusterIndex = room.base.cluster
    room.evict(evictables)
    room.claim(draft)
    moves: dict[JobId, Migration] = {}
    for evictable in sorted(evictables, key=lambda evictable: (-evictable.gang.gang.gpu_count, evictable.key)):
        demand = demand_of(evictable.gang.gang, cluster)
        headroom = room.base.headroom
        demand = demand if headroom is None else headroom.bind(demand)
        new_draft = room.fits(demand)
        if new_draft is None:
            return evictable
        room.claim(new_draft)
        moves[evictable.gang.job_id] = Migration(evictable.gang.job_id, job.job_id, new_draft.placements(demand))
    return tuple(moves[evictable.gang.job_id] for evictable in evictables)
