"""Racks, zones and single nodes as places for a whole gang."""

from __future__ import annotations

from scheduler.planning.capacity import Capacity
from scheduler.planning.cluster import Pool
from scheduler.planning.demand import Demand


def domains_by_room(demand: Demand, capacity: Capacity, level: str) -> list[Pool]:
    """Domains of ``level`` ("rack" or "zone") that hold the most demanding group, the one that it fills best first."""
    cluster = capacity.cluster
    room = _room_by_domain(demand, capacity, level)
    fitting = sorted((members, name) for name, members in room.items() if members >= demand.merged[0].count)
    return [cluster.domain(demand.pool, level, name) for _, name in fitting]


def best_domain(demand: Demand, capacity: Capacity, level: str) -> tuple[str, int]:
    """The domain with room for the most members of the most demanding group, and for how many (at most all)."""
    if level == "node":
        group = demand.merged[0]
        rooms = capacity.rooms(group.request, group.models, demand.pool, group.count)
        number, most = min(rooms, key=lambda room: (-room[1], room[0]), default=(-1, 0))
        return (capacity.cluster.nodes[number].id, most) if most else ("", 0)
    room = _room_by_domain(demand, capacity, level)
    name, most = min(room.items(), key=lambda item: (-item[1], item[0]), default=("", 0))
    if not most:
        return "", 0
    return (name if name.startswith("node ") else f"{level} {name}"), min(most, demand.merged[0].count)


def _room_by_domain(demand: Demand, capacity: Capacity, level: str) -> dict[str, int]:
    names = capacity.cluster.domain_names(level)
    group = demand.merged[0]
    rooms = capacity.rooms(group.request, group.models, demand.pool, 1 if group.is_spread else 1 << 30)
    room: dict[str, int] = {}
    for number, slots in rooms:
        room[names[number]] = room.get(names[number], 0) + slots
    return room
