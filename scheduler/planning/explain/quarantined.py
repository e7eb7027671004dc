"""Nodes in quarantine that have room for who waits: named in its reason, since somebody may open them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from core.domain.sharing.resources import Gang
from scheduler.planning.explain import phrases
from scheduler.planning.model import Reason, Snapshot
from scheduler.planning.placement.capacity import Capacity
from scheduler.planning.placement.cluster import ClusterIndex
from scheduler.planning.placement.demand import demand_of


class QuarantinedNodes:
    """The quarantined nodes of a snapshot, as a cluster of their own."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._cluster = ClusterIndex(node for node in snapshot.nodes if node.is_quarantined)
        self._free = Capacity.free(self._cluster) if self._cluster.nodes else None

    def add_to(self, reason: Reason, gang: Gang) -> Reason:
        """``reason``, and those that have room for one of its largest members."""
        if self._free is None:
            return reason
        demand = demand_of(gang, self._cluster)
        if not demand.pool.members:
            return reason
        group = demand.merged[0]
        usable = [self._cluster.nodes[n] for n, _ in self._free.rooms(group.request, group.models, demand.pool, 1)]
        if not usable:
            return reason
        told = phrases.some_of([f"{node.id} {node.why_not}" for node in usable])
        numbers: dict[str, Any] = {**reason.numbers, "quarantined": [node.id for node in usable]}
        return replace(reason, sentence=f"{reason.sentence}. Besides, {told}", numbers=numbers)
