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
_Taken = tuple[tuple[int, str | None, int], ...]  # (group, model, members)
_Pack = tuple[_Counts, _Taken]


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
        found = _search(draft, groups, pool, meter, servers_apart=servers_apart)
    except _OutOfSteps:
        budget.ran_out = True
        found = None
    budget.steps -= allowed - max(0, meter.left)
    return found


def _search(
    draft: PartialPlacement, groups: Sequence[MemberGroup], pool: NodePool, meter: _Meter, *, servers_apart: bool
) -> PartialPlacement | None:
    capacity = draft.capacity
    numbers = {n for g in groups for n in capacity.rooms(g.request, g.models, pool, 1).numbers.tolist()}
    known: dict[object, tuple[_Pack, ...]] = {}
    choices: list[tuple[int, tuple[_Pack, ...]]] = []
    for number in sorted(numbers):
        whole = draft.amounts(number)
        signature = (whole[0], whole[1], tuple(sorted(whole[2].items())), tuple(sorted(whole[3].items())))
        if signature not in known:
            known[signature] = _packs(whole, groups, meter, servers_apart=servers_apart)
        choices.append((number, known[signature]))
    choices.sort(key=lambda choice: (-max(sum(counts) for counts, _ in choice[1]), choice[0]))
    start = tuple(group.count for group in groups)
    done = tuple(0 for _ in groups)
    frontier: dict[_Counts, _Step | None] = {start: None}  # members left -> last step of the path
    for number, packs in choices:
        meter.use(len(frontier) * len(packs))
        grown = dict(frontier)
        for left, path in frontier.items():
            for pack in packs:
                after = tuple(max(0, a - b) for a, b in zip(left, pack[0], strict=True))
                if after not in grown:
                    grown[after] = _Step(path, number, pack)
        if done in grown:
            return _rebuilt(draft, groups, grown[done])
        frontier = _not_dominated(grown, meter)
    return None


def _not_dominated(states: Mapping[_Counts, _Value], meter: _Meter) -> dict[_Counts, _Value]:
    frontier_states: dict[_Counts, _Value] = {}
    for left in sorted(states, key=lambda counts: (sum(counts), counts)):
        meter.use(1 + len(frontier_states) // 8)
        if not any(all(a <= b for a, b in zip(other, left, strict=True)) for other in frontier_states):
            frontier_states[left] = states[left]
    return frontier_states


def _packs(
    whole: FreeAmounts, groups: Sequence[MemberGroup], meter: _Meter, *, servers_apart: bool
) -> tuple[_Pack, ...]:
    """All maximal packs of one node."""
    found: dict[_Counts, _Taken] = {}

    def descend(at: int, left: FreeAmounts, counts: _Counts, chosen: _Taken) -> None:
        meter.use(1)
        if at == len(groups):
            found.setdefault(counts, chosen)
            return
        group = groups[at]
        is_barred = servers_apart and any(
            count and before.is_servers != group.is_servers for count, before in zip(counts, groups, strict=False)
        )
        for taken, after in [((), left)] if is_barred else _splits(at, group, left):
            descend(at + 1, after, (*counts, sum(count for _, _, count in taken)), chosen + taken)

    descend(0, whole, (), ())
    frontier_states = _not_dominated(
        {tuple(-count for count in counts): chosen for counts, chosen in found.items()}, meter
    )
    return tuple((tuple(-count for count in counts), found[tuple(-c for c in counts)]) for counts in frontier_states)


def _splits(at: int, group: MemberGroup, left: FreeAmounts) -> list[tuple[_Taken, FreeAmounts]]:
    """Every number of the group's members on this node, in every division between its GPU models."""
    request: ResourceRequest = group.request
    most = group.most_on_one
    if request.cpu_milli:
        most = min(most, left[0] // request.cpu_milli)
    if request.memory_bytes:
        most = min(most, left[1] // request.memory_bytes)
    if not request.uses_gpu:
        return [
            (((at, None, count),) if count else (), subtract(left, request, None, count)) for count in range(most + 1)
        ]
    splits: list[tuple[_Taken, FreeAmounts]] = [((), left)]
    for model in group.models:
        longer: list[tuple[_Taken, FreeAmounts]] = []
        for taken, now in splits:
            room = slots_in(*now[:3], request, (model,), most - sum(count for _, _, count in taken), now[3])
            longer.extend(
                ((*taken, (at, model, count)), subtract(now, request, model, count)) for count in range(1, room + 1)
            )
        splits += longer
    return splits


def _rebuilt(draft: PartialPlacement, groups: Sequence[MemberGroup], step: _Step | None) -> PartialPlacement:
    picks: list[list[Pick]] = [[] for _ in groups]
    left = [group.count for group in groups]
    while step is not None:
        for at, model, count in step.pack[1]:
            # A pack may offer more than was left to place.
            members = min(count, left[at])
            if members:
                picks[at].append(Pick(step.number, model, members))
                left[at] -= members
        step = step.before
    made = PartialPlacement(draft.capacity)
    for group, chosen in zip(groups, picks, strict=True):
        made.add(group, chosen)
    return made
