"""GPU headroom: CPU and memory of each node reserved for its free GPUs. Jobs without GPUs leave it, if they can run so.

A free GPU is useless without CPU and memory. So each node reserves, per free GPU or part of one, what typical
requests take: the amount that suffices for three in four of the GPUs that jobs run with or wait for, by model. No
headroom is reserved for GPU models without demand. It never exceeds the GPU's share of its node, so that one odd
request does not close a node on which other GPUs are in use.

A gang is *bound* by the headroom (``Demand.respects_headroom``) if no member asks for GPUs and the empty cluster
could hold it beyond the headroom. For a bound gang :func:`.gang.place` looks at a :class:`CapacityBeyondHeadroom`
instead of the capacity itself.

The capacity beyond the headroom is not monotonic: a start with few CPUs per GPU shrinks the headroom, its end
enlarges it. So refusals of bound gangs are forgotten from round to round, and their reservations are made as if all
GPUs were free, which is monotonic, on nodes without GPUs if these could hold the gang; jobs with GPUs may use the
headroom meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np

from core.domain.sharing.gpus import WHOLE_GPU, accepted_models
from core.domain.sharing.resources import ResourceRequest
from scheduler.planning.placement.capacity import Capacity, DerivedCapacity, FreeAmounts, SharedGpus
from scheduler.planning.placement.cluster import ClusterIndex, Flags, Ints, NodePool, least
from scheduler.planning.placement.demand import Demand
from scheduler.planning.placement.feasibility import EmptyCluster
from scheduler.planning.placement.fragmentation import WorkloadProfile
from scheduler.planning.placement.ledger import BackfillReservation

# Fraction of the requested GPUs for which the headroom of each GPU suffices.
_ENOUGH_FOR: Final = 0.75

_PerGpu = tuple[int, int]  # CPU in thousandths, memory in bytes


def headroom_per_gpu(typical: WorkloadProfile, model: str) -> _PerGpu:
    """What typical requests take per GPU of ``model``; zero without demand for it."""
    requested = [
        (request, weight)
        for request, weight in typical.requests[: typical.known]
        if not request.gpu_models or accepted_models(request.gpu_models, (model,))
    ]
    return _enough([_per_member(r, w, r.cpu_milli) for r, w in requested]), _enough(
        [_per_member(r, w, r.memory_bytes) for r, w in requested]
    )


def _per_member(request: ResourceRequest, members: float, amount: int) -> tuple[int, float]:
    """The amount per GPU of the request, and the thousandths of GPUs that are requested like that."""
    milli = WHOLE_GPU * request.gpu_count + request.gpu_milli
    return -(-amount * WHOLE_GPU // milli), members * milli


def _enough(requested: Sequence[tuple[int, float]]) -> int:
    """The smallest amount that suffices for the fraction ``_ENOUGH_FOR`` of the GPUs."""
    missing = _ENOUGH_FOR * sum(gpus for _, gpus in requested)
    for amount, gpus in sorted(requested):
        missing -= gpus
        if missing <= 0:
            return amount
    return 0


@dataclass(frozen=True, slots=True)
class _Columns:
    """By node, the headroom of each GPU of one model."""

    cpu: Ints
    memory: Ints


class GpuHeadroom:
    """The headroom on the nodes of ``cluster``, computed when a gang without GPUs is first met.

    Args:
        typical: the workload profile. empty: decides which gangs could never run beyond the headroom. as_if_free:
        count all GPUs of a node as free.
    """

    def __init__(
        self,
        cluster: ClusterIndex,
        typical: Callable[[], WorkloadProfile],
        empty: EmptyCluster,
        *,
        as_if_free: bool = False,
    ) -> None:
        self.cluster = cluster
        self.empty = empty
        self._typical = typical
        self._is_as_if_free = as_if_free
        self._cpu_pools: dict[int, NodePool] = {}
        self._all_free: GpuHeadroom | None = None

    @cached_property
    def per_gpu(self) -> Mapping[str, _Columns]:
        """By model with demand, the headroom of each of its GPUs on each node."""
        columns: dict[str, _Columns] = {}
        totals, cluster = self.cluster.totals, self.cluster
        gpus = np.maximum(sum(totals.gpus.values(), np.zeros(len(cluster.nodes), dtype=np.int64)), 1)
        typical = self._typical() if cluster.gpu_models else WorkloadProfile()
        for model in cluster.gpu_models:
            cpu, memory = headroom_per_gpu(typical, model)
            if cpu or memory:
                columns[model] = _Columns(
                    np.minimum(cpu, totals.cpu // gpus), np.minimum(memory, totals.memory // gpus)
                )
        return columns

    @property
    def is_active(self) -> bool:
        return bool(self.per_gpu)

    @property
    def as_if_free(self) -> GpuHeadroom:
        """The same rule, counting all GPUs of a node as free."""
        if self._all_free is None:
            self._all_free = GpuHeadroom(self.cluster, self._typical, self.empty, as_if_free=True)
            self._all_free.__dict__["per_gpu"] = self.per_gpu
        return self._all_free

    # ---- bound gangs ----

    def bind(self, demand: Demand) -> Demand:
        """``demand``, bound by the headroom if it asks for no GPUs and could ever run so."""
        if demand.uses_gpus or not self.is_active or not self.cluster.has_gpus[demand.pool.numbers].any():
            return demand
        bound = replace(demand, respects_headroom=True)
        if self.empty.refusal(demand) is None and self.empty.refusal(bound) is None:
            return bound
        return demand

    def on_cpu_nodes(self, demand: Demand) -> Demand:
        """The demand for the reservation of a bound gang: on nodes without GPUs alone, if these could hold it."""
        if not demand.respects_headroom or not self.is_active:
            return demand
        cpu_pool = self._cpu_pools.get(id(demand.pool))
        if cpu_pool is None:
            has_gpus = self.cluster.has_gpus
            cpu_pool = self.cluster.pool([number for number in demand.pool.members if not has_gpus[number]])
            self._cpu_pools[id(demand.pool)] = cpu_pool
        on_cpu_pool = replace(demand, pool=cpu_pool)
        return on_cpu_pool if cpu_pool.members and self.empty.refusal(on_cpu_pool) is None else demand

    # ---- reserved amounts ----

    def capacity_beyond(self, capacity: Capacity) -> Capacity:
        """The part of ``capacity`` that bound gangs may use; it follows later changes."""
        if capacity.beyond_headroom is None:
            capacity.beyond_headroom = CapacityBeyondHeadroom(capacity, self)
        elif capacity.beyond_headroom.stale:
            capacity.beyond_headroom.follow()
        return capacity.beyond_headroom

    def reserved(self, capacity: Capacity) -> tuple[Ints, Ints]:
        """CPU and memory reserved on each node."""
        cpu, memory = np.zeros_like(capacity.cpus), np.zeros_like(capacity.memories)
        for model, per_gpu in self.per_gpu.items():
            if self._is_as_if_free:
                milli = WHOLE_GPU * self.cluster.totals.gpus[model]
            else:
                milli = WHOLE_GPU * np.maximum(capacity.gpus.whole[model], 0)
                for number in capacity.shared[model]:
                    milli[number] += sum(capacity.shares[number].get(model, ()))
            cpu += milli * per_gpu.cpu // WHOLE_GPU
            memory += milli * per_gpu.memory // WHOLE_GPU
        return cpu, memory

    def reserved_on(self, number: int, gpus: Mapping[str, int], shares: SharedGpus) -> _PerGpu:
        """CPU and memory reserved on one node on which these devices are free."""
        cpu = memory = 0
        for model in self.cluster.models_of[number]:
            per_gpu = self.per_gpu.get(model)
            if per_gpu is None:
                continue
            if self._is_as_if_free:
                milli = WHOLE_GPU * int(self.cluster.totals.gpus[model][number])
            else:
                milli = WHOLE_GPU * max(0, gpus.get(model, 0)) + sum(shares.get(model, ()))
            cpu += milli * int(per_gpu.cpu[number]) // WHOLE_GPU
            memory += milli * int(per_gpu.memory[number]) // WHOLE_GPU
        return cpu, memory

    def left_beyond(self, number: int, left: FreeAmounts) -> FreeAmounts:
        """The part of ``left`` on one node that bound gangs may use."""
        cpu, memory = self.reserved_on(number, left[2], left[3])
        return max(0, left[0] - cpu), max(0, left[1] - memory), left[2], left[3]

    @cached_property
    def shares_left(self) -> Ints:
        """By node, the part of each GPU's CPU share that the headroom never reserves."""
        reserved_share = self.cluster.cpu_shares.copy()
        for model, has_model in self.cluster.with_model.items():
            per_gpu = self.per_gpu.get(model)
            reserved_share[has_model] = np.minimum(
                reserved_share[has_model], 0 if per_gpu is None else per_gpu.cpu[has_model]
            )
        return self.cluster.cpu_shares - reserved_share

    def lend(self, reservation: BackfillReservation, free: Capacity) -> BackfillReservation:
        """The reservation of a bound gang, with the headroom of presently free GPUs lent to other jobs."""
        if not reservation.demand.respects_headroom or not self.is_active:
            return reservation
        return replace(
            reservation,
            backfillable={number: self._lent(number, left, free) for number, left in reservation.backfillable.items()},
        )

    def _lent(self, number: int, left: FreeAmounts, free: Capacity) -> FreeAmounts:
        if not self.cluster.has_gpus[number]:
            return left
        gpus, shares = free.gpus[number], free.shares[number]
        cpu, memory = self.reserved_on(number, gpus, shares)
        return max(left[0], min(cpu, free.cpu[number])), max(left[1], min(memory, free.memory[number])), gpus, shares


