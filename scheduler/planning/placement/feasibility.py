"""Feasibility: whether a gang could run at all on the empty cluster."""

from __future__ import annotations

from collections import Counter

from core.domain.sharing.gpus import WHOLE_GPU
from core.domain.sharing.resources import Amounts
from scheduler.planning.model import WaitReasonCode
from scheduler.planning.placement.capacity import Capacity, Headroom, slots_in
from scheduler.planning.placement.cluster import ClusterIndex, NodePool
from scheduler.planning.placement.demand import Demand, MemberGroup
from scheduler.planning.placement.gang import place
from scheduler.planning.placement.search import SearchBudget

# Once per shape; a large gang of unlike roles may take this many search steps on an empty cluster.
_STEPS = 20_000
_Kind = tuple[Amounts, int]  # a node size, and how many nodes have it


class EmptyCluster:
    """Feasibility on the empty cluster. Nodes of equal size are counted, not visited one by one.

    ``headroom``: the GPU headroom, once known.
    """

    __slots__ = ("_capacity", "_domain_kinds", "_kinds", "cluster", "headroom")

    def __init__(self, cluster: ClusterIndex) -> None:
        self.cluster = cluster
        self.headroom: Headroom | None = None
        self._capacity: Capacity | None = None
        self._domain_kinds: dict[tuple[int, str | None], list[tuple[_Kind, ...]]] = {}
        self._kinds: dict[int, list[tuple[Amounts, int, int]]] = {}

    @property
    def capacity(self) -> Capacity:
        if self._capacity is None:
            self._capacity = Capacity.empty(self.cluster)
            self._capacity.headroom = self.headroom
        return self._capacity

    def node_sizes(self, pool: NodePool) -> list[tuple[Amounts, int, int]]:
        """Each node size in ``pool``, how many nodes have it, and the first of them."""
        sizes = self._kinds.get(id(pool))
        if sizes is None:
            sizes = self._kinds[id(pool)] = self._count(pool)
        return sizes

    def _count(self, pool: NodePool) -> list[tuple[Amounts, int, int]]:
        counts: Counter[tuple[object, ...]] = Counter()
        first: dict[tuple[object, ...], int] = {}
        for number in pool.members:
            size = _size(self.cluster.nodes[number].allocatable)
            counts[size] += 1
            first.setdefault(size, number)
        return [(self.cluster.nodes[first[size]].allocatable, counts[size], first[size]) for size in counts]

    def members(self, group: MemberGroup, pool: NodePool) -> int:
        """How many members of ``group`` the empty pool holds, disregarding the rest of the gang."""
        return sum(
            nodes
            * slots_in(
                allocatable.cpu_milli, allocatable.memory_bytes, allocatable.gpus, group.request, group.models, 1 << 30
            )
            for allocatable, nodes, _ in self.node_sizes(pool)
        )

    def refusal(self, demand: Demand) -> WaitReasonCode | None:
        """Why ``demand`` can never run on these nodes; ``None`` if it can."""
        code = self._refusal(demand)
        if (
            code is None
            and demand.respects_headroom
            and place(demand, self.capacity, SearchBudget(_STEPS, _STEPS)) is None
        ):
            return WaitReasonCode.TOO_LARGE
        return code

    def _refusal(self, demand: Demand) -> WaitReasonCode | None:
        if not self.cluster.nodes:
            return WaitReasonCode.NO_NODES
        if not demand.pool.members:
            return WaitReasonCode.NO_MATCHING_NODE
        for group in demand.merged:
            if group.request.uses_gpu and not self.has_model(group, demand.pool):
                return WaitReasonCode.NO_MATCHING_NODE
        capacities = [self.members(group, demand.pool) for group in demand.merged]
        if not all(capacities):
            return WaitReasonCode.NEVER_FITS
        if any(members < group.count for members, group in zip(capacities, demand.merged, strict=True)):
            return WaitReasonCode.TOO_LARGE
        if len(capacities) == 1 and not demand.gang.topology_required and not demand.is_scattered:
            return None
        if not demand.is_scattered and any(_surely_fits(demand.merged, kinds) for kinds in self._domains(demand)):
            return None
        fits = place(demand, self.capacity, SearchBudget(_STEPS, _STEPS)) is not None
        return None if fits else WaitReasonCode.TOO_LARGE

    def _domains(self, demand: Demand) -> list[tuple[_Kind, ...]]:
        """The node sizes of each topology domain that the gang must stay inside, without duplicate domains."""
        level = demand.gang.topology if demand.gang.topology_required else None
        key = (id(demand.pool), level)
        domain_kinds = self._domain_kinds.get(key)
        if domain_kinds is None:
            pools = [demand.pool]
            if level == "node":
                pools = [NodePool((number,), len(self.cluster.nodes)) for number in demand.pool.members]
            elif level is not None:
                names = self.cluster.domain_names(level)
                domain_names = sorted({names[number] for number in demand.pool.members})
                pools = [self.cluster.domain(demand.pool, level, name) for name in domain_names]
            distinct: dict[tuple[object, ...], tuple[_Kind, ...]] = {}
            for pool in pools:
                kinds = tuple((allocatable, nodes) for allocatable, nodes, _ in self._count(pool))
                distinct.setdefault(tuple(sorted((*_size(allocatable), nodes) for allocatable, nodes in kinds)), kinds)
            domain_kinds = self._domain_kinds[key] = list(distinct.values())
        return domain_kinds

    def has_model(self, group: MemberGroup, pool: NodePool) -> bool:
        return any(
            allocatable.gpus.get(model, 0) > 0 for allocatable, _, _ in self.node_sizes(pool) for model in group.models
        )


