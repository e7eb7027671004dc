"""Exact search for small gangs of unlike members, where the greedy strategies found nothing.

The simple equivalent tries every assignment of members to nodes. Here, members of a group are equal, so only *how
many* of each group a node takes matters; nodes with equal free amounts offer the same packs; and a partial solution
dominates another one over the same nodes if it leaves no more members of any group. The rest is still exponential in
the number of groups, hence the budget.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeVar

from core.domain.sharing.resources import ResourceRequest
from scheduler.planning.placement.capacity import FreeAmounts, slots_in
from scheduler.planning.placement.cluster import NodePool
from scheduler.planning.placement.demand import MemberGroup
from scheduler.planning.placement.partial import PartialPlacement, Pick, subtract

# A step takes about a microsecond: one gang may cost 5 ms, a whole plan 30 ms.
STEPS_PER_GANG = 5_000
STEPS_PER_TICK = 30_000

_Counts = tuple[int, ...]  # members per group
_Value = TypeVar("_Value")
_Assignment = tuple[tuple[int, str | None, int], ...]  # (group, model, members)
_Pack = tuple[_Counts, _Assignment]


class _Step(NamedTuple):
    """The last pack of a partial solution, linked to those before it."""

    before: _Step | None
    number: int
    pack: _Pack


class SearchBudget:
    """Remaining search steps. ``ran_out``: some search gave up, so that "no" means "not found"."""

    __slots__ = ("per_gang", "ran_out", "steps")

    def __init__(self, steps: int = STEPS_PER_TICK, per_gang: int = STEPS_PER_GANG) -> None:
        self.steps = steps
        self.per_gang = per_gang
        self.ran_out = False


class _OutOfSteps(Exception):
    pass


class _Meter:
    def __init__(self, steps: int) -> None:
        self.left = steps

    def use(self, steps: int) -> None:
        self.left -= steps
        if self.left < 0:
            raise _OutOfSteps


def search(
    draft: PartialPlacement,
    groups: Sequence[MemberGroup],
    pool: NodePool,
    budget: SearchBudget,
    *,
    servers_apart: bool = False,
) -> PartialPlacement | None:
    """Some placement of all groups inside ``pool``, if there is one and the budget suffices to find it.

    ``servers_apart``: no node holds both parameter servers and other roles. Groups with larger GPU parts must come
    first.
    """
    allowed = max(0, min(budget.steps, budget.per_gang))
    meter = _Meter(allowed)
    try:
        placement = _search(draft, groups, pool, meter, servers_apart=servers_apart)
    except _OutOfSteps:
        budget.ran_out = True
        placement = None
    budget.steps -= allowed - max(0, meter.left)
    return placement


def _search(
    draft: PartialPlacement, groups: Sequence[MemberGroup], pool: NodePool, meter: _Meter, *, servers_apart: bool
) -> PartialPlacement | None:
    capacity = draft.capacity
    numbers = {n for g in groups for n in capacity.rooms(g.request, g.models, pool, 1).numbers.tolist()}
    packs_by_size: dict[object, tuple[_Pack, ...]] = {}
    choices: list[tuple[int, tuple[_Pack, ...]]] = []
    for number in sorted(numbers):
        amounts = draft.amounts(number)
        signature = (amounts[0], amounts[1], tuple(sorted(amounts[2].items())), tuple(sorted(amounts[3].items())))
        if signature not in packs_by_size:
            packs_by_size[signature] = _packs(amounts, groups, meter, servers_apart=servers_apart)
        choices.append((number, packs_by_size[signature]))
    choices.sort(key=lambda choice: (-max(sum(counts) for counts, _ in choice[1]), choice[0]))
    start = tuple(group.count for group in groups)
    complete = tuple(0 for _ in groups)
    frontier: dict[_Counts, _Step | None] = {start: None}  # members left -> last step of the path
    for number, packs in choices:
        meter.use(len(frontier) * len(packs))
        grown = dict(frontier)
        for missing, path in frontier.items():
            for pack in packs:
                still_missing = tuple(max(0, a - b) for a, b in zip(missing, pack[0], strict=True))
                if still_missing not in grown:
                    grown[still_missing] = _Step(path, number, pack)
        if complete in grown:
            return _rebuilt(draft, groups, grown[complete])
        frontier = _not_dominated(grown, meter)
    return None


def _not_dominated(states: Mapping[_Counts, _Value], meter: _Meter) -> dict[_Counts, _Value]:
    frontier_states: dict[_Counts, _Value] = {}
    for missing in sorted(states, key=lambda counts: (sum(counts), counts)):
        meter.use(1 + len(frontier_states) // 8)
        if not any(all(a <= b for a, b in zip(other, missing, strict=True)) for other in frontier_states):
            frontier_states[missing] = states[missing]
    return frontier_states


def _packs(
    amounts: FreeAmounts, groups: Sequence[MemberGroup], meter: _Meter, *, servers_apart: bool
) -> tuple[_Pack, ...]:
    """All maximal packs of one node."""
    packs: dict[_Counts, _Assignment] = {}

    def descend(position: int, left: FreeAmounts, counts: _Counts, assignment: _Assignment) -> None:
        meter.use(1)
        if position == len(groups):
            packs.setdefault(counts, assignment)
            return
        group = groups[position]
        is_barred = servers_apart and any(
            count and before.is_servers != group.is_servers for count, before in zip(counts, groups, strict=False)
        )
        for added, after in [((), left)] if is_barred else _splits(position, group, left):
            descend(position + 1, after, (*counts, sum(count for _, _, count in added)), assignment + added)

    descend(0, amounts, (), ())
    frontier_states = _not_dominated(
        {tuple(-count for count in counts): assignment for counts, assignment in packs.items()}, meter
    )
    return tuple((tuple(-count for count in counts), packs[tuple(-c for c in counts)]) for counts in frontier_states)


def _splits(position: int, group: MemberGroup, left: FreeAmounts) -> list[tuple[_Assignment, FreeAmounts]]:
    """Every number of the group's members on this node, in every division between its GPU models."""
    request: ResourceRequest = group.request
    most = group.max_per_node
    if request.cpu_milli:
        most = min(most, left[0] // request.cpu_milli)
    if request.memory_bytes:
        most = min(most, left[1] // request.memory_bytes)
    if not request.uses_gpu:
        return [
            (((position, None, count),) if count else (), subtract(left, request, None, count))
            for count in range(most + 1)
        ]
    splits: list[tuple[_Assignment, FreeAmounts]] = [((), left)]
    for model in group.models:
        longer: list[tuple[_Assignment, FreeAmounts]] = []
        for assignment, amounts in splits:
            room = slots_in(
                *amounts[:3], request, (model,), most - sum(count for _, _, count in assignment), amounts[3]
            )
            longer.extend(
                ((*assignment, (position, model, count)), subtract(amounts, request, model, count))
                for count in range(1, room + 1)
            )
        splits += longer
    return splits


def _rebuilt(draft: PartialPlacement, groups: Sequence[MemberGroup], step: _Step | None) -> PartialPlacement:
    picks: list[list[Pick]] = [[] for _ in groups]
    unplaced = [group.count for group in groups]
    while step is not None:
        for position, model, count in step.pack[1]:
            # A pack may offer more than was left to place.
            members = min(count, unplaced[position])
            if members:
                picks[position].append(Pick(step.number, model, members))
                unplaced[position] -= members
        step = step.before
    placement = PartialPlacement(draft.capacity)
    for group, group_picks in zip(groups, picks, strict=True):
        placement.add(group, group_picks)
    return placement
