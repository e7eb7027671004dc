"""Topology domains: racks, zones and single nodes that hold a whole gang."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from scheduler.planning.placement.capacity import Capacity
from scheduler.planning.placement.cluster import NodePool
from scheduler.planning.placement.demand import Demand
from scheduler.planning.placement.node_arrays import Ints


def domains_by_room(demand: Demand, capacity: Capacity, level: str) -> Iterator[NodePool]:
    """Domains of ``level`` ("rack" or "zone") that hold the most demanding group, best fit first."""
    cluster = capacity.cluster
    names, room = _room_by_domain(demand, capacity, level)
    able = np.flatnonzero(room >= demand.merged[0].count)
    by_room: list[int] = able[np.lexsort((able, room[able]))].tolist()
    for at in by_room:
        yield cluster.domain(demand.pool, level, names[at])


def best_domain(demand: Demand, capacity: Capacity, level: str) -> tuple[str, int]:
    """The domain with room for the most members of the most demanding group, and for how many (at most all)."""
    if level == "node":
        group = demand.merged[0]
        rooms = capacity.rooms(group.request, group.models, demand.pool, group.count)
        number, most = min(rooms, key=lambda room: (-room[1], room[0]), default=(-1, 0))
        return (capacity.cluster.nodes[number].id, most) if most else ("", 0)
    names, room = _room_by_domain(demand, capacity, level)
    at = int(room.argmax()) if len(room) else -1
    if at < 0 or not room[at]:
        return "", 0
    name, most = names[at], int(room[at])
    return (name if name.startswith("node ") else f"{level} {name}"), min(most, demand.merged[0].count)


def _room_by_domain(demand: Demand, capacity: Capacity, level: str) -> tuple[Sequence[str], Ints]:
    """All domains, sorted by name, and for how many members of the most demanding group each has room."""
    names, domain_of = capacity.cluster.domains_of(level)
    group = demand.merged[0]
    rooms = capacity.rooms(group.request, group.models, demand.pool, 1 if group.is_spread else 1 << 30)
    return names, np.bincount(domain_of[rooms.numbers], weights=rooms.slots, minlength=len(names)).astype(np.int64)
