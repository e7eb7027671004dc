"""A capacity on which evictables of running gangs are taken away and put back, to see what fits without them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from core.domain.sharing.resources import Request
from scheduler.planning.model import NodeSnapshot, RunningGang
from scheduler.planning.placement.capacity import Capacity
from scheduler.planning.placement.demand import Demand
from scheduler.planning.placement.gang import place
from scheduler.planning.placement.partial import FreeAmounts, PartialPlacement, subtract
from scheduler.planning.placement.search import SearchBudget

NodeUse = tuple[int, Request, str | None, int]  # node, request of one member, GPU model, members


@dataclass(frozen=True, slots=True)
class Evictable:
    """Something that can be taken away: a whole gang, or one replica (``index``) that an elastic gang can do without.

    ``cost``: GPU-seconds that are lost with it.
    """

    gang: RunningGang
    held: tuple[NodeUse, ...]
    cost: float
    index: int | None = None

    @property
    def key(self) -> tuple[str, int]:
        return self.gang.job_id, -1 if self.index is None else self.index

    @property
    def order(self) -> tuple[object, ...]:
        """The cheapest first, of equals the youngest."""
        return self.cost, -_age(self.gang.started_at), self.key


def _age(at: datetime | None) -> float:
    return 0.0 if at is None else at.timestamp()


def more(left: FreeAmounts, request: Request, model: str | None, members: int) -> FreeAmounts:
    """What is free when ``members`` are gone. Which device a part was on is not known: it counts as room of that size on
    a device of its own, which is there in any case.
    """
    cpu, memory, gpus, shares = left
    if model is not None:
        if request.gpu_count:
            gpus = {**gpus, model: gpus.get(model, 0) + members * request.gpu_count}
        elif request.gpu_milli:
            parts = sorted((*shares.get(model, ()), *[request.gpu_milli] * members))
            shares = {**shares, model: tuple(parts)}
    return cpu + members * request.cpu_milli, memory + members * request.memory_bytes, gpus, shares


class EvictionWhatIf:
    """``room``: ``base`` without the evictables that are away; and so is what ``room`` is a part of, if ``base`` is a part.

    Args:
        base: is not changed.
        closed: nodes on which nothing becomes free for the one who asks, since it is kept for somebody before it.
    """

    def __init__(self, base: Capacity, closed: frozenset[int] = frozenset()) -> None:
        self.base = base
        self.room = base.copy()
        self.quarantined = closed
        # Of what is free in all, more is kept for GPUs where GPUs become free, whoever gets them.
        self._unseen = closed if self._over is None else frozenset[int]()
        self._away: dict[int, dict[tuple[str, int], Evictable]] = {}  # node -> evictables
        self._taken: dict[int, list[NodeUse]] = {}

    def copy(self) -> EvictionWhatIf:
        """A twin that may be changed."""
        twin = EvictionWhatIf(self.room, self.closed)
        twin.base = self.base
        twin._away = {number: evictables.copy() for number, evictables in self._away.items()}
        twin._taken = {number: taken.copy() for number, taken in self._taken.items()}
        return twin

    def fits(self, demand: Demand) -> PartialPlacement | None:
        return place(demand, self.room, SearchBudget())

    def clear(self, evictables: Iterable[Evictable]) -> None:
        """Take these away; those that are away already change nothing."""
        touched: set[int] = set()
        for evictable in evictables:
            for number in {held[0] for held in evictable.uses} - self._unseen:
                self._away.setdefault(number, {})[evictable.key] = evictable
                touched.add(number)
        self._show(touched)

    def restore(self, evictables: Iterable[Evictable]) -> None:
        touched: set[int] = set()
        for evictable in evictables:
            for number in {held[0] for held in evictable.uses}:
                if self._away.get(number, {}).pop(evictable.key, None) is not None:
                    touched.add(number)
        self._show(touched)

    def take(self, draft: PartialPlacement) -> None:
        """Somebody has been promised this."""
        used = draft.uses()
        for held in used:
            self._taken.setdefault(held[0], []).append(held)
        self._show({held[0] for held in used})

    @property
    def _over(self) -> Capacity | None:
        """What ``base`` is a part of, where that matters."""
        return None if self.base.headroom is None else self.base.parent

    def after(self, number: int, evictables: Iterable[Evictable]) -> FreeAmounts:
        """What is free on one node without ``evictables`` too."""
        away: Mapping[tuple[str, int], Evictable] = {} if number in self.closed else self._away.get(number, {})
        return self._without(self.base, number, {**away, **{evictable.key: evictable for evictable in evictables}})

    def _without(self, base: Capacity, number: int, gone: Mapping[tuple[str, int], Evictable]) -> FreeAmounts:
        """What ``base`` has free on one node without those that are gone, and beside what was promised."""
        whole = base.cluster.nodes[number]
        left: FreeAmounts = (base.cpu[number], base.memory[number], base.gpus[number], base.shares[number])
        whole_gangs = {job_id for job_id, index in gone if index < 0}
        for (job_id, index), evictable in gone.items():
            if index >= 0 and job_id in whole_gangs:
                continue  # goes with its gang
            for at, request, model, members in evictable.uses:
                if at == number:
                    left = more(left, request, model, members)
        left = _at_most(left, whole, base, number)
        for _, request, model, members in self._taken.get(number, ()):
            left = subtract(left, request, model, members)
        return left

    def _show(self, numbers: Iterable[int]) -> None:
        for number in sorted(numbers):
            self.room.put(number, *self.after(number, ()))
            if self._over is not None and self.room.parent is not None:
                self.room.parent.put(number, *self._without(self._over, number, self._away.get(number, {})))


def _at_most(left: FreeAmounts, whole: NodeSnapshot, base: Capacity, number: int) -> FreeAmounts:
    """A holder may have given back a part already: a node never has more than all of its own."""
    cpu, memory, gpus, shares = left
    most: Mapping[str, int] = whole.allocatable.gpus
    return (
        min(cpu, max(whole.allocatable.cpu_milli, base.cpu[number])),
        min(memory, max(whole.allocatable.memory_bytes, base.memory[number])),
        {m: min(count, max(most.get(m, 0), base.gpus[number].get(m, 0))) for m, count in gpus.items()},
        shares,
    )
