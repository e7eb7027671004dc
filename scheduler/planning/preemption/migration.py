"""Small jobs that could go on elsewhere, so that a large gang finds room: nobody loses a place, only the time of a restart.

A move is proposed only if all of it surely works: the gang fits when those are gone, and each of them fits where nobody
else is to be, all placed as a plan places them.
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

# Other sets of jobs that are tried when some of the first do not fit elsewhere.
_TRIES: Final = 4


@dataclass(frozen=True, slots=True)
class MigrationSet:
    """``evictables``: who goes on elsewhere, and where. ``draft``: the place of the gang."""

    evictables: tuple[Evictable, ...]
    moves: tuple[Migration, ...]
    draft: PartialPlacement


def find_migrations(
    job: QueuedGang, demand: Demand, evictables: Sequence[Evictable], what_if: EvictionWhatIf
) -> MigrationSet | None:
    """The cheapest set of moves that is found with which ``job`` starts. ``what_if`` is left as it was.

    Args:
        evictables: whole gangs that may be moved.
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
        found = _elsewhere(job, choice.evictables, choice.draft, what_if)
        if not isinstance(found, Evictable):
            return MigrationSet(choice.evictables, found, choice.draft)
        ranking.drop({found.gang.job_id})
    return None


def has_enough_gpus(demand: Demand, what_if: EvictionWhatIf) -> bool:
    """Whether as many GPUs are free in all as the gang needs, so that moving could help: it makes no more of them."""
    free = what_if.capacity.gpus
    if not demand.uses_gpus:
        return False
    for group in demand.merged:
        wanted = group.request.gpu_count * group.count
        there = sum(free.within(model, demand.pool) for model in group.models)
        if there < wanted:
            return False
    return True


def _elsewhere(
    job: QueuedGang, evictables: Sequence[Evictable], draft: PartialPlacement, what_if: EvictionWhatIf
) -> tuple[Migration, ...] | Evictable:
    """Places for all of them beside the gang; the first that finds none."""
    room = what_if.copy()
    cluster: ClusterIndex = room.base.cluster
    room.clear(evictables)
    room.take(draft)
    moves: dict[JobId, Migration] = {}
    for evictable in sorted(evictables, key=lambda evictable: (-evictable.gang.gang.gpu_count, evictable.key)):
        demand = demand_of(evictable.gang.gang, cluster)
        headroom = room.base.headroom
        demand = demand if headroom is None else headroom.bind(demand)
        found = room.fits(demand)
        if found is None:
            return evictable
        room.take(found)
        moves[evictable.gang.job_id] = Migration(evictable.gang.job_id, job.job_id, found.placements(demand))
    return tuple(moves[evictable.gang.job_id] for evictable in evictables)
