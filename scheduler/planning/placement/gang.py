"""Gang placement: all members or none; on one node if possible, parameter servers next to the workers, topology as
wished.

A gang of equal members is placed whenever that is possible (see :mod:`.bin_packing`). For unlike members the
strategies are tried in turn, and :mod:`.search` decides small cases exactly; a large gang of several unlike roles may
be missed on a cluster that it would fill completely.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence

import numpy as np

from core.domain.sharing.resources import ResourceRequest
from scheduler.planning.placement.bin_packing import fill
from scheduler.planning.placement.capacity import Capacity
from scheduler.planning.placement.cluster import Ints, NodePool
from scheduler.planning.placement.demand import Demand, MemberGroup
from scheduler.planning.placement.partial import PartialPlacement, Pick
from scheduler.planning.placement.search import SearchBudget, search


def place(demand: Demand, capacity: Capacity, budget: SearchBudget) -> PartialPlacement | None:
    """Nodes for the whole gang, or ``None``. ``capacity`` is not modified."""
    headroom = capacity.headroom
    if demand.respects_headroom and headroom is not None and headroom.is_active:
        draft = _place(demand, headroom.capacity_beyond(capacity), budget)
        return None if draft is None else draft.copied_to(capacity)
    return _place(demand, capacity, budget)


def _place(demand: Demand, capacity: Capacity, budget: SearchBudget) -> PartialPlacement | None:
    if not _may_fit(demand, capacity):
        return None
    level, required = demand.gang.topology, demand.gang.topology_required
    if level == "node":
        draft = _on_single_node(demand, capacity, demand.pool, budget)
        if draft is not None or required:
            return draft
    elif level in {"rack", "zone"}:
        for pool in _domains_by_room(demand, capacity, level):
            draft = _place_in(demand, capacity, pool, budget)
            if draft is not None:
                return draft
        if required:
            return None
    return _place_in(demand, capacity, demand.pool, budget)


def _may_fit(demand: Demand, capacity: Capacity) -> bool:
    """A necessary test: every group fits alone."""
    if len(demand.merged) == 1 and demand.gang.topology is None:
        return True  # the only strategy counts exactly itself
    return all(capacity.can_hold(group.request, group.models, demand.pool, group.count) for group in demand.merged)


def _on_single_node(
    demand: Demand, capacity: Capacity, pool: NodePool, budget: SearchBudget
) -> PartialPlacement | None:
    """The whole gang on the node with the best fit."""
    if demand.is_scattered:
        return None
    single_request = demand.single_member
    if single_request is not None:
        request, models = single_request
        number = capacity.tightest(request, models, pool) if models else capacity.tightest_bare(request, pool)
        draft = None if number is None else _all_on(number, demand, capacity, budget)
        if draft is not None:
            return draft
        if models and not capacity.cluster.is_mixed:
            return None
    group, cluster = demand.merged[0], capacity.cluster
    rooms = capacity.rooms(group.request, group.models, pool, group.count)
    numbers = [number for number, slots in rooms if slots >= group.count]
    is_bare = not demand.uses_gpus
    numbers.sort(
        key=lambda n: (
            is_bare and bool(cluster.models_of[n]),
            capacity.left_milli(n),
            capacity.cpu[n],
            capacity.memory[n],
            n,
        )
    )
    for number in numbers:
        draft = _all_on(number, demand, capacity, budget)
        if draft is not None:
            return draft
    return None


def _all_on(number: int, demand: Demand, capacity: Capacity, budget: SearchBudget) -> PartialPlacement | None:
    draft = PartialPlacement(capacity)
    only = capacity.cluster.pool((number,))
    for group in demand.merged:
        if draft.slots(number, group.request, group.models, group.count) < group.count:
            break
        picks = fill(draft, group, only)
        if picks is None:
            break
        draft.add(group, picks)
    else:
        return draft
    # Greedy is exact here unless the node has two models, which can be assigned in different ways.
    if len(demand.merged) > 1 and len(capacity.cluster.models_of[number]) > 1:
        return search(PartialPlacement(capacity), demand.merged, only, budget)
    return None


def _place_in(demand: Demand, capacity: Capacity, pool: NodePool, budget: SearchBudget) -> PartialPlacement | None:
    if demand.is_scattered:
        return _scattered(demand, capacity, pool, budget)
    if len(demand.merged) == 1 and demand.servers is None:
        draft = PartialPlacement(capacity)
        picks = fill(draft, demand.merged[0], pool)
        if picks is None:
            return None
        draft.add(demand.merged[0], picks)
        return draft
    draft_or_none = _on_single_node(demand, capacity, pool, budget)
    if draft_or_none is not None:
        return draft_or_none
    if demand.servers is not None:
        drafts = [_with_bundles(demand, capacity, pool), _servers_after(demand, capacity, pool)]
        # Next to the workers, unless that takes more nodes in all.
        best = min((d for d in drafts if d is not None), key=lambda d: len(d.left), default=None)
        if best is not None:
            return best
    for groups in (demand.merged, demand.merged[::-1]):
        draft_or_none = _in_sequence(groups, capacity, pool)
        if draft_or_none is not None:
            return draft_or_none
    if len(demand.merged) == 1:
        return None
    return search(PartialPlacement(capacity), demand.merged, pool, budget)


def _in_sequence(groups: tuple[MemberGroup, ...], capacity: Capacity, pool: NodePool) -> PartialPlacement | None:
    draft = PartialPlacement(capacity)
    for group in groups:
        picks = fill(draft, group, pool)
        if picks is None:
            return None
        draft.add(group, picks)
    return draft if draft.is_sound() else None


def _scattered(demand: Demand, capacity: Capacity, pool: NodePool, budget: SearchBudget) -> PartialPlacement | None:
    """Servers apart from other roles, or from each other: either group first, then an exhaustive search on a small
    cluster.
    """
    servers = [group for group in demand.merged if group.is_servers]
    trainers = [group for group in demand.merged if not group.is_servers]
    is_apart = demand.gang.servers == "apart"
    for first, second in ((trainers, servers), (servers, trainers)):
        draft = PartialPlacement(capacity)
        for group in (*first, *second):
            if is_apart and second and group is second[0]:
                draft.banned = frozenset(draft.left)
            picks = fill(draft, group, pool)
            if picks is None:
                break
            draft.add(group, picks)
        else:
            draft.banned = frozenset()
            if draft.is_sound():
                return draft
    return search(PartialPlacement(capacity), demand.merged, pool, budget, servers_apart=is_apart)


def _servers_after(demand: Demand, capacity: Capacity, pool: NodePool) -> PartialPlacement | None:
    """Place the workers as if there were no servers; then servers next to them where there is room, the
    rest anywhere.
    """
    draft = _in_sequence(demand.trainers, capacity, pool)
    servers = demand.servers
    if draft is None or servers is None:
        return None
    adjacent = _adjacent_servers(draft, servers, draft.picks[demand.companion][1], pool)
    placed = sum(pick.count for pick in adjacent)
    with_adjacent = _copy_of(draft)
    with_adjacent.add(servers, adjacent)
    if placed == servers.count:
        return with_adjacent
    distant = fill(with_adjacent, MemberGroup(servers.request, (), servers.count - placed, ()), pool)
    if distant is None:
        return None
    draft.add(servers, _joined([*adjacent, *distant]))
    return draft


def _with_bundles(demand: Demand, capacity: Capacity, pool: NodePool) -> PartialPlacement | None:
    """Place a worker and its servers as one unit, so that every server finds room on a node of the gang."""
    servers, workers = demand.servers, demand.trainers[demand.companion]
    if servers is None:
        return None
    per_worker, remainder = divmod(servers.count, workers.count)
    bundles = [
        (members, per_worker + extra) for members, extra in ((remainder, 1), (workers.count - remainder, 0)) if members
    ]
    draft = PartialPlacement(capacity)
    worker_picks: list[Pick] = []
    server_picks: list[Pick] = []
    for position, group in enumerate(demand.trainers):
        if position != demand.companion:
            picks = fill(draft, group, pool)
            if picks is None:
                return None
            draft.add(group, picks)
            continue
        for members, with_servers in bundles:
            request = _sum(group.request, servers.request, with_servers)
            bundle = MemberGroup(request, group.models, members, ())
            picks = fill(draft, bundle, pool)
            if picks is None:
                return None
            for pick in picks:
                draft.take(pick.number, request, pick.model, pick.count)
            worker_picks += picks
            server_picks += [Pick(p.number, None, p.count * with_servers) for p in picks if with_servers]
    placement = PartialPlacement(capacity)
    for group, group_picks in draft.picks:
        placement.add(group, group_picks)
    placement.add(workers, _joined(worker_picks))
    adjacent = _adjacent_servers(placement, servers, placement.picks[-1][1], pool)
    # Spread evenly where that fits; the bundles' own places fit in any case.
    placement.add(servers, adjacent if sum(p.count for p in adjacent) == servers.count else _joined(server_picks))
    return placement if placement.is_sound() else None


def _adjacent_servers(draft: PartialPlacement, servers: MemberGroup, workers: list[Pick], pool: NodePool) -> list[Pick]:
    """Servers on the workers' nodes in proportion to the workers there, as many as have room."""
    weights: dict[int, int] = {}
    for pick in workers:
        weights[pick.number] = weights.get(pick.number, 0) + pick.count
    room = {n: draft.slots(n, servers.request, (), servers.count) for n in weights if pool.flags[n]}
    heap = [(1 / weights[n], order, n) for order, n in enumerate(weights) if room.get(n)]
    heapq.heapify(heap)
    placed: dict[int, int] = {}
    unplaced = servers.count
    while unplaced and heap:
        _, order, number = heapq.heappop(heap)
        placed[number] = placed.get(number, 0) + 1
        unplaced -= 1
        if placed[number] < room[number]:
            heapq.heappush(heap, ((placed[number] + 1) / weights[number], order, number))
    return [Pick(n, None, placed[n]) for n in weights if n in placed]


