"""Choose nodes for one group of equal members: few nodes, small holes, the right models.

Exact in one thing: if the members fit at all, nodes are found, since the members are alike and every node's room for
them is counted. Which nodes is a preference, decided greedily.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from core.domain.parts import WHOLE, room_for_parts
from scheduler.planning.cluster import Pool
from scheduler.planning.demand import Group
from scheduler.planning.draft import Draft, Pick

_Room = tuple[int, int]  # (node number, members that fit)
_Tight = Callable[[int, int], tuple[int, ...]]


def fill(draft: Draft, group: Group, pool: Pool) -> list[Pick] | None:
    """Nodes for all members of ``group``, or ``None`` if they do not fit. ``draft`` is not changed.

    Nodes that the gang uses already come first, then as few others as possible; the last one is the one that it
    fills best, so that large holes stay whole.
    """
    if group.request.uses_gpu:
        return _fill_gpus(draft, group, pool)
    return _fill_bare(draft, group, pool)


def _fill_gpus(draft: Draft, group: Group, pool: Pool) -> list[Pick] | None:
    request, count = group.request, group.count
    may_be_one = not draft.left and group.may_share_a_node and (count == 1 or not request.gpu_milli)
    if may_be_one and not group.is_picky:
        number = draft.capacity.tightest(request.times(count), group.models, pool)
        if number is not None:
            return [_on_scarcest(draft, group, number)]
    if not draft.capacity.can_hold(request, group.models, pool, count):
        return None
    # One model for all members, before members of different speed hold one another up.
    best: tuple[tuple[object, ...], list[Pick]] | None = None
    for model in group.models:
        picks = _fill_model(draft, group, model, pool, may_be_one=may_be_one)
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
    rooms = draft.rooms(request, group.models, pool, group.most_on_one)
    if len(group.models) == 1 or sum(slots for _, slots in rooms) < count:
        return None
    return _as_picks(draft, group, group.models, few(draft, rooms, count, _tight_gpus(draft, group)))


def _fill_model(draft: Draft, group: Group, model: str, pool: Pool, *, may_be_one: bool) -> list[Pick] | None:
    request, count = group.request, group.count
    if may_be_one:
        number = draft.capacity.tightest(request.times(count), (model,), pool)
        if number is not None:
            return [Pick(number, model, count)]
    rooms = draft.rooms(request, (model,), pool, group.most_on_one)
    if sum(slots for _, slots in rooms) < count:
        return None
    return _as_picks(draft, group, (model,), few(draft, rooms, count, _tight_gpus(draft, group)))


def _on_scarcest(draft: Draft, group: Group, number: int) -> Pick:
    """All members on one node, on the model with the fewest devices left that suffice; a part on the fullest device."""
    if group.request.gpu_milli:
        part, (_, _, gpus, shares) = group.request.gpu_milli, draft.amounts(number)
        left = [
            (next((share for share in shares.get(m, ()) if share >= part), WHOLE), gpus.get(m, 0), m)
            for m in group.models
        ]
        return Pick(number, min(each for each in left if each[0] < WHOLE or each[1] > 0)[2], group.count)
    gpus, wanted = draft.amounts(number)[2], group.request.gpu_count * group.count
    return Pick(number, min((gpus[m], m) for m in group.models if gpus.get(m, 0) >= wanted)[1], group.count)


def _fill_bare(draft: Draft, group: Group, pool: Pool) -> list[Pick] | None:
    """Without GPUs: beside the gang, on nodes without GPUs, on CPUs that no GPU will miss, anywhere; in this order."""
    request, count, capacity = group.request, group.count, draft.capacity
    tight = _tight_bare(draft, group)
    if not draft.left and group.may_share_a_node:
        number = capacity.tightest_bare(request.times(count), pool)
        if number is not None:
            return [Pick(number, None, count)]
        bare = capacity.bare_rooms(request, pool, count)
        if sum(slots for _, slots in bare) >= count:
            return [Pick(n, None, members) for n, members in few(draft, bare, count, tight)]
        number = capacity.tightest_spare(request.times(count), pool)
        if number is not None:
            return [Pick(number, None, count)]
    if not capacity.can_hold(request, (), pool, count):
        return None
    rooms = draft.rooms(request, (), pool, group.most_on_one)
    if sum(slots for _, slots in rooms) < count:
        return None
    models_of = capacity.cluster.models_of
    bare = [room for room in rooms if not models_of[room[0]]]
    spare = [(n, min(slots, _spare_slots(draft, n, group))) for n, slots in rooms if models_of[n]]
    spare = [room for room in spare if room[1]]
    beside = [room for room in [*bare, *spare] if room[0] in draft.left]
    for tier in (beside, bare, bare + spare):
        if tier and sum(slots for _, slots in tier) >= count:
            return [Pick(n, None, members) for n, members in few(draft, tier, count, tight)]
    return [Pick(n, None, members) for n, members in few(draft, rooms, count, tight)]


def _spare_slots(draft: Draft, number: int, group: Group) -> int:
    """Members that fit while each free GPU of the node keeps its share of the CPUs."""
    request = group.request
    cpu, _, gpus, _ = draft.amounts(number)
    cpu -= draft.capacity.cluster.cpu_share[number] * sum(max(0, count) for count in gpus.values())
    if not request.cpu_milli:
        return group.count
    return max(0, min(group.count, cpu // request.cpu_milli))


def _tight_gpus(draft: Draft, group: Group) -> _Tight:
    request = group.request
    if request.gpu_milli:
        return _tight_parts(draft, group)

    def tight(number: int, members: int) -> tuple[int, ...]:
        cpu, memory, gpus, _ = draft.amounts(number)
        return (
            sum(gpus.values()) - members * request.gpu_count,
            cpu - members * request.cpu_milli,
            memory - members * request.memory_bytes,
            number,
        )

    return tight


def _tight_parts(draft: Draft, group: Group) -> _Tight:
    """As few devices as possible are opened for parts."""
    request, part = group.request, group.request.gpu_milli

    def tight(number: int, members: int) -> tuple[int, ...]:
        cpu, memory, gpus, shares = draft.amounts(number)
        on_shared = sum(left // part for model in group.models for left in shares.get(model, ()))
        opened = -(-max(0, members - on_shared) // (WHOLE // part))
        whole = sum(gpus.values()) - opened
        return (opened, whole, cpu - members * request.cpu_milli, memory - members * request.memory_bytes, number)

    return tight


def _tight_bare(draft: Draft, group: Group) -> _Tight:
    request, cluster = group.request, draft.capacity.cluster

    def tight(number: int, members: int) -> tuple[int, ...]:
        cpu, memory, gpus, _ = draft.amounts(number)
        left = cpu - members * request.cpu_milli
        missing = max(0, cluster.cpu_share[number] * sum(gpus.values()) - left) if cluster.models_of[number] else 0
        return (bool(cluster.models_of[number]), missing, left, memory - members * request.memory_bytes, number)

    return tight


def few(draft: Draft, rooms: Sequence[_Room], count: int, tight: _Tight) -> list[_Room]:
    """Members per node for ``count`` members on the fewest nodes; ``rooms`` must have room for them all.

    Nodes that the gang uses already come first. Among equals, racks with much room come first, whole.
    """
    if draft.left:
        mine = [room for room in rooms if room[0] in draft.left]
        if mine:
            here = min(count, sum(slots for _, slots in mine))
            chosen = _fewest(draft, mine, here, tight)
            if here == count:
                return chosen
            others = [room for room in rooms if room[0] not in draft.left]
            return chosen + _fewest(draft, others, count - here, tight)
    return _fewest(draft, rooms, count, tight)


def _fewest(draft: Draft, rooms: Sequence[_Room], count: int, tight: _Tight) -> list[_Room]:
    whole = [n for n, slots in rooms if slots >= count]
    if whole:
        return [(min(whole, key=lambda n: tight(n, count)), count)]
    racks = draft.capacity.cluster.racks
    in_rack: dict[str, int] = {}
    for number, slots in rooms:
        in_rack[racks[number]] = in_rack.get(racks[number], 0) + slots
    ordered = sorted(
        rooms, key=lambda room: (-room[1], -in_rack[racks[room[0]]], racks[room[0]], tight(room[0], room[1]))
    )
    chosen: list[_Room] = []
    for position, (number, slots) in enumerate(ordered):
        if slots >= count:
            last = min((n for n, room in ordered[position:] if room >= count), key=lambda n: tight(n, count))
            return [*chosen, (last, count)]
        chosen.append((number, slots))
        count -= slots
    raise AssertionError("rooms hold fewer members than asked for")


def _as_picks(draft: Draft, group: Group, models: Sequence[str], chosen: Sequence[_Room]) -> list[Pick]:
    """Give each node's members their models, the preferred one first (without a preference the scarcest first)."""
    size, part = group.request.gpu_count, group.request.gpu_milli
    picks: list[Pick] = []
    for number, members in chosen:
        _, _, gpus, shares = draft.amounts(number)
        if part:
            room = {m: room_for_parts(shares.get(m, ()), max(0, gpus.get(m, 0)), part) for m in models}
        else:
            room = {m: gpus.get(m, 0) // size for m in models}
        here = [model for model in models if room[model] > 0]
        if not group.is_picky:
            here.sort(key=lambda model: (gpus.get(model, 0), model))
        for model in here:
            taken = min(members, room[model])
            if taken:
                picks.append(Pick(number, model, taken))
                members -= taken  # noqa: PLW2901 (what is still to be given on this node)
    return picks
