"""Whether a gang could run at all, on the cluster as it is without any job."""

from __future__ import annotations

from collections import Counter

from core.domain.resources import Amounts
from scheduler.planning.capacity import Capacity, slots_in
from scheduler.planning.cluster import Cluster, Pool
from scheduler.planning.demand import Demand, Group
from scheduler.planning.gang import place
from scheduler.planning.model import ReasonCode
from scheduler.planning.search import Budget

# A question asked once per shape; a large gang of unlike roles may take this many steps on an empty cluster.
_STEPS = 20_000


class EmptyCluster:
    """Answers about the empty cluster. Nodes of equal size are counted, not walked through."""

    __slots__ = ("_capacity", "_kinds", "cluster")

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._capacity: Capacity | None = None
        self._kinds: dict[int, list[tuple[Amounts, int, int]]] = {}

    @property
    def capacity(self) -> Capacity:
        if self._capacity is None:
            self._capacity = Capacity.empty(self.cluster)
        return self._capacity

    def kinds(self, pool: Pool) -> list[tuple[Amounts, int, int]]:
        """Each size of node in ``pool``, how many there are and the first of them."""
        known = self._kinds.get(id(pool))
        if known is None:
            counts: Counter[tuple[object, ...]] = Counter()
            first: dict[tuple[object, ...], int] = {}
            for number in pool.members:
                whole = self.cluster.nodes[number].allocatable
                key = (whole.cpu_milli, whole.memory_bytes, tuple(sorted(whole.gpus.items())))
                counts[key] += 1
                first.setdefault(key, number)
            known = [(self.cluster.nodes[first[key]].allocatable, counts[key], first[key]) for key in counts]
            self._kinds[id(pool)] = known
        return known

    def members(self, group: Group, pool: Pool) -> int:
        """How many members of ``group`` the empty pool holds, whatever else the gang needs."""
        return sum(
            nodes * slots_in(whole.cpu_milli, whole.memory_bytes, whole.gpus, group.request, group.models, 1 << 30)
            for whole, nodes, _ in self.kinds(pool)
        )

    def refusal(self, demand: Demand) -> ReasonCode | None:
        """Why ``demand`` can never run on these nodes; ``None`` if it can."""
        if not self.cluster.nodes:
            return ReasonCode.NO_NODES
        if not demand.pool.members:
            return ReasonCode.NO_MATCHING_NODE
        for group in demand.merged:
            if group.request.gpu_count and not self.has_model(group, demand.pool):
                return ReasonCode.NO_MATCHING_NODE
        held = [self.members(group, demand.pool) for group in demand.merged]
        if not all(held):
            return ReasonCode.NEVER_FITS
        if any(members < group.count for members, group in zip(held, demand.merged, strict=True)):
            return ReasonCode.TOO_LARGE
        if len(held) == 1 and not demand.gang.topology_required:
            return None
        fits = place(demand, self.capacity, Budget(_STEPS, _STEPS)) is not None
        return None if fits else ReasonCode.TOO_LARGE

    def has_model(self, group: Group, pool: Pool) -> bool:
        return any(whole.gpus.get(model, 0) > 0 for whole, _, _ in self.kinds(pool) for model in group.models)