class CapacityBeyondHeadroom(DerivedCapacity):
    """The free amounts of ``base`` beyond the headroom, for gangs without GPUs."""

    __slots__ = ("base", "rule")

    def __init__(self, base: Capacity, headroom: GpuHeadroom) -> None:
        cpu, memory = headroom.reserved(base)
        cpu, memory = base.cpus - cpu, base.memories - memory
        if base.parent is not None:
            parent = headroom.capacity_beyond(base.parent)
            cpu, memory = np.minimum(cpu, parent.cpus), np.minimum(memory, parent.memories)
        super().__init__(base.cluster, cpu, memory, base.gpus, ())
        self.shares = base.shares
        self.base = base
        self.rule = headroom
        self.stale = set()

    @property
    def cpu_shares(self) -> Ints:
        return self.rule.shares_left

    def follow(self) -> None:
        parent = None if self.base.parent is None else self.rule.capacity_beyond(self.base.parent)
        for number in self.stale:
            self._update(number, parent)
        self.stale.clear()
        self.last_answer = None

    def _update(self, number: int, parent: Capacity | None) -> None:
        base = self.base
        cpu, memory = base.cpu[number], base.memory[number]
        if base.cluster.models_of[number]:
            cpu, memory, _, _ = self.rule.left_beyond(number, (cpu, memory, base.gpus[number], base.shares[number]))
        if parent is not None:
            cpu, memory = min(cpu, parent.cpu[number]), min(memory, parent.memory[number])
        if cpu > self.cpu[number] or memory > self.memory[number]:
            self.refused.clear()
        self.cpu[number] = cpu
        self.memory[number] = memory
        self.cpus[number] = cpu
        self.memories[number] = memory

    def tightest_spare(self, request: ResourceRequest, pool: NodePool) -> int | None:
        """As in ``base``, restricted to nodes where the headroom is left free."""
        may = self._may(request, pool) & self.cluster.has_gpus[pool.numbers]
        numbers = pool.numbers[may]
        if not len(numbers):
            return None
        fragments = self.base.scored_fragments()
        if fragments is not None:
            among: Flags = np.zeros(len(self.cpus), dtype=np.bool_)
            among[numbers] = True
            return fragments.choose(request, (), pool, among)
        numbers = numbers[self.base.cpus[numbers] - self.base.cpu_headroom(numbers) >= request.cpu_milli]
        return int(numbers[least((self.base.cpus[numbers], numbers))]) if len(numbers) else None
