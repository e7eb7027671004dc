"""What is free on every node, indexed so that a question touches only the nodes that may answer it.

The simple equivalent is a list of free amounts and a loop over all nodes. The difference: nodes with GPUs stand in
one sorted list per model and number of free devices ("holes"), nodes without GPUs in one sorted list, each sorted by
free CPU. In a full cluster a job that asks for 8 GPUs so looks at no node at all.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence

from core.domain.resources import Request
from scheduler.planning.cluster import Cluster, Pool

# Below this many members a walk over the pool is quicker than the index.
_SMALL_POOL = 16
# Refusals kept per pool; the smallest ones refuse nearly everything.
_MOST_REFUSED = 24


class Capacity:
    """Free amounts of all nodes of a cluster, by node number. Amounts never go below zero.

    Attributes:
        bare: (free CPU, node) of the nodes without GPUs, sorted; ``rich``: of those with.
        holes: per model and number of free devices, (free CPU, node), sorted.
        kept: per node the CPU that its free GPUs may count on.
        refused: per pool and models, (members, GPUs, CPU, memory) that did not fit; whatever asks for at least as
            much does not fit either, until something becomes free.
    """

    __slots__ = ("bare", "cluster", "cpu", "gpus", "holes", "kept", "memory", "refused", "rich")

    def __init__(
        self, cluster: Cluster, cpu: Sequence[int], memory: Sequence[int], gpus: Sequence[Mapping[str, int]]
    ) -> None:
        self.cluster = cluster
        self.cpu = [max(0, amount) for amount in cpu]
        self.memory = [max(0, amount) for amount in memory]
        self.gpus: list[Mapping[str, int]] = list(gpus)
        self.refused: dict[tuple[int, tuple[str, ...]], list[tuple[int, int, int, int]]] = {}
        self.kept = [share * sum(gpus.values()) for share, gpus in zip(cluster.cpu_share, self.gpus, strict=True)]
        self.bare: list[tuple[int, int]] = []
        self.rich: list[tuple[int, int]] = []
        self.holes: dict[str, list[list[tuple[int, int]]]] = {
            model: [[] for _ in range(largest + 1)] for model, largest in cluster.largest.items()
        }
        for number, models in enumerate(cluster.models_of):
            entry = (self.cpu[number], number)
            (self.rich if models else self.bare).append(entry)
            for model in models:
                self.holes[model][self._count(number, model)].append(entry)
        self.bare.sort()
        self.rich.sort()
        for holes in self.holes.values():
            for hole in holes:
                hole.sort()

    @classmethod
    def free(cls, cluster: Cluster) -> Capacity:
        """What the snapshot says is free."""
        frees = [node.free for node in cluster.nodes]
        return cls(cluster, [f.cpu_milli for f in frees], [f.memory_bytes for f in frees], [f.gpus for f in frees])

    @classmethod
    def empty(cls, cluster: Cluster) -> Capacity:
        """Everything, as if nothing ran."""
        alls = [node.allocatable for node in cluster.nodes]
        return cls(cluster, [a.cpu_milli for a in alls], [a.memory_bytes for a in alls], [a.gpus for a in alls])

    def copy(self) -> Capacity:
        twin = Capacity.__new__(Capacity)
        twin.cluster = self.cluster
        twin.cpu = self.cpu.copy()
        twin.memory = self.memory.copy()
        twin.gpus = self.gpus.copy()  # the mappings are replaced, never changed
        twin.kept = self.kept.copy()
        twin.refused = {key: refused.copy() for key, refused in self.refused.items()}
        twin.bare = self.bare.copy()
        twin.rich = self.rich.copy()
        twin.holes = {model: [hole.copy() for hole in holes] for model, holes in self.holes.items()}
        return twin

    def put(self, number: int, cpu: int, memory: int, gpus: Mapping[str, int]) -> None:
        """Set what is free on one node."""
        models = self.cluster.models_of[number]
        entries = self.rich if models else self.bare
        old = (self.cpu[number], number)
        if (
            cpu > old[0]
            or memory > self.memory[number]
            or any(n > self.gpus[number].get(m, 0) for m, n in gpus.items())
        ):
            self.refused.clear()
        entries.pop(bisect_left(entries, old))
        for model in models:
            hole = self.holes[model][self._count(number, model)]
            hole.pop(bisect_left(hole, old))
        self.cpu[number] = max(0, cpu)
        self.memory[number] = max(0, memory)
        self.gpus[number] = gpus
        self.kept[number] = self.cluster.cpu_share[number] * sum(gpus.values())
        new = (self.cpu[number], number)
        insort(entries, new)
        for model in models:
            insort(self.holes[model][self._count(number, model)], new)

    def _count(self, number: int, model: str) -> int:
        return max(0, self.gpus[number].get(model, 0))

    def slots(self, number: int, request: Request, models: Sequence[str], most: int) -> int:
        """How many members with ``request`` fit on one node, at most ``most``."""
        return slots_in(self.cpu[number], self.memory[number], self.gpus[number], request, models, most)

    def can_hold(self, request: Request, models: tuple[str, ...], pool: Pool, count: int) -> bool:
        """Whether ``count`` members fit into ``pool``, whatever else the gang needs. Exact."""
        asked = (count, request.gpu_count, request.cpu_milli, request.memory_bytes)
        refused = self.refused.setdefault((id(pool), models), [])
        for members, gpus, cpu, memory in refused:
            if count >= members and asked[1] >= gpus and asked[2] >= cpu and asked[3] >= memory:
                return False
        if self._bound(request, models) >= count:
            total = 0
            for _, slots in self.rooms(request, models, pool, count):
                total += slots
                if total >= count:
                    return True
        refused[:] = [kept for kept in refused if any(a < b for a, b in zip(kept, asked, strict=True))]
        if len(refused) < _MOST_REFUSED:
            refused.append(asked)
        return False

    def _bound(self, request: Request, models: Sequence[str]) -> int:
        """At least as many members as fit in the whole cluster, from the numbers of holes alone."""
        wanted = request.gpu_count
        if not wanted:
            return 1 << 62
        return sum(
            len(hole) * (size // wanted)
            for model in models
            for size, hole in enumerate(self.holes[model])
            if size >= wanted and hole
        )

    def rooms(self, request: Request, models: Sequence[str], pool: Pool, most: int) -> list[tuple[int, int]]:
        """Every node of ``pool`` with room for at least one member, and for how many (at most ``most``)."""
        if len(pool.members) <= _SMALL_POOL or (self.cluster.is_mixed and len(models) > 1):
            found = [(number, self.slots(number, request, models, most)) for number in pool.members]
            return [room for room in found if room[1]]
        if request.gpu_count:
            rooms = []
            for model in models:
                for size in range(request.gpu_count, len(self.holes[model])):
                    hole = self.holes[model][size]
                    if hole:
                        rooms += self._rooms_in(hole, request, pool, min(most, size // request.gpu_count))
            return rooms
        return self._rooms_in(self.bare, request, pool, most) + self._rooms_in(self.rich, request, pool, most)

    def bare_rooms(self, request: Request, pool: Pool, most: int) -> list[tuple[int, int]]:
        """The same on the nodes without GPUs."""
        return self._rooms_in(self.bare, request, pool, most)

    def _rooms_in(
        self, entries: list[tuple[int, int]], request: Request, pool: Pool, most: int
    ) -> list[tuple[int, int]]:
        # The innermost loop of the planner: written out, not calling slots_in.
        flags, memory = pool.flags, self.memory
        per_cpu, per_memory = request.cpu_milli, request.memory_bytes
        rooms = []
        for cpu, number in entries[bisect_left(entries, (per_cpu, -1)) :]:
            if flags[number]:
                slots = most
                if per_cpu * slots > cpu:
                    slots = cpu // per_cpu
                if per_memory * slots > memory[number]:
                    slots = memory[number] // per_memory
                if slots:
                    rooms.append((number, slots))
        return rooms

    def largest_hole(self, models: Sequence[str], pool: Pool) -> tuple[int, list[tuple[int, str]]]:
        """The most free GPUs of one model on a node of ``pool``, and every (node, model) that has as many."""
        for size in range(max((self.cluster.largest[model] for model in models), default=0), -1, -1):
            found = [
                (number, model)
                for model in models
                if size < len(self.holes[model])
                for _, number in self.holes[model][size]
                if pool.flags[number]
            ]
            if found:
                return size, sorted(found)
        return 0, []

    def tightest(self, request: Request, models: Sequence[str], pool: Pool) -> int | None:
        """The node that one member with GPUs fills best: the smallest hole, then the least CPU left."""
        floor, flags, memory = (request.cpu_milli, -1), pool.flags, self.memory
        holes = [self.holes[model] for model in models]
        for size in range(request.gpu_count, max((len(h) for h in holes), default=0)):
            best: tuple[int, int] | None = None
            for by_size in holes:
                hole = by_size[size] if size < len(by_size) else ()
                if not hole:
                    continue
                for entry in hole[bisect_left(hole, floor) :]:
                    if flags[entry[1]] and memory[entry[1]] >= request.memory_bytes:
                        best = entry if best is None or entry < best else best
                        break
            if best is not None:
                return best[1]
        return None

    def tightest_bare(self, request: Request, pool: Pool) -> int | None:
        """The node without GPUs that one member fills best."""
        flags, memory = pool.flags, self.memory
        for _, number in self.bare[bisect_left(self.bare, (request.cpu_milli, -1)) :]:
            if flags[number] and memory[number] >= request.memory_bytes:
                return number
        return None

    def tightest_spare(self, request: Request, pool: Pool) -> int | None:
        """The node with GPUs that one member without fills best while its free GPUs keep their share of CPUs."""
        flags, memory, kept = pool.flags, self.memory, self.kept
        wanted, wanted_memory = request.cpu_milli, request.memory_bytes
        for cpu, number in self.rich[bisect_left(self.rich, (wanted, -1)) :]:
            if flags[number] and cpu - kept[number] >= wanted and memory[number] >= wanted_memory:
                return number
        return None


def slots_in(cpu: int, memory: int, gpus: Mapping[str, int], request: Request, models: Sequence[str], most: int) -> int:
    """How many members with ``request`` fit into these amounts, at most ``most``; each takes one model."""
    # Called for every kind of node and every shape: plain comparisons, no calls.
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
    return max(0, slots)
