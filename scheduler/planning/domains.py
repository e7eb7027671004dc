"""Racks, zones and single nodes as places for a whole gang."""

from __future__ import annotations

from scheduler.planning.capacity import Capacity
from scheduler.planning.cluster import Pool
from scheduler.planning.demand import Demand


def domains_by_room(demand: Demand, capacity: Capacity, level: str) -> list[Pool]:
    """Domains of ``level`` ("rack" or "zone") that hold the most demanding group, the one that it fills best first."""
    domains = capacity.cluster.domains(demand.pool, level)
    group = demand.merged[0]
    fitting: list[tuple[int, str]] = []
    for name, pool in domains.items():
        room = sum(capacity.slots(n, group.request, group.models, 1 << 30) for n in pool.members)
        if room >= group.count:
            fitting.append((room, name))
    return [domains[name] for _, name in sorted(fitting)]


def best_domain(demand: Demand, capacity: Capacity, level: str) -> tuple[str, int]:
    """The domain with room for the most members of the most demanding group, and for how many (at most all)."""
    group = demand.merged[0]
    cluster = capacity.cluster
    if level == "node":
        rooms = capacity.rooms(group.request, group.models, demand.pool, group.count)
        number, most = min(rooms, key=lambda room: (-room[1], room[0]), default=(-1, 0))
        return (cluster.nodes[number].id, most) if most else ("", 0)
    best = ("", 0)
    for name, pool in cluster.domains(demand.pool, level).items():
        room = sum(capacity.slots(n, group.request, group.models, group.count) for n in pool.members)
        if room > best[1]:
            best = (name if name.startswith("node ") else f"{level} {name}", room)
    return best[0], min(best[1], group.count)