def _sum(worker: ResourceRequest, server: ResourceRequest, servers: int) -> ResourceRequest:
    return ResourceRequest(
        worker.cpu_milli + servers * server.cpu_milli,
        worker.memory_bytes + servers * server.memory_bytes,
        worker.gpu_count,
        worker.gpu_models,
        worker.gpu_milli,
    )


def _copy_of(draft: PartialPlacement) -> PartialPlacement:
    copied = PartialPlacement(draft.capacity)
    copied.left = dict(draft.left)
    copied.picks = list(draft.picks)
    return copied


def _joined(picks: list[Pick]) -> list[Pick]:
    counts: dict[tuple[int, str | None], int] = {}
    for pick in picks:
        key = (pick.number, pick.model)
        counts[key] = counts.get(key, 0) + pick.count
    return [Pick(number, model, count) for (number, model), count in counts.items()]


# Topology domains: racks, zones and single nodes that hold a whole gang


def _domains_by_room(demand: Demand, capacity: Capacity, level: str) -> Iterator[NodePool]:
    """Domains of ``level`` ("rack" or "zone") that hold the most demanding group, best fit first."""
    cluster = capacity.cluster
    names, room = _room_by_domain(demand, capacity, level)
    large_enough = np.flatnonzero(room >= demand.merged[0].count)
    by_room: list[int] = large_enough[np.lexsort((large_enough, room[large_enough]))].tolist()
    for position in by_room:
        yield cluster.domain(demand.pool, level, names[position])


