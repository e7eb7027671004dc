"""Shrink candidates: replicas that elastic gangs can give up; those with the least effect on speed first, of a gang
the newest; never below the minimum or a guarantee.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Final

from core.domain.ids import JobId
from scheduler.planning.model import QueuedGang, RunningGang
from scheduler.planning.placement.backfill import node_uses
from scheduler.planning.placement.cluster import ClusterIndex
from scheduler.planning.preemption.eviction import Evictable, NodeUse
from scheduler.planning.preemption.policy import PreemptionPolicy
from scheduler.planning.queue.shares import JOBS, total_amounts


def replicas_to_spare(gang: RunningGang) -> int:
    """How many replicas of its elastic role it has above its minimum."""
    role = gang.gang.elastic
    return 0 if role is None else max(0, sum(name == role.role for name, _ in gang.nodes) - role.replicas)


def elastic_indices(gang: RunningGang) -> list[tuple[int, int]]:
    """Index and position in ``nodes`` of every replica of the elastic role."""
    role = gang.gang.elastic
    positions = [at for at, (name, _) in enumerate(gang.nodes) if role is not None and name == role.role]
    if len(gang.indices) == len(gang.nodes):
        return [(gang.indices[at], at) for at in positions]
    return list(enumerate(positions))


def uses_by_index(gang: RunningGang, cluster: ClusterIndex) -> list[tuple[int, NodeUse]]:
    """What each replica of the elastic role holds on schedulable nodes, by its index."""
    uses: list[tuple[int, NodeUse]] = []
    for index, at in elastic_indices(gang):
        replica = replace(gang, nodes=gang.nodes[at : at + 1], gpu_models=gang.gpu_models[at : at + 1])
        uses += [(index, use) for use in node_uses(replica, cluster)]
    return uses


# Cost of losing one replica, in GPU-seconds per GPU: next to nothing, but fewer losses are better.
_COST: Final = 1e-3
# Extra costs of a replica without which the gang is half as fast, and of the oldest replica over the newest. Together
# less than one more replica: fewer replicas matter more than which.
_HALF_SPEED: Final = 0.8
_OLDEST: Final = 0.05
# Rank 0 broadcasts the state and writes the checkpoint: it leaves only if no other replica will do.
_FIRST_RANK: Final = 0.9


def shrinkable_replicas(gang: RunningGang, cluster: ClusterIndex) -> list[Evictable]:
    """The elastic replicas of a gang above its minimum, the newest the cheapest. The k-th newest costs what the gang
    loses in speed by the k-th replica less.
    """
    if not replicas_to_spare(gang):
        return []
    positions = dict(elastic_indices(gang))
    age_rank = {index: rank for rank, index in enumerate(sorted(positions, reverse=True))}
    count = len(positions)
    # A measured curve need not be concave, but the newest replica stays the cheapest.
    losses = list(accumulate((min(1.0, gang.speed.gain(count - 1 - rank)) for rank in range(count)), max))
    replicas: list[Evictable] = []
    for index, use in uses_by_index(gang, cluster):
        rank = age_rank[index]
        surcharge = _FIRST_RANK if positions[index] == 0 else _HALF_SPEED * losses[rank] + _OLDEST * rank / count
        replicas.append(Evictable(gang, (use,), _COST * max(1, use[1].gpu_count) * (1 + surcharge), index))
    return replicas


def freed_amounts(evictable: Evictable, preemption_policy: PreemptionPolicy) -> Mapping[str, int]:
    """What the unit holds, by quota keys; of a whole gang on nodes that are not schedulable, too."""
    if evictable.index is None:
        return preemption_policy.exchange.usage_of(evictable.gang)
    return amounts_of(evictable)


def amounts_of(evictable: Evictable) -> dict[str, int]:
    """What the unit holds on schedulable nodes, by quota keys."""
    amounts = total_amounts((request, model, members) for _, request, model, members in evictable.uses)
    if evictable.index is not None:
        del amounts[JOBS]  # the job itself runs on
    return amounts


def without_redundant(evictables: Iterable[Evictable]) -> list[Evictable]:
    """Without replicas whose whole gangs are in the list as well."""
    evictables = list(evictables)
    whole_gangs = {evictable.gang.job_id for evictable in evictables if evictable.index is None}
    return [
        evictable for evictable in evictables if evictable.index is None or evictable.gang.job_id not in whole_gangs
    ]


def replicas_by_gang(evictables: Iterable[Evictable]) -> dict[JobId, list[Evictable]]:
    """The single replicas by gang, without those of gangs that go as a whole."""
    replicas: dict[JobId, list[Evictable]] = {}
    for evictable in without_redundant(evictables):
        if evictable.index is not None:
            replicas.setdefault(evictable.gang.job_id, []).append(evictable)
    return replicas


def shrinks_too_far(evictables: Iterable[Evictable]) -> bool:
    """Whether some gang would be left with fewer replicas than its minimum."""
    return any(
        len(replicas) > replicas_to_spare(replicas[0].gang) for replicas in replicas_by_gang(evictables).values()
    )


def replicas_that_may_leave(
    job: QueuedGang, evictables: Sequence[Evictable], preemption_policy: PreemptionPolicy
) -> list[Evictable]:
    """Those ``evictables`` that may all leave together for ``job``: the newest of each gang; whole gangs are kept as
    they are.
    """
    newest_replicas: list[Evictable] = []
    for replicas in replicas_by_gang(evictable for evictable in evictables if evictable.index is not None).values():
        gang = replicas[0].gang
        indices = sorted(index for index, _ in elastic_indices(gang))
        newest = set(indices[len(indices) - replicas_to_spare(gang) :])
        newest_replicas += [
            replica for replica in sorted(replicas, key=lambda replica: replica.order) if replica.index in newest
        ]
    whole_gangs = [evictable for evictable in evictables if evictable.index is None]
    return whole_gangs + unguaranteed_replicas(job, newest_replicas, preemption_policy)


def unguaranteed_replicas(
    job: QueuedGang, replicas: Iterable[Evictable], preemption_policy: PreemptionPolicy
) -> list[Evictable]:
    """Without the replicas whose loss, after those before them, would cut into another project's guarantee.

    The same holds for another user's guarantee in the same project, except against a larger priority.
    """
    shares = preemption_policy.shares
    unguaranteed: list[Evictable] = []
    for replica in replicas:
        if preemption_policy.is_guaranteed_part(job, replica.gang, amounts_of(replica)):
            continue
        shares.add(replica.gang.project, replica.gang.user, amounts_of(replica), -1)
        unguaranteed.append(replica)
    for replica in unguaranteed:
        shares.add(replica.gang.project, replica.gang.user, amounts_of(replica))
    return unguaranteed
