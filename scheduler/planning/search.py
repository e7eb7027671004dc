"""The exact search for small gangs of unlike members, where the greedy strategies found nothing.

Simple equivalent: try every assignment of members to nodes. The difference: members of a group are alike, so only
*how many* of each group a node takes matters; nodes with equal free amounts offer the same such packs; and of two
partial solutions over the same nodes the one with fewer members left in every group makes the other superfluous.
What remains is still exponential in the number of groups, hence the budget.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeVar

from core.domain.resources import Request
from scheduler.planning.cluster import Pool
from scheduler.planning.demand import Group
from scheduler.planning.draft import Draft, Pick

# Steps of about a microsecond: one gang may cost 5 ms, a whole tick 30 ms.
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


class Budget:
    """Steps that searches may still take. ``ran_out``: some search gave up, so that "no" means "not found"."""

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


def search(draft: Draft, groups: Sequence[Group], pool: Pool, budget: Budget) -> Draft | None:
    """Some placement of all groups inside ``pool``, if there is one and the budget suffices to see it."""
    allowed = max(0, min(budget.steps, budget.per_gang))
    meter = _Meter(allowed)
    try:
        found = _search(draft, groups, pool, meter)
    except _OutOfSteps:
        budget.ran_out = True
        found = None
    budget.steps -= allowed - max(0, meter.left)
    return found


def _search(draft: Draft, groups: Sequence[Group], pool: Pool, meter: _Meter) -> Draft | None:
    capacity = draft.capacity
    numbers = {n for g in groups for n, _ in capacity.rooms(g.request, g.models, pool, 1)}
    known: dict[object, tuple[_Pack, ...]] = {}
    choices: list[tuple[int, tuple[_Pack, ...]]] = []
    for number in sorted(numbers):
        cpu, memory, gpus = draft.amounts(number)
        signature = (cpu, memory, tuple(sorted(gpus.items())))
        if signature not in known:
            known[signature] = _packs(cpu, memory, gpus, groups, meter)
        choices.append((number, known[signature]))
    choices.sort(key=lambda choice: (-max(sum(counts) for counts, _ in choice[1]), choice[0]))
    start = tuple(group.count for group in groups)
    done = tuple(0 for _ in groups)
    frontier: dict[_Counts, _Step | None] = {start: None}  # members left -> how we came there
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
    kept: dict[_Counts, _Value] = {}
    for left in sorted(states, key=lambda counts: (sum(counts), counts)):
        meter.use(1 + len(kept) // 8)
        if not any(all(a <= b for a, b in zip(other, left, strict=True)) for other in kept):
            kept[left] = states[left]
    return kept


def _packs(cpu: int, memory: int, gpus: Mapping[str, int], groups: Sequence[Group], meter: _Meter) -> tuple[_Pack, ...]:
    """All that one node can take at once, without what is part of something larger."""
    found: dict[_Counts, _Taken] = {}

    def descend(
        at: int,
        cpu: int,
        memory: int,
        gpus: Mapping[str, int],
        counts: _Counts,
        chosen: _Taken,
    ) -> None:
        meter.use(1)
        if at == len(groups):
            found.setdefault(counts, chosen)
            return
        group = groups[at]
        for taken, after in _splits(at, group, cpu, memory, gpus):
            members = sum(count for _, _, count in taken)
            used = group.request
            descend(
                at + 1,
                cpu - members * used.cpu_milli,
                memory - members * used.memory_bytes,
                after,
                (*counts, members),
                chosen + taken,
            )

    descend(0, cpu, memory, gpus, (), ())
    kept = _not_dominated({tuple(-count for count in counts): chosen for counts, chosen in found.items()}, meter)
    return tuple((tuple(-count for count in counts), found[tuple(-c for c in counts)]) for counts in kept)


def _splits(
    at: int, group: Group, cpu: int, memory: int, gpus: Mapping[str, int]
) -> list[tuple[_Taken, Mapping[str, int]]]:
    """Every number of the group's members on this node, over every division between its GPU models."""
    request: Request = group.request
    most = group.count
    if request.cpu_milli:
        most = min(most, cpu // request.cpu_milli)
    if request.memory_bytes:
        most = min(most, memory // request.memory_bytes)
    if not request.gpu_count:
        return [(((at, None, count),) if count else (), gpus) for count in range(most + 1)]
    splits: list[tuple[_Taken, Mapping[str, int]]] = [((), gpus)]
    for model in group.models:
        longer: list[tuple[_Taken, Mapping[str, int]]] = []
        for taken, left in splits:
            room = min(most - sum(count for _, _, count in taken), left.get(model, 0) // request.gpu_count)
            longer.extend(
                ((*taken, (at, model, count)), {**left, model: left[model] - count * request.gpu_count})
                for count in range(1, room + 1)
            )
        splits += longer
    return splits


def _rebuilt(draft: Draft, groups: Sequence[Group], step: _Step | None) -> Draft:
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
    made = Draft(draft.capacity)
    for group, chosen in zip(groups, picks, strict=True):
        made.add(group, chosen)
    return made