def _size(allocatable: Amounts) -> tuple[object, ...]:
    return allocatable.cpu_milli, allocatable.memory_bytes, tuple(sorted(allocatable.gpus.items()))


def _surely_fits(groups: tuple[MemberGroup, ...], kinds: tuple[_Kind, ...]) -> bool:
    """A quick sufficient test: all on one empty node, or each group on whole nodes of its own."""
    if any(_fit_single_node(groups, allocatable) for allocatable, _ in kinds):
        return True
    unused_nodes = [nodes for _, nodes in kinds]
    for group in groups:
        missing = group.count
        # Node sizes that waste the fewest GPUs first, so that groups without GPUs leave those nodes to the others.
        for position in sorted(range(len(kinds)), key=lambda position: (kinds[position][0].gpu_count, position)):
            slots = _slots(kinds[position][0], group)
            if slots and missing > 0:
                used_nodes = min(unused_nodes[position], -(-missing // slots))
                unused_nodes[position] -= used_nodes
                missing -= used_nodes * slots
        if missing > 0:
            return False
    return True


def _fit_single_node(groups: tuple[MemberGroup, ...], allocatable: Amounts) -> bool:
    cpu = memory = gpus = parts = 0
    for group in groups:
        cpu += group.count * group.request.cpu_milli
        memory += group.count * group.request.memory_bytes
        gpus += group.count * group.request.gpu_count
        parts += -(-group.count // (WHOLE_GPU // group.request.gpu_milli)) if group.request.gpu_milli else 0
    if len(allocatable.gpus) > 1 or cpu > allocatable.cpu_milli or memory > allocatable.memory_bytes:
        return False
    if gpus + parts > allocatable.gpu_count:
        return False
    # One model on the node, so sums decide; each group must accept it.
    return all(not g.request.uses_gpu or any(allocatable.gpus.get(m, 0) for m in g.models) for g in groups)


def _slots(allocatable: Amounts, group: MemberGroup) -> int:
    return slots_in(
        allocatable.cpu_milli, allocatable.memory_bytes, allocatable.gpus, group.request, group.models, group.count
    )


class Infeasibility:
    """Cache: why the empty cluster refuses a demand under an eligibility key; ``None`` if it could hold it."""

    def __init__(self, empty: EmptyCluster) -> None:
        self.empty = empty
        self._reasons: dict[str, WaitReasonCode | None] = {}

    def reason(self, key: str, demand: Demand) -> WaitReasonCode | None:
        if key not in self._reasons:
            self._reasons[key] = self.empty.refusal(demand)
        return self._reasons[key]
