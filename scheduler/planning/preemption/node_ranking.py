"""Nodes ranked by the cost of making room on them, for all nodes at once with numpy.

An estimate that selects candidate nodes: devices of all accepted models count together, GPU parts as if they were on
one device. The candidates are evaluated exactly afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from core.domain.ids import JobId
from core.domain.sharing.resources import ResourceRequest
from scheduler.planning.placement.cluster import NodePool
from scheduler.planning.preemption.eviction import Evictable, EvictionWhatIf

_Numbers = NDArray[np.float64]
_FAR = 1e18


class NodeRanking:
    """Evictable units by node, the cheapest first on each node.

    Attributes:
        evictables: all units, the cheapest first.
    """

    def __init__(self, evictables: Iterable[Evictable]) -> None:
        self.evictables = sorted(evictables, key=lambda evictable: evictable.order)
        rows = sorted(
            (number, at, cpu, memory, milli)
            for at, evictable in enumerate(self.evictables)
            for number, cpu, memory, milli in _on_nodes(evictable)
        )
        self._positions = np.array([row[1] for row in rows], dtype=np.int64)
        self._node = np.array([row[0] for row in rows], dtype=np.int64)
        self._freed = np.array([row[2:] for row in rows], dtype=np.float64).reshape(len(rows), 3)
        self._cost = np.array([self.evictables[row[1]].cost for row in rows], dtype=np.float64)
        self._is_remaining = np.ones(len(rows), dtype=bool)
        self._excluded: set[JobId] = set()

    def exclude(self, gangs: Iterable[JobId]) -> None:
        """Exclude these gangs: they are evicted already, or stay."""
        self._excluded |= set(gangs)
        is_excluded = np.array([evictable.gang.job_id in self._excluded for evictable in self.evictables], dtype=bool)
        if len(is_excluded):
            self._is_remaining = ~is_excluded[self._positions]

    @property
    def remaining(self) -> list[Evictable]:
        return [evictable for evictable in self.evictables if evictable.gang.job_id not in self._excluded]

    def on_node(self, number: int) -> list[Evictable]:
        """The units on one node, the cheapest first."""
        low, high = np.searchsorted(self._node, [number, number + 1])
        return [
            self.evictables[at]
            for at in self._positions[low:high]
            if self.evictables[at].gang.job_id not in self._excluded
        ]

    def bundles(
        self, request: ResourceRequest, models: Sequence[str], pool: NodePool, what_if: EvictionWhatIf
    ) -> tuple[list[tuple[float, int, int, int]], int]:
        """Per node the cheapest bundle of units whose eviction gains members: (cost per member, node, units, members
        gained).

        Sorted by cost. The second value is the number of members that fit without any eviction.
        """
        room = what_if.capacity
        in_pool = np.frombuffer(bytes(pool.flags), dtype=np.uint8).astype(bool)
        if what_if.reserved_nodes:
            in_pool = in_pool.copy()
            in_pool[list(what_if.reserved_nodes)] = False
        free = np.empty((len(room.cpu), 3))
        free[:, 0], free[:, 1] = room.cpus, room.memories
        needed_milli = 1000 * request.gpu_count + request.gpu_milli
        free[:, 2] = 0
        for model in models if needed_milli else ():
            free[:, 2] += 1000 * np.maximum(room.gpus.whole[model], 0)
        if request.gpu_milli:
            for number in sorted(set[int]().union(*(room.shared[model] for model in models))):
                free[number, 2] += sum(sum(room.shares[number].get(model, ())) for model in models)
        need = np.array([request.cpu_milli, request.memory_bytes, needed_milli], dtype=np.float64)
        slots_before = _slots(free, need)
        fitting = int(slots_before[np.frombuffer(bytes(pool.flags), dtype=np.uint8).astype(bool)].sum())
        is_candidate = self._is_remaining & in_pool[self._node] if len(self._node) else self._is_remaining
        node, freed, cost = self._node[is_candidate], self._freed[is_candidate], self._cost[is_candidate]
        if not len(node):
            return [], fitting
        is_first = np.concatenate(([True], node[1:] != node[:-1]))
        starts = np.flatnonzero(is_first)
        segment = np.cumsum(is_first) - 1
        sums = np.cumsum(freed, axis=0)
        costs = np.cumsum(cost)
        sums -= (sums[starts] - freed[starts])[segment]
        costs -= (costs[starts] - cost[starts])[segment]
        gained = _slots(free[node] + sums, need) - slots_before[node]
        ratio = np.where(gained > 0, costs / np.maximum(gained, 1), _FAR)
        best = np.minimum.reduceat(ratio, starts)
        position = np.arange(len(node))
        first_best = np.minimum.reduceat(np.where(ratio <= best[segment], position, len(node)), starts)
        nodes = node[starts]
        order = np.lexsort((nodes, best))
        order = order[best[order] < _FAR]
        return [
            (float(best[n]), int(nodes[n]), int(first_best[n] - starts[n]) + 1, int(gained[first_best[n]]))
            for n in order
        ], fitting


def _on_nodes(evictable: Evictable) -> list[tuple[int, int, int, int]]:
    """What the unit frees on each node: CPU, memory, thousandths of GPUs."""
    sums: dict[int, tuple[int, int, int]] = {}
    for number, request, _, members in evictable.uses:
        cpu, memory, milli = sums.get(number, (0, 0, 0))
        sums[number] = (
            cpu + members * request.cpu_milli,
            memory + members * request.memory_bytes,
            milli + members * (1000 * request.gpu_count + request.gpu_milli),
        )
    return [(number, *amounts) for number, amounts in sums.items()]


def _slots(free: _Numbers, need: _Numbers) -> _Numbers:
    """How many members fit, limited by each requested resource."""
    is_needed = need > 0
    if not is_needed.any():
        return np.ones(len(free))
    slots: _Numbers = np.floor(np.maximum(free[:, is_needed], 0) / need[is_needed]).min(axis=1)
    return slots
