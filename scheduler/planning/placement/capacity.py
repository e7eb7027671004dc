"""Free amounts of every node in columns, so that a question about all nodes takes a few numpy operations.

The simple equivalent is a list of free amounts and a loop over all nodes. The columns hold the same: one number per
node, and per GPU model one number of free devices ("holes"). Devices that are shared in parts are listed per node,
ascending by what is left of each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Protocol

import numpy as np

from core.domain.sharing.gpus import WHOLE_GPU, room_for_parts
from core.domain.sharing.resources import ResourceRequest
from scheduler.planning.placement.cluster import ClusterIndex, Flags, Ints, NodePool, Rooms, least
from scheduler.planning.placement.demand import Demand
from scheduler.planning.placement.fragmentation import FragmentationScores, WorkloadProfile

SharedGpus = Mapping[str, tuple[int, ...]]
NO_SHARED_GPUS: SharedGpus = {}
FreeAmounts = tuple[int, int, Mapping[str, int], SharedGpus]  # CPU, memory, whole GPUs, what is left of shared ones

# Refusals remembered per pool; the smallest ones refuse nearly everything.
_MOST_REFUSED = 24
# Nodes with room remembered per question; a gang seldom needs more.
_WITNESSES = 256


class FreeGpus:
    """Free devices by node and model, stored in columns. ``whole``: per model the free devices of each node."""

    __slots__ = ("models_of", "whole")

    def __init__(self, models_of: Sequence[Sequence[str]], whole: dict[str, Ints]) -> None:
        self.models_of = models_of
        self.whole = whole

    @classmethod
    def of(cls, cluster: ClusterIndex, gpus: Sequence[Mapping[str, int]]) -> FreeGpus:
        return cls(
            cluster.models_of,
            {
                m: np.array([node_gpus.get(m, 0) if node_gpus else 0 for node_gpus in gpus], dtype=np.int64)
                for m in cluster.gpu_models
            },
        )

    def __getitem__(self, number: int) -> Mapping[str, int]:
        return {model: int(self.whole[model][number]) for model in self.models_of[number]}

    def __setitem__(self, number: int, gpus: Mapping[str, int]) -> None:
        for model in self.models_of[number]:
            self.whole[model][number] = gpus.get(model, 0)

    def within(self, model: str, pool: NodePool) -> int:
        """The free devices of one model on all nodes of ``pool``."""
        return int(np.maximum(self.whole[model][pool.numbers], 0).sum())

    def __iter__(self) -> Iterator[Mapping[str, int]]:
        return (self[number] for number in range(len(self)))

    def __len__(self) -> int:
        return len(self.models_of)

    def copy(self) -> FreeGpus:
        return FreeGpus(self.models_of, {model: free.copy() for model, free in self.whole.items()})


class Capacity:
    """Free amounts of all nodes of a cluster, by node number. CPU and memory never go below zero.

    Attributes:
        cpu, memory: lists for access to one node; ``cpus`` and ``memories`` are the same as columns.
        gpus: free devices per node and model.
        shares: per node and model, thousandths left on each shared device; ``shared``: per model the nodes with any
            left.
        refused: per pool and models, (members, thousandths of GPUs, CPU, memory) that did not fit; a larger demand
            does not fit either, until something becomes free.
        witnesses: per question some nodes that had room when it was last asked.
        headroom: the rule that reserves CPU and memory for free GPUs; ``beyond_headroom``: the capacity beyond it,
            once requested. ``parent``: all free amounts, if this capacity is a restricted view of them: their
            headroom counts, too.
    """

    __slots__ = (
        "beyond_headroom",
        "cluster",
        "cpu",
        "cpus",
        "fragments",
        "gpus",
        "headroom",
        "last_answer",
        "memories",
        "memory",
        "parent",
        "refused",
        "shared",
        "shares",
        "witnesses",
        "workload",
    )

    def __init__(
        self,
        cluster: ClusterIndex,
        cpu: Sequence[int] | Ints,
        memory: Sequence[int] | Ints,
        gpus: FreeGpus | Sequence[Mapping[str, int]],
        shares: Sequence[SharedGpus],
    ) -> None:
        self.cluster = cluster
        self.cpus: Ints = np.maximum(np.array(cpu, dtype=np.int64), 0)
        self.memories: Ints = np.maximum(np.array(memory, dtype=np.int64), 0)
        self.cpu: list[int] = self.cpus.tolist()
        self.memory: list[int] = self.memories.tolist()
        self.gpus = gpus if isinstance(gpus, FreeGpus) else FreeGpus.of(cluster, gpus)
        self.shares: list[SharedGpus] = list(shares)
        self.fragments: FragmentationScores | None = None
        self.headroom: Headroom | None = None
        self.beyond_headroom: DerivedCapacity | None = None
        self.parent: Capacity | None = None
        self.workload: Callable[[], WorkloadProfile] | None = None
        self.refused: dict[tuple[int, tuple[str, ...]], list[tuple[int, int, int, int]]] = {}
        self.witnesses: dict[tuple[ResourceRequest, tuple[str, ...], int], Ints] = {}
        self.shared: dict[str, set[int]] = {model: set() for model in cluster.gpu_models}
        for number, parts in enumerate(self.shares):
            if parts:
                self._note_shared(number)
        self.last_answer: tuple[tuple[object, ...], Rooms] | None = None  # cache of the last question about rooms

    @classmethod
    def free(cls, cluster: ClusterIndex) -> Capacity:
        """The free amounts of the snapshot."""
        frees = [node.free for node in cluster.nodes]
        return cls(
            cluster,
            [f.cpu_milli for f in frees],
            [f.memory_bytes for f in frees],
            [f.gpus for f in frees],
            [f.shares for f in frees],
        )

    @classmethod
    def empty(cls, cluster: ClusterIndex) -> Capacity:
        """The allocatable amounts, as if nothing ran."""
        alls = [node.allocatable for node in cluster.nodes]
        no_shared = [NO_SHARED_GPUS] * len(alls)
        return cls(
            cluster, [a.cpu_milli for a in alls], [a.memory_bytes for a in alls], [a.gpus for a in alls], no_shared
        )

    def set_workload(self, workload: Callable[[], WorkloadProfile]) -> None:
        """Score holes by the typical requests of ``workload`` (called when first needed); without it
        best fit applies.
        """
        self.workload = cache(workload)  # evaluated once for all copies
        self.fragments = None

    def scored_fragments(self) -> FragmentationScores | None:
        """The fragmentation scores, if a workload is known."""
        if self.fragments is None and self.workload is not None:
            workload = self.workload()
            self.workload = None
            self.fragments = FragmentationScores(self, workload) if workload.requests else None
        return self.fragments

    def copy(self, parent: Capacity | None = None) -> Capacity:
        """An independent copy. ``parent``: the capacity of which the copy is a view; by default a copy of the own
        parent.
        """
        clone = Capacity.__new__(Capacity)
        clone.cluster = self.cluster
        clone.cpus = self.cpus.copy()
        clone.memories = self.memories.copy()
        clone.cpu = self.cpu.copy()
        clone.memory = self.memory.copy()
        clone.gpus = self.gpus.copy()
        clone.refused = {key: refused.copy() for key, refused in self.refused.items()}
        clone.witnesses = self.witnesses.copy()
        clone.shares = self.shares.copy()  # the mappings are replaced, never modified
        clone.shared = {model: numbers.copy() for model, numbers in self.shared.items()}
        clone.workload = self.workload
        clone.fragments = None if self.fragments is None else self.fragments.copy(clone)
        clone.last_answer = None
        clone.headroom = self.headroom
        clone.beyond_headroom = None
        clone.parent = parent if parent is not None else None if self.parent is None else self.parent.copy()
        return clone

    def put(
        self, number: int, cpu: int, memory: int, gpus: Mapping[str, int], shares: SharedGpus | None = None
    ) -> None:
        """Set the free amounts of one node. ``shares``: ``None`` leaves them unchanged."""
        gpus_before = self.gpus[number]
        if shares is None:
            shares = self.shares[number]
        if (
            cpu > self.cpu[number]
            or memory > self.memory[number]
            or any(n > gpus_before.get(m, 0) for m, n in gpus.items())
            or (shares and shares != self.shares[number] and _has_more(shares, self.shares[number], gpus, gpus_before))
        ):
            self.refused.clear()
        self.cpu[number] = max(0, cpu)
        self.memory[number] = max(0, memory)
        self.cpus[number] = self.cpu[number]
        self.memories[number] = self.memory[number]
        self.gpus[number] = gpus
        if shares or self.shares[number]:
            self.shares[number] = shares
            self._note_shared(number)
        self.last_answer = None
        if self.fragments is not None:
            self.fragments.changed(number)
        if self.beyond_headroom is not None:
            self.beyond_headroom.stale.add(number)

    def _note_shared(self, number: int) -> None:
        shares = self.shares[number]
        for model in self.cluster.models_of[number]:
            left = shares.get(model, ())
            if left and left[-1] > 0:
                self.shared[model].add(number)
            else:
                self.shared[model].discard(number)

    def left_milli(self, number: int) -> int:
        """Thousandths of GPUs that are free on one node."""
        whole, shares = sum(self.gpus[number].values()), self.shares[number]
        return WHOLE_GPU * whole + (sum(left for parts in shares.values() for left in parts) if shares else 0)

    def slots(self, number: int, request: ResourceRequest, models: Sequence[str], most: int) -> int:
        """How many members with ``request`` fit on one node, at most ``most``."""
        shares = self.shares[number]
        return slots_in(self.cpu[number], self.memory[number], self.gpus[number], request, models, most, shares)

    def can_hold(self, request: ResourceRequest, models: tuple[str, ...], pool: NodePool, count: int) -> bool:
        """Whether ``count`` members fit into ``pool``, disregarding the rest of the gang. Exact."""
        question_size = (
            count,
            WHOLE_GPU * request.gpu_count + request.gpu_milli,
            request.cpu_milli,
            request.memory_bytes,
        )
        refused = self.refused.setdefault((id(pool), models), [])
        for members, gpus, cpu, memory in refused:
            if count >= members and question_size[1] >= gpus and question_size[2] >= cpu and question_size[3] >= memory:
                return False
        question = (request, models, id(pool))
        if self._still_holds(question, count):
            return True
        rooms = self.rooms(request, models, pool, count)
        if rooms.total >= count:
            self.witnesses[question] = rooms.numbers[:_WITNESSES].copy()
            return True
        refused[:] = [size for size in refused if any(a < b for a, b in zip(size, question_size, strict=True))]
        if len(refused) < _MOST_REFUSED:
            refused.append(question_size)
        return False

    def _still_holds(self, question: tuple[ResourceRequest, tuple[str, ...], int], count: int) -> bool:
        """Whether the nodes that had room last time still suffice: mostly they do, and no other node
        need be looked at.
        """
        numbers = self.witnesses.get(question)
        request, models, _ = question
        if numbers is None or request.gpu_milli:
            return False
        slots: Ints = np.full(len(numbers), 0 if request.gpu_count else count, dtype=np.int64)
        if request.gpu_count:
            for model in models:
                slots += np.maximum(self.gpus.whole[model][numbers], 0) // request.gpu_count
        for free, per_member in ((self.cpus, request.cpu_milli), (self.memories, request.memory_bytes)):
            if per_member:
                np.minimum(slots, free[numbers] // per_member, out=slots)
        return int(np.minimum(slots, count).sum()) >= count

    def rooms(self, request: ResourceRequest, models: Sequence[str], pool: NodePool, most: int) -> Rooms:
        """Every node of ``pool`` with room for at least one member, and for how many (at most ``most``)."""
        question = (request, tuple(models), id(pool), most)
        if self.last_answer is not None and self.last_answer[0] == question:
            return self.last_answer[1]
        slots = self._devices_for(request, models, pool)
        if slots is None:
            slots = np.full(len(pool.members), most, dtype=np.int64)
        else:
            np.minimum(slots, most, out=slots)
        for free, per_member in ((self.cpus, request.cpu_milli), (self.memories, request.memory_bytes)):
            if per_member:
                available = self._of(free, pool)
                # A division costs ten times a comparison.
                np.minimum(slots, available // per_member if most > 1 else available >= per_member, out=slots)
        has_room = slots > 0
        rooms = Rooms(pool.numbers[has_room], slots[has_room])
        self.last_answer = (question, rooms)
        return rooms

    def _of(self, column: Ints, pool: NodePool) -> Ints:
        return column if pool is self.cluster.all_nodes else column[pool.numbers]

    def _devices_for(self, request: ResourceRequest, models: Sequence[str], pool: NodePool) -> Ints | None:
        """For how many members each node of ``pool`` has devices; ``None`` where they need none."""
        if not request.uses_gpu:
            return None
        slots = np.zeros(len(pool.members), dtype=np.int64)
        for model in models:
            whole = np.maximum(self._of(self.gpus.whole[model], pool), 0)
            slots += whole // request.gpu_count if request.gpu_count else whole * (WHOLE_GPU // request.gpu_milli)
        if request.gpu_milli:
            for model in models:
                for number in self.shared[model]:
                    if pool.flags[number]:
                        position = int(np.searchsorted(pool.numbers, number))
                        slots[position] += room_for_parts(self.shares[number][model], 0, request.gpu_milli)
        return slots

    def bare_rooms(self, request: ResourceRequest, pool: NodePool, most: int) -> Rooms:
        """The same for nodes without GPUs."""
        rooms = self.rooms(request, (), pool, most)
        return rooms.where(~self.cluster.has_gpus[rooms.numbers])

    def largest_hole(self, models: Sequence[str], pool: NodePool) -> tuple[int, list[tuple[int, str]]]:
        """The most free GPUs of one model on a node of ``pool``, and every (node, model) that has as many."""
        free = {
            model: np.where(self.cluster.with_model[model], np.maximum(self.gpus.whole[model], 0), -1)[pool.numbers]
            for model in models
        }
        most = max((int(column.max(initial=-1)) for column in free.values()), default=-1)
        if most < 0:
            return 0, []
        holes = [(n, m) for m, column in free.items() for n in pool.numbers[column == most].tolist()]
        return most, sorted(holes)

    def tightest(self, request: ResourceRequest, models: Sequence[str], pool: NodePool) -> int | None:
        """The node that one member with GPUs fits best.

        By least fragmentation if a workload is known, else the smallest sufficient hole; then the least CPU left.
        """
        fragments = self.scored_fragments()
        if fragments is not None:
            return fragments.choose(request, models, pool)
        best: tuple[int, ...] | None = None
        for model in models:
            whole = self.gpus.whole[model]
            may = self._may(request, pool)
            if request.gpu_milli:
                may &= whole[pool.numbers] > 0
                for number in self.shared[model]:  # shared devices come before whole ones
                    left = next((left for left in self.shares[number][model] if left >= request.gpu_milli), None)
                    if left is not None and pool.flags[number] and self.slots(number, request, (model,), 1):
                        key = (0, left, self.cpu[number], number)
                        best = key if best is None or key < best else best
            else:
                may &= whole[pool.numbers] >= request.gpu_count
            numbers = pool.numbers[may]
            if len(numbers):
                number = int(numbers[least((whole[numbers], self.cpus[numbers], numbers))])
                key = (1, int(whole[number]), self.cpu[number], number)
                best = key if best is None or key < best else best
        return None if best is None else best[-1]

    def _may(self, request: ResourceRequest, pool: NodePool) -> Flags:
        may: Flags = self._of(self.cpus, pool) >= request.cpu_milli
        may &= self._of(self.memories, pool) >= request.memory_bytes
        return may

    def tightest_bare(self, request: ResourceRequest, pool: NodePool) -> int | None:
        """The node without GPUs that one member fits best."""
        may = self._may(request, pool) & ~self.cluster.has_gpus[pool.numbers]
        numbers = pool.numbers[may]
        return int(numbers[least((self.cpus[numbers], numbers))]) if len(numbers) else None

    def tightest_spare(self, request: ResourceRequest, pool: NodePool) -> int | None:
        """The node with GPUs that one member without GPUs fits best.

        By least fragmentation if a workload is known, else among nodes whose free GPUs keep their share of the CPUs.
        """
        fragments = self.scored_fragments()
        if fragments is not None:
            return fragments.choose(request, (), pool)
        may = self._may(request, pool) & self.cluster.has_gpus[pool.numbers]
        numbers = pool.numbers[may]
        headroom_cpu = self.cpu_headroom(numbers)
        numbers = numbers[self.cpus[numbers] - headroom_cpu >= request.cpu_milli]
        return int(numbers[least((self.cpus[numbers], numbers))]) if len(numbers) else None

    @property
    def cpu_shares(self) -> Ints:
        """By node, the CPU share of each of its GPUs."""
        return self.cluster.cpu_shares

    def cpu_headroom(self, numbers: Ints) -> Ints:
        """The CPU share of the free GPUs of these nodes."""
        headroom_cpu: Ints = self.cpu_shares[numbers] * self.free_gpus(numbers)
        return headroom_cpu

    def free_gpus(self, numbers: Ints) -> Ints:
        """Whole devices that are free on these nodes."""
        total = np.zeros(len(numbers), dtype=np.int64)
        for whole in self.gpus.whole.values():
            total += np.maximum(whole[numbers], 0)
        return total


class DerivedCapacity(Capacity):
    """A capacity that is computed from another one. ``stale``: nodes whose free amounts changed there since the last
    look.
    """

    __slots__ = ("stale",)

    stale: set[int]

    def follow(self) -> None:
        """Recompute the stale nodes."""
        raise NotImplementedError


class Headroom(Protocol):
    """CPU and memory that are reserved for free GPUs: implemented by :mod:`.gpu_headroom`."""

    @property
    def is_active(self) -> bool: ...

    @property
    def as_if_free(self) -> Headroom: ...

    def bind(self, demand: Demand) -> Demand: ...

    def capacity_beyond(self, capacity: Capacity) -> Capacity: ...

    def reserved_on(self, number: int, gpus: Mapping[str, int], shares: SharedGpus) -> tuple[int, int]: ...

    def left_beyond(self, number: int, left: FreeAmounts) -> FreeAmounts: ...


def _has_more(shares: SharedGpus, before: SharedGpus, gpus: Mapping[str, int], gpus_before: Mapping[str, int]) -> bool:
    """Whether something may fit on these shared devices that did not fit before. A newly opened device is no gain."""
    for model, parts in shares.items():
        opened = gpus_before.get(model, 0) - gpus.get(model, 0)
        before_sizes = sorted((*before.get(model, ()), *([WHOLE_GPU] * opened)), reverse=True)
        sizes = sorted(parts, reverse=True)
        if len(sizes) > len(before_sizes) or any(a > b for a, b in zip(sizes, before_sizes, strict=False)):
            return True
    return False


def slots_in(
    cpu: int,
    memory: int,
    gpus: Mapping[str, int],
    request: ResourceRequest,
    models: Sequence[str],
    most: int,
    shares: SharedGpus = NO_SHARED_GPUS,
) -> int:
    """How many members with ``request`` fit into these amounts, at most ``most``; each uses one model."""
    # Hot path, called for every node size and shape: plain comparisons, no calls.
    slots = most
    per_cpu, per_memory, per_gpus = request.cpu_milli, request.memory_bytes, request.gpu_count
    if per_cpu * slots > cpu:
        slots = cpu // per_cpu
    if per_memory * slots > memory:
        slots = memory // per_memory
    if per_gpus and slots > 0:
        by_gpus = 0
        for model in models:
            if model in gpus:
                by_gpus += gpus[model] // per_gpus
        slots = min(slots, by_gpus)
    elif request.gpu_milli and slots > 0:
        by_parts = 0
        for model in models:
            if model in gpus or model in shares:
                by_parts += room_for_parts(shares.get(model, ()), max(0, gpus.get(model, 0)), request.gpu_milli)
        slots = min(slots, by_parts)
    return max(0, slots)
