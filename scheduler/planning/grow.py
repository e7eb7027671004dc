"""More replicas for elastic gangs, where a place is free and nobody who waits could ever use it.

A gang that waits has the better claim, whatever its priority: what grows never gives back by itself. So no elastic
gang takes a place on a node that somebody in the queue might be given, and growing delays nobody.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from core.domain.ids import NodeId
from core.domain.resources import Gang, GangRole
from scheduler.planning.cluster import Cluster
from scheduler.planning.demand import demand_of
from scheduler.planning.gang import place
from scheduler.planning.ledger import NEVER, Ledger
from scheduler.planning.model import Placement
from scheduler.planning.search import Budget


@dataclass(frozen=True, slots=True)
class Growth:
    """An elastic gang that runs, or starts in this plan.

    ``order``: the queue's sort key. ``indices``: numbers of the replicas that it lacks, the next one first.
    ``placed``: where its elastic replicas are, with the GPU model of each.
    """

    order: tuple[object, ...]
    gang: Gang
    indices: tuple[int, ...]
    placed: tuple[tuple[NodeId, str | None], ...]


def grow(
    growths: Iterable[Growth], ledger: Ledger, cluster: Cluster, claimed: frozenset[int]
) -> list[Sequence[Placement]]:
    """What each of ``growths`` gets, in their order; taken from ``ledger``.

    Args:
        claimed: nodes that somebody who waits may ever use.
    """
    growths = list(growths)
    given: dict[int, list[Placement]] = {number: [] for number in range(len(growths))}
    for number in sorted(given, key=lambda number: growths[number].order):
        given[number] = _grow(growths[number], ledger, cluster, claimed)
    return list(given.values())


def _grow(growth: Growth, ledger: Ledger, cluster: Cluster, claimed: frozenset[int]) -> list[Placement]:
    role = growth.gang.elastic
    if role is None:
        return []
    models = {model for _, model in growth.placed if model is not None}
    if len(models) == 1:
        # One of another model would slow all the others down, or they it.
        role = replace(role, request=replace(role.request, gpu_models=tuple(models)))
    demand = demand_of(Gang((GangRole(role.role, 1, role.request),), growth.gang.node_selector), cluster)
    allowed = [number for number in demand.pool.members if number not in claimed]
    here = {cluster.number_of[node] for node, _ in growth.placed if node in cluster.number_of}
    # Beside its own first: the fewer nodes, the less goes over the network.
    pools = [
        cluster.pool([number for number in allowed if number in here]),
        cluster.pool(allowed),
    ]
    made: list[Placement] = []
    for index in growth.indices:
        drafts = (place(replace(demand, pool=pool), ledger.free, Budget()) for pool in pools)
        draft = next((draft for draft in drafts if draft is not None), None)
        if draft is None:
            break
        ledger.start(draft, NEVER)
        made += [replace(placement, index=index) for placement in draft.placements(demand)]
    return made


def with_more(placements: Sequence[Placement], more: Sequence[Placement], gang: Gang) -> tuple[Placement, ...]:
    """All of them in rank order."""
    order: Mapping[str, int] = {role.role: number for number, role in enumerate(gang.roles)}
    return tuple(sorted((*placements, *more), key=lambda p: (order[p.role], p.index)))
