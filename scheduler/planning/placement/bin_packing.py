"""Bin packing of one group of equal members: few nodes, small holes, the right GPU models.

Exact in one respect: if the members fit at all, nodes are found, since the members are equal and the room of every
node is counted. Which nodes is a preference, decided greedily.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from core.domain.sharing.gpus import WHOLE_GPU, room_for_parts
from scheduler.planning.placement.cluster import Ints, NodePool, Rooms, least, smallest
from scheduler.planning.placement.demand import MemberGroup
from scheduler.planning.placement.partial import PartialPlacement, Pick

_Room = tuple[int, int]  # (node number, members that fit)


def fill(draft: PartialPlacement, group: MemberGroup, pool: NodePool) -> list[Pick] | None:
    """Nodes for all members of ``group``, or ``None`` if they do not fit. ``draft`` is not modified.

    Nodes that the gang uses already come first, then as few others as possible; the last node is the one with the
    best fit, so that large holes stay whole.
    """
    if group.request.uses_gpu:
        return _fill_gpus(draft, group, pool)
    return _fill_bare(draft, group, pool)


def _fill_gpus(draft: PartialPlacement, group: MemberGroup, pool: NodePool) -> list[Pick] | None:
    request, count = group.request, group.count
    may_use_single_node = not draft.left and group.may_share_a_node and (count == 1 or not request.gpu_milli)
    if may_use_single_node and not group.is_picky:
        number = draft.capacity.tightest(request.times(count), group.models, pool)
        if number is not None:
            return [_on_scarcest(draft, group, number)]
    if not draft.capacity.can_hold(request, group.models, pool, count):
        return None
    # A single model for all members first, since mixed speeds slow all members down.
    best: tuple[tuple[object, ...], list[Pick]] | None = None
    for model in group.models:
        picks = _fill_model(draft, group, model, pool, may_use_single_node=may_use_single_node)
        if picks is None:
            continue
        if group.is_picky:
            return picks
        left = sum(draft.amounts(pick.number)[2].get(model, 0) for pick in picks)
        score = (len(picks), left, model)
        if best is None or score < best[0]:
            best = (score, picks)
    if best is not None:
        return best[1]
    rooms = draft.rooms(request, group.models, pool, group.max_per_node)
    if len(group.models) == 1 or rooms.total < count:
        return None
    return _as_picks(draft, group, group.models, few(draft, rooms, count, group))


def _fill_model(
    draft: PartialPlacement, group: MemberGroup, model: str, pool: NodePool, *, may_use_single_node: bool
) -> list[Pick] | None:
    request, count = group.request, group.count
    if may_use_single_node:
        number = draft.capacity.tightest(request.times(count), (model,), pool)
        if number is not None:
            return [Pick(number, model, count)]
    rooms = draft.rooms(request, (model,), pool, group.max_per_node)
    if rooms.total < count:
        return None
    return _as_picks(draft, group, (model,), few(draft, rooms, count, group))


def _on_scarcest(draft: PartialPlacement, group: MemberGroup, number: int) -> Pick:
    """All members on one node, on the scarcest model that suffices; a GPU part on the fullest device that has room."""
    if group.request.gpu_milli:
        part, (_, _, gpus, shares) = group.request.gpu_milli, draft.amounts(number)
        candidates = [
            (next((share for share in shares.get(m, ()) if share >= part), WHOLE_GPU), gpus.get(m, 0), m)
            for m in group.models
        ]
        return Pick(
            number,
            min(candidate for candidate in candidates if candidate[0] < WHOLE_GPU or candidate[1] > 0)[2],
            group.count,
        )
    gpus, needed = draft.amounts(number)[2], group.request.gpu_count * group.count
    return Pick(number, min((gpus[m], m) for m in group.models if gpus.get(m, 0) >= needed)[1], group.count)


def _fill_bare(draft: PartialPlacement, group: MemberGroup, pool: NodePool) -> list[Pick] | None:
    """Members without GPUs: next to the gang, on nodes without GPUs, on CPUs beyond the GPUs' share, anywhere; in this
    order.
    """
    request, count, capacity = group.request, group.count, draft.capacity
    if not draft.left and group.may_share_a_node:
        number = capacity.tightest_bare(request.times(count), pool)
        if number is not None:
            return [Pick(number, None, count)]
        cpu_rooms = capacity.bare_rooms(request, pool, count)
        if cpu_rooms.total >= count:
            return _bare_picks(draft, group, cpu_rooms)
        number = capacity.tightest_spare(request.times(count), pool)
        if number is not None:
            return [Pick(number, None, count)]
    if not capacity.can_hold(request, (), pool, count):
        return None
    rooms = draft.rooms(request, (), pool, group.max_per_node)
    if rooms.total < count:
        return None
    is_rich = capacity.cluster.has_gpus[rooms.numbers]
    spare = np.where(is_rich, np.minimum(rooms.slots, _spare_slots(draft, rooms.numbers, group)), rooms.slots)
    on_spare = Rooms(rooms.numbers, spare).where(spare > 0)
    tiers = [rooms.where(~is_rich), on_spare]
    if draft.left:
        tiers.insert(0, on_spare.where(draft.among(on_spare.numbers, draft.left)))
    tier = next((tier for tier in tiers if tier.total >= count), rooms)
    return _bare_picks(draft, group, tier)


def _bare_picks(draft: PartialPlacement, group: MemberGroup, rooms: Rooms) -> list[Pick]:
    return [Pick(number, None, members) for number, members in few(draft, rooms, group.count, group)]


def _spare_slots(draft: PartialPlacement, numbers: Ints, group: MemberGroup) -> Ints:
    """Members that fit while each free GPU of the node keeps its share of the CPUs."""
    cpu, _, gpus = draft.columns(numbers)
    cpu = cpu - draft.capacity.cpu_shares[numbers] * gpus
    per_member = group.request.cpu_milli
    spare: Ints = np.maximum(cpu // per_member, 0) if per_member else np.full(len(cpu), group.count, dtype=np.int64)
    return spare


def _tightness(draft: PartialPlacement, group: MemberGroup, numbers: Ints, members: Ints | int) -> list[Ints]:
    """Best-fit keys of each node with ``members`` placed: compared in order, smaller is better."""
    request, cluster = group.request, draft.capacity.cluster
    cpu, memory, gpus = draft.columns(numbers)
    cpu_left, memory_left = cpu - members * request.cpu_milli, memory - members * request.memory_bytes
    if request.gpu_count:
        return [gpus - members * request.gpu_count, cpu_left, memory_left, numbers]
    if request.gpu_milli:  # open as few devices as possible
        shared = np.array([_on_shared(draft, group, number) for number in numbers.tolist()], dtype=np.int64)
        opened = -(-np.maximum(0, members - shared) // (WHOLE_GPU // request.gpu_milli))
        return [opened, gpus - opened, cpu_left, memory_left, numbers]
    is_rich = cluster.has_gpus[numbers].astype(np.int64)
    missing = np.maximum(0, draft.capacity.cpu_shares[numbers] * gpus - cpu_left) * is_rich
    return [is_rich, missing, cpu_left, memory_left, numbers]


def _on_shared(draft: PartialPlacement, group: MemberGroup, number: int) -> int:
    """Members that need no new device."""
    shares = draft.amounts(number)[3]
    if not shares:
        return 0
    return sum(left // group.request.gpu_milli for model in group.models for left in shares.get(model, ()))


def few(draft: PartialPlacement, rooms: Rooms, count: int, group: MemberGroup) -> list[_Room]:
    """Members per node for ``count`` members on the fewest nodes; ``rooms`` must hold them all.

    Nodes that the gang uses already come first. Among equals, racks with much room come first, as a whole, and among
    such racks those in zones with much room.
    """
    if draft.left:
        is_used = draft.among(rooms.numbers, draft.left)
        used_rooms = rooms.where(is_used)
        if len(used_rooms):
            on_used = min(count, used_rooms.total)
            placed = _fewest(draft, used_rooms, on_used, group)
            if on_used == count:
                return placed
            return placed + _fewest(draft, rooms.where(~is_used), count - on_used, group)
    return _fewest(draft, rooms, count, group)


def _fewest(draft: PartialPlacement, rooms: Rooms, count: int, group: MemberGroup) -> list[_Room]:
    cluster = draft.capacity.cluster
    placed: list[_Room] = []
    is_unused = np.ones(len(rooms), dtype=np.bool_)
    room_in: list[Ints] = []
    while True:
        numbers, slots = rooms.numbers[is_unused], rooms.slots[is_unused]
        if not len(numbers):
            raise AssertionError("rooms hold fewer members than asked for")
        most = int(slots.max())
        if most >= count:  # best fit for the last node
            large_enough = numbers[slots >= count]
            return [*placed, (int(large_enough[least(_tightness(draft, group, large_enough, count))]), count)]
        if not room_in:
            in_rack = np.bincount(cluster.rack_of[numbers], weights=slots).astype(np.int64)
            in_zone = np.bincount(cluster.zone_of[numbers], weights=slots).astype(np.int64)
            room_in = [in_rack, in_zone]
        full = numbers[slots == most]
        racks, zones = cluster.rack_of[full], cluster.zone_of[full]
        keys = [-room_in[0][racks], -room_in[1][zones], zones, racks, *_tightness(draft, group, full, most)]
        filled = full[smallest(keys, -(-count // most) - 1)]
        placed += [(number, most) for number in filled.tolist()]
        count -= most * len(filled)
        is_unused &= ~np.isin(rooms.numbers, filled)


def _as_picks(draft: PartialPlacement, group: MemberGroup, models: Sequence[str], rooms: Sequence[_Room]) -> list[Pick]:
    """Assign GPU models to each node's members, preferred models first (without a preference the scarcest first)."""
    size, part = group.request.gpu_count, group.request.gpu_milli
    picks: list[Pick] = []
    for number, members in rooms:
        _, _, gpus, shares = draft.amounts(number)
        if part:
            room = {m: room_for_parts(shares.get(m, ()), max(0, gpus.get(m, 0)), part) for m in models}
        else:
            room = {m: gpus.get(m, 0) // size for m in models}
        usable_models = [model for model in models if room[model] > 0]
        if not group.is_picky:
            usable_models.sort(key=lambda model: (gpus.get(model, 0), model))
        for model in usable_models:
            placed = min(members, room[model])
            if placed:
                picks.append(Pick(number, model, placed))
                members -= placed  # noqa: PLW2901 (what is still to be given on this node)
    return picks
