"""What-if eviction: a capacity from which running gangs are removed and restored, to see what fits without them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from core.domain.sharing.resources import ResourceRequest
from scheduler.planning.model import NodeSnapshot, RunningGang
from scheduler.planning.placement.capacity import Capacity, FreeAmounts
from scheduler.planning.placement.demand import Demand
from scheduler.planning.placement.gang import place
from scheduler.planning.placement.partial import PartialPlacement, subtract
from scheduler.planning.placement.search import SearchBudget

NodeUse = tuple[int, ResourceRequest, str | None, int]  # node number, request per member, GPU model, member count


@dataclass(frozen=True, slots=True)
class Evictable:
    """An evictable unit: a whole gang, or one replica (``index``) that an elastic gang can do without.

    ``cost``: GPU-seconds that its eviction loses.
    """

    gang: RunningGang
    uses: tuple[NodeUse, ...]
    cost: float
    index: int | None = None

    @property
    def key(self) -> tuple[str, int]:
        return self.gang.job_id, -1 if self.index is None else self.index

    @property
    def order(self) -> tuple[object, ...]:
        """Sort key: cheapest first; among equals the youngest."""
        return self.cost, -_age(self.gang.started_at), self.key


def _age(at: datetime | None) -> float:
    return 0.0 if at is None else at.timestamp()


def add_back(left: FreeAmounts, request: ResourceRequest, model: str | None, members: int) -> FreeAmounts:
    """The free amounts after ``members`` are gone.

    The device of a GPU part is unknown: the part counts as free space on a device of its own, a lower bound.
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
    """A hypothetical capacity: ``capacity`` is ``base`` plus the resources of the evicted units.

    If ``base`` is a view of a parent capacity, the parent is adjusted in the same way.

    Args:
        base: not modified. reserved_nodes: nodes reserved for jobs ahead in the queue; evictions there free nothing
        for this job.
    """

    def __init__(self, base: Capacity, reserved_nodes: frozenset[int] = frozenset()) -> None:
        self.base = base
        self.capacity = base.copy()
        self.reserved_nodes = reserved_nodes
        # The GPU headroom grows wherever GPUs become free, for whichever job: then reserved nodes must be adjusted,
        # too.
        self._ignored_nodes = reserved_nodes if self._parent is None else frozenset[int]()
        self._evicted: dict[int, dict[tuple[str, int], Evictable]] = {}  # node -> evictables
        self._claimed: dict[int, list[NodeUse]] = {}

    def copy(self) -> EvictionWhatIf:
        """An independent copy."""
        clone = EvictionWhatIf(self.capacity, self.reserved_nodes)
        clone.base = self.base
        clone._evicted = {number: evictables.copy() for number, evictables in self._evicted.items()}
        clone._claimed = {number: uses.copy() for number, uses in self._claimed.items()}
        return clone

    def fits(self, demand: Demand) -> PartialPlacement | None:
        return place(demand, self.capacity, SearchBudget())

    def evict(self, evictables: Iterable[Evictable]) -> None:
        """Take these evicted; those that are evicted already change nothing."""
        changed: set[int] = set()
        for evictable in evictables:
            for number in {use[0] for use in evictable.uses} - self._ignored_nodes:
                self._evicted.setdefault(number, {})[evictable.key] = evictable
                changed.add(number)
        self._refresh(changed)

    def restore(self, evictables: Iterable[Evictable]) -> None:
        changed: set[int] = set()
        for evictable in evictables:
            for number in {use[0] for use in evictable.uses}:
                if self._evicted.get(number, {}).pop(evictable.key, None) is not None:
                    changed.add(number)
        self._refresh(changed)

    def claim(self, draft: PartialPlacement) -> None:
        """Somebody has been promised this."""
        uses = draft.uses()
        for use in uses:
            self._claimed.setdefault(use[0], []).append(use)
        self._refresh({use[0] for use in uses})

    @property
    def _parent(self) -> Capacity | None:
        """What ``base`` is a part of, where that matters."""
        return None if self.base.headroom is None else self.base.parent

    def free_after(self, number: int, evictables: Iterable[Evictable]) -> FreeAmounts:
        """What is free on one node without ``evictables`` too."""
        evicted: Mapping[tuple[str, int], Evictable] = (
            {} if number in self.reserved_nodes else self._evicted.get(number, {})
        )
        return self._without(self.base, number, {**evicted, **{evictable.key: evictable for evictable in evictables}})

    def _without(self, base: Capacity, number: int, evicted: Mapping[tuple[str, int], Evictable]) -> FreeAmounts:
        """The free amounts of ``base`` on one node after the evictions, minus what was claimed."""
        node = base.cluster.nodes[number]
        left: FreeAmounts = (base.cpu[number], base.memory[number], base.gpus[number], base.shares[number])
        whole_gangs = {job_id for job_id, index in evicted if index < 0}
        for (job_id, index), evictable in evicted.items():
            if index >= 0 and job_id in whole_gangs:
                continue  # counted with its gang
            for use_number, request, model, members in evictable.uses:
                if use_number == number:
                    left = add_back(left, request, model, members)
        left = _at_most(left, node, base, number)
        for _, request, model, members in self._claimed.get(number, ()):
            left = subtract(left, request, model, members)
        return left

    def _refresh(self, numbers: Iterable[int]) -> None:
        for number in sorted(numbers):
            self.capacity.put(number, *self.free_after(number, ()))
            if self._parent is not None and self.capacity.parent is not None:
                self.capacity.parent.put(number, *self._without(self._parent, number, self._evicted.get(number, {})))


def _at_most(left: FreeAmounts, node: NodeSnapshot, base: Capacity, number: int) -> FreeAmounts:
    """Cap at the node's allocatable amounts: a stopping gang may have returned a part already."""
    cpu, memory, gpus, shares = left
    allocatable: Mapping[str, int] = node.allocatable.gpus
    return (
        min(cpu, max(node.allocatable.cpu_milli, base.cpu[number])),
        min(memory, max(node.allocatable.memory_bytes, base.memory[number])),
        {m: min(count, max(allocatable.get(m, 0), base.gpus[number].get(m, 0))) for m, count in gpus.items()},
        shares,
    )