def best_domain(demand: Demand, capacity: Capacity, level: str) -> tuple[str, int]:
    """The domain with room for the most members of the most demanding group, and for how many (at most all)."""
    if level == "node":
        group = demand.merged[0]
        rooms = capacity.rooms(group.request, group.models, demand.pool, group.count)
        number, most = min(rooms, key=lambda room: (-room[1], room[0]), default=(-1, 0))
        return (capacity.cluster.nodes[number].id, most) if most else ("", 0)
    names, room = _room_by_domain(demand, capacity, level)
    position = int(room.argmax()) if len(room) else -1
    if position < 0 or not room[position]:
        return "", 0
    name, most = names[position], int(room[position])
    return (name if name.startswith("node ") else f"{level} {name}"), min(most, demand.merged[0].count)


def _room_by_domain(demand: Demand, capacity: Capacity, level: str) -> tuple[Sequence[str], Ints]:
    """All domains, sorted by name, and for how many members of the most demanding group each has room."""
    names, domain_of = capacity.cluster.domains_of(level)
    group = demand.merged[0]
    rooms = capacity.rooms(group.request, group.models, demand.pool, 1 if group.is_spread else 1 << 30)
    return names, np.bincount(domain_of[rooms.numbers], weights=rooms.slots, minlength=len(names)).astype(np.int64)
