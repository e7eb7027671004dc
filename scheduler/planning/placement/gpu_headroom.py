"""What of each node is kept for its free GPUs: jobs without GPUs leave it, unless they could never run otherwise.

A free GPU is of no use without CPU and memory. So of every node as much is kept as typical requests take for each GPU, times
the GPUs, and parts of GPUs, that are free there. Typical is what three in four of all GPUs get along with that jobs run with
or wait for, by model; of a GPU that nobody asks for nothing is kept. It is never more than the GPU's share of its node, so
that one odd request shuts no node on which other GPUs are taken.

A gang is *bound* by this (``Demand.respects_headroom``) if none of its members asks for GPUs and the empty cluster could hold it
beside all that is kept there. For a bound gang :func:`.gang.place` looks at a :class:`CapacityBeyondHeadroom` in place of the capacity itself.

What is spare does not only shrink while a plan is made, nor only grow in time: with a start of few CPUs for each GPU less is
to be kept, with its end more. So infeasibility of bound gangs are forgotten from round to round; and what is reserved for one is
reserved as if all GPUs were free, which only grows, on nodes without GPUs if these could hold it, and jobs with GPUs may
use meanwhile what is kept for them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np

from core.domain.sharing.gpu_models import accepted_models
from core.domain.sharing.gpu_sharing import WHOLE
from core.domain.sharing.resources import Request
from scheduler.planning.placement.capacity import Capacity, SharedGpus
from scheduler.planning.placement.cluster import ClusterIndex, NodePool
from scheduler.planning.placement.demand import Demand
from scheduler.planning.placement.feasibility import EmptyCluster
from scheduler.planning.placement.fragmentation import WorkloadProfile
from scheduler.planning.placement.ledger import Amounts, Reservation
from scheduler.planning.placement.node_arrays import Flags, Ints, least
from scheduler.planning.placement.partial import FreeAmounts

# Of the GPUs that are asked for, this part gets along with what is kept for each.
_ENOUGH_FOR: Final = 0.75

_PerGpu = tuple[int, int]  # CPU in thousandths, memory in bytes


def per_gpu(typical: WorkloadProfile, model: str) -> _PerGpu:
    """What typical requests take for each GPU of ``model``; nothing where nobody asks for one."""
    asked = [
        (request, weight)
        for request, weight in typical.requests[: typical.known]
        if not request.gpu_models or accepted_models(request.gpu_models, (model,))
    ]
    return _enough([_of_one(r, w, r.cpu_milli) for r, w in asked]), _enough(
        [_of_one(r, w, r.memory_bytes) for r, w in asked]
    )


def _of_one(request: Request, members: float, amount: int) -> tuple[int, float]:
    """The part of ``amount`` for each GPU of the request, and how many thousandths of GPUs are asked for like that."""
    milli = WHOLE * request.gpu_count + request.gpu_milli
    return -(-amount * WHOLE // milli), members * milli


def _enough(asked: Sequence[tuple[int, float]]) -> int:
    """The smallest of the amounts that is enough for so many of the GPUs."""
    left = _ENOUGH_FOR * sum(gpus for _, gpus in asked)
    for amount, gpus in sorted(asked):
        left -= gpus
        if left <= 0:
            return amount
    return 0


@dataclass(frozen=True, slots=True)
class _Columns:
    """By node, what is kept for each GPU of one model."""

    cpu: Ints
    memory: Ints


class GpuHeadroom:
    """What is kept on the nodes of ``cluster``, worked out when a gang without GPUs is first met.

    Args:
        typical: what GPUs are asked for with.
        empty: tells which gangs could never run otherwise.
        as_if_free: for all GPUs of a node, whether they are free or not.
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
        self._bare: dict[int, NodePool] = {}

    @cached_property
    def per_gpu(self) -> Mapping[str, _Columns]:
        """By model that is asked for, what each of its GPUs keeps on each node."""
        found: dict[str, _Columns] = {}
        whole, cluster = self.cluster.whole, self.cluster
        gpus = np.maximum(sum(whole.gpus.values(), np.zeros(len(cluster.nodes), dtype=np.int64)), 1)
        typical = self._typical() if cluster.gpu_models else WorkloadProfile()
        for model in cluster.gpu_models:
            cpu, memory = per_gpu(typical, model)
            if cpu or memory:
                found[model] = _Columns(np.minimum(cpu, whole.cpu // gpus), np.minimum(memory, whole.memory // gpus))
        return found

    @property
    def is_active(self) -> bool:
        return bool(self.per_gpu)

    @cached_property
    def as_if_free(self) -> GpuHeadroom:
        """The same, for all GPUs of a node."""
        twin = GpuHeadroom(self.cluster, self._typical, self.empty, as_if_free=True)
        twin.__dict__["per_gpu"] = self.per_gpu
        return twin

    # ---- whom it binds ----

    def bind(self, demand: Demand) -> Demand:
        """``demand``, bound by what is kept if it asks for no GPUs and could ever run so."""
        if demand.uses_gpus or not self.is_active or not self.cluster.has_gpus[demand.pool.numbers].any():
            return demand
        bound = replace(demand, respects_headroom=True)
        if self.empty.refusal(demand) is None and self.empty.refusal(bound) is None:
            return bound
        return demand

    def on_cpu_nodes(self, demand: Demand) -> Demand:
        """Where room is reserved for a bound gang: on nodes without GPUs alone, if these could hold it."""
        if not demand.respects_headroom or not self.is_active:
            return demand
        bare = self._bare.get(id(demand.pool))
        if bare is None:
            has_gpus = self.cluster.has_gpus
            bare = self.cluster.pool([number for number in demand.pool.members if not has_gpus[number]])
            self._bare[id(demand.pool)] = bare
        there = replace(demand, pool=bare)
        return there if bare.members and self.empty.refusal(there) is None else demand

    # ---- what it keeps ----

    def capacity_beyond(self, capacity: Capacity) -> Capacity:
        """What bound gangs may use of ``capacity``; it follows when that changes."""
        if capacity.beyond_headroom is None:
            capacity.beyond_headroom = CapacityBeyondHeadroom(capacity, self)
        elif capacity.beyond_headroom.stale:
            capacity.beyond_headroom.follow()
        return capacity.beyond_headroom

    def reserved(self, capacity: Capacity) -> tuple[Ints, Ints]:
        """CPU and memory that are kept on each node."""
        cpu, memory = np.zeros_like(capacity.cpus), np.zeros_like(capacity.memories)
        for model, each in self.per_gpu.items():
            if self._is_as_if_free:
                milli = WHOLE * self.cluster.whole.gpus[model]
            else:
                milli = WHOLE * np.maximum(capacity.gpus.whole[model], 0)
                for number in capacity.shared[model]:
                    milli[number] += sum(capacity.shares[number].get(model, ()))
            cpu += milli * each.cpu // WHOLE
            memory += milli * each.memory // WHOLE
        return cpu, memory

    def reserved_on(self, number: int, gpus: Mapping[str, int], shares: SharedGpus) -> _PerGpu:
        """The same on one node on which these devices are free."""
        cpu = memory = 0
        for model in self.cluster.models_of[number]:
            each = self.per_gpu.get(model)
            if each is None:
                continue
            if self._is_as_if_free:
                milli = WHOLE * int(self.cluster.whole.gpus[model][number])
            else:
                milli = WHOLE * max(0, gpus.get(model, 0)) + sum(shares.get(model, ()))
            cpu += milli * int(each.cpu[number]) // WHOLE
            memory += milli * int(each.memory[number]) // WHOLE
        return cpu, memory

    def left_beyond(self, number: int, left: FreeAmounts) -> FreeAmounts:
        """What of ``left`` on one node bound gangs may use."""
        cpu, memory = self.reserved_on(number, left[2], left[3])
        return max(0, left[0] - cpu), max(0, left[1] - memory), left[2], left[3]

    @cached_property
    def shares_left(self) -> Ints:
        """By node, what of each GPU's share of the CPUs is not kept in any case."""
        kept = self.cluster.cpu_shares.copy()
        for model, here in self.cluster.with_model.items():
            each = self.per_gpu.get(model)
            kept[here] = np.minimum(kept[here], 0 if each is None else each.cpu[here])
        return self.cluster.cpu_shares - kept

    def lend(self, reservation: Reservation, free: Capacity) -> Reservation:
        """``reservation``, of a bound gang, on which others may use what is kept for the GPUs that are free now."""
        if not reservation.demand.respects_headroom or not self.is_active:
            return reservation
        return replace(
            reservation,
            beside={number: self._lent(number, left, free) for number, left in reservation.beside.items()},
        )

    def _lent(self, number: int, left: Amounts, free: Capacity) -> Amounts:
        if not self.cluster.has_gpus[number]:
            return left
        gpus, shares = free.gpus[number], free.shares[number]
        cpu, memory = self.reserved_on(number, gpus, shares)
        return max(left[0], min(cpu, free.cpu[number])), max(left[1], min(memory, free.memory[number])), gpus, shares


class CapacityBeyondHeadroom(Capacity):
    """What is free of ``base`` and kept for no GPU. Only gangs without GPUs look at it, through :meth:`GpuHeadroom.room`.

    ``stale``: nodes of which another amount is free in ``base`` since somebody looked.
    """

    __slots__ = ("base", "headroom", "stale")

    def __init__(self, base: Capacity, headroom: GpuHeadroom) -> None:
        cpu, memory = headroom.reserved(base)
        cpu, memory = base.cpus - cpu, base.memories - memory
        if base.parent is not None:
            over = headroom.capacity_beyond(base.parent)
            cpu, memory = np.minimum(cpu, over.cpus), np.minimum(memory, over.memories)
        super().__init__(base.cluster, cpu, memory, base.gpus, ())
        self.shares = base.shares
        self.base = base
        self.source = headroom
        self.stale: set[int] = set()

    @property
    def cpu_shares(self) -> Ints:
        return self.source.shares_left

    def follow(self) -> None:
        """See what is free in ``base`` now."""
        over = None if self.base.parent is None else self.headroom.capacity_beyond(self.base.parent)
        for number in self.stale:
            self._see(number, over)
        self.stale.clear()
        self.last_answer = None

    def _see(self, number: int, over: Capacity | None) -> None:
        base = self.base
        cpu, memory = base.cpu[number], base.memory[number]
        if base.cluster.models_of[number]:
            cpu, memory, _, _ = self.headroom.left_beyond(number, (cpu, memory, base.gpus[number], base.shares[number]))
        if over is not None:
            cpu, memory = min(cpu, over.cpu[number]), min(memory, over.memory[number])
        if cpu > self.cpu[number] or memory > self.memory[number]:
            self.refused.clear()
        self.cpu[number] = cpu
        self.memory[number] = memory
        self.cpus[number] = cpu
        self.memories[number] = memory

    def tightest_spare(self, request: Request, pool: NodePool) -> int | None:
        """As in ``base``, of those nodes where it leaves what is kept."""
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
