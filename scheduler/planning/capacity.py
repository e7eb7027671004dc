"""What is free on every node, indexed so that a question touches only the nodes that may answer it.

The simple equivalent is a list of free amounts and a loop over all nodes. The difference: nodes with GPUs stand in
one sorted list per model and number of free devices ("holes"), nodes without GPUs in one sorted list, each sorted by
free CPU. In a full cluster a job that asks for 8 GPUs so looks at no node at all. Devices that are given away in parts
stand beside that, by node, ascending by what is left of each.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Mapping, Sequence

from core.domain.parts import WHOLE, room_for_parts
from core.domain.resources import Request
from scheduler.planning.cluster import Cluster, Pool
from scheduler.planning.fragments import Fragments, Typical

Shares = Mapping[str, tuple[int, ...]]
NO_SHARES: Shares = {}

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
        shares: per node and model, thousandths left on each shared device; ``shared``: per model the nodes with any left.
        refused: per pool and models, (members, GPUs, CPU, memory) that did not fit; whatever asks for at least as
            much does not fit either, until something becomes free.
    """

    __slots__ = (
        "bare",
        "cluster",
        "cpu",
        "fragments",
        "gpus",
        "holes",
        "kept",
        "memory",
        "refused",
        "rich",
        "shared",
        "shares",
        "typical",
    )

    def __init__(
        self,
        cluster: Cluster,
        cpu: Sequence[int],
        memory: Sequence[int],
        gpus: Sequence[Mapping[str, int]],
        shares: Sequence[Shares],
    ) -> None:
        self.cluster = cluster
        self.cpu = [max(0, amount) for amount in cpu]
        self.memory = [max(0, amount) for amount in memory]
        self.gpus: list[Mapping[str, int]] = list(gpus)
        self.shares: list[Shares] = list(shares)
        self.fragments: Fragments | None = None
        self.typical: Callable[[], Typical] | None = None
        self.refused: dict[tuple[int, tuple[str, ...]], list[tuple[int, int, int, int]]] = {}
        self.kept = [_kept(each) for each in zip(cluster.cpu_share, self.gpus, self.shares, strict=True)]
        self.shared: dict[str, set[int]] = {model: set() for model in cluster.largest}
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
                if self._has_part(number, model):
                    self.shared[model].add(number)
        self.bare.sort()
        self.rich.sort()
        for holes in self.holes.values():
            for hole in holes:
                hole.sort()

    @classmethod
    def free(cls, cluster: Cluster) -> Capacity:
        """What the snapshot says is free."""
        frees = [node.free for node in cluster.nodes]
        return cls(
            cluster,
            [f.cpu_milli for f in frees],
            [f.memory_bytes for f in frees],
            [f.gpus for f in frees],
            [f.shares for f in frees],
        )

    @classmethod
    def empty(cls, cluster: Cluster) -> Capacity:
        """Everything, as if nothing ran."""
        alls = [node.allocatable for node in cluster.nodes]
        nothing = [NO_SHARES] * len(alls)
        return cls(
            cluster, [a.cpu_milli for a in alls], [a.memory_bytes for a in alls], [a.gpus for a in alls], nothing
        )

    def expect(self, typical: Callable[[], Typical]) -> None:
        """Judge holes by what is asked for typically (asked once it matters); without it the smallest that suffices is taken."""
        self.typical = typical
        self.fragments = None

    def _judge(self) -> Fragments | None:
        if self.fragments is None and self.typical is not None:
            typical = self.typical()
            self.typical = None
            self.fragments = Fragments(self, typical) if typical.requests else None
        return self.fragments

    def copy(self) -> Capacity:
        twin = Capacity.__new__(Capacity)
        twin.cluster = self.cluster
        twin.cpu = self.cpu.copy()
        twin.memory = self.memory.copy()
        twin.gpus = self.gpus.copy()  # the mappings are replaced, never changed
        twin.kept = self.kept.copy()
        twin.shares = self.shares.copy()
        twin.shared = {model: numbers.copy() for model, numbers in self.shared.items()}
        twin.typical = self.typical
        twin.fragments = None if self.fragments is None else self.fragments.copy(twin)
        twin.refused = {key: refused.copy() for key, refused in self.refused.items()}
        twin.bare = self.bare.copy()
        twin.rich = self.rich.copy()
        twin.holes = {model: [hole.copy() for hole in holes] for model, holes in self.holes.items()}
        return twin

    def put(self, number: int, cpu: int, memory: int, gpus: Mapping[str, int], shares: Shares | None = None) -> None:
        """Set what is free on one node. ``shares``: ``None`` leaves them as they are."""
        if shares is None:
            shares = self.shares[number]
        models = self.cluster.models_of[number]
        entries = self.rich if models else self.bare
        old = (self.cpu[number], number)
        if (
            cpu > old[0]
            or memory > self.memory[number]
            or any(n > self.gpus[number].get(m, 0) for m, n in gpus.items())
            or (
                shares
                and shares != self.shares[number]
                and _has_more(shares, self.shares[number], gpus, self.gpus[number])
            )
        ):
            self.refused.clear()
        entries.pop(bisect_left(entries, old))
        for model in models:
            hole = self.holes[model][self._count(number, model)]
            hole.pop(bisect_left(hole, old))
        self.cpu[number] = max(0, cpu)
        self.memory[number] = max(0, memory)
        self.gpus[number] = gpus
        self.shares[number] = shares
        self.kept[number] = _kept((self.cluster.cpu_share[number], gpus, shares))
        new = (self.cpu[number], number)
        insort(entries, new)
        for model in models:
            insort(self.holes[model][self._count(number, model)], new)
            if shares and self._has_part(number, model):
                self.shared[model].add(number)
            else:
                self.shared[model].discard(number)
        if self.fragments is not None:
            self.fragments.changed(number)

    def _count(self, number: int, model: str) -> int:
        return max(0, self.gpus[number].get(model, 0))

    def _has_part(self, number: int, model: str) -> bool:
        left = self.shares[number].get(model)
        return bool(left) and left[-1] > 0  # type: ignore[index]

    def left_milli(self, number: int) -> int:
        """Thousandths of GPUs that are free on one node."""
        whole, shares = sum(self.gpus[number].values()), self.shares[number]
        return WHOLE * whole + (sum(left for parts in shares.values() for left in parts) if shares else 0)

    def slots(self, number: int, request: Request, models: Sequence[str], most: int) -> int:
        """How many members with ``request`` fit on one node, at most ``most``."""
        shares = self.shares[number]
        return slots_in(self.cpu[number], self.memory[number], self.gpus[number], request, models, most, shares)

    def can_hold(self, request: Request, models: tuple[str, ...], pool: Pool, count: int) -> bool:
        """Whether ``count`` members fit into ``pool``, whatever else the gang needs. Exact."""
        asked = (count, WHOLE * request.gpu_count + request.gpu_milli, request.cpu_milli, request.memory_bytes)
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
            return self._bound_of_parts(request, models) if request.gpu_milli else 1 << 62
        return sum(
            len(hole) * (size // wanted)
            for model in models
            for size, hole in enumerate(self.holes[model])
            if size >= wanted and hole
        )

    def _bound_of_parts(self, request: Request, models: Sequence[str]) -> int:
        part = request.gpu_milli
        return sum(
            room_for_parts(self.shares[number].get(model, ()), 0, part)
            for model in models
            for number in self.shared[model]
        ) + sum(
            len(hole) * size * (WHOLE // part)
            for model in models
            for size, hole in enumerate(self.holes[model])
            if hole
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
        if request.gpu_milli:
            return self._rooms_of_parts(request, models, pool, most)
        return self._rooms_in(self.bare, request, pool, most) + self._rooms_in(self.rich, request, pool, most)

    def _rooms_of_parts(self, request: Request, models: Sequence[str], pool: Pool, most: int) -> list[tuple[int, int]]:
        numbers = set[int]()
        for model in models:
            numbers.update(number for hole in self.holes[model][1:] for _, number in hole)
            numbers |= self.shared[model]
        found = [(n, self.slots(n, request, models, most)) for n in sorted(numbers) if pool.flags[n]]
        return [room for room in found if room[1]]

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
        fragments = self._judge()
        if fragments is not None:
            return fragments.choose(request, models, pool)
        if request.gpu_milli:
            return self._tightest_for_part(request, models, pool)
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

    def _tightest_for_part(self, request: Request, models: Sequence[str], pool: Pool) -> int | None:
        """On a device that is shared already if there is one, there where the least is left; else in the smallest hole."""
        part, best = request.gpu_milli, (WHOLE + 1, 0, 0, -1)
        for number, _ in self._rooms_of_parts(request, models, pool, 1):
            for model in models:
                left = next((share for share in self.shares[number].get(model, ()) if share >= part), WHOLE)
                if left < WHOLE or self._count(number, model):
                    best = min(best, (left, self._count(number, model), self.cpu[number], number))
        return None if best[3] < 0 else best[3]

    def tightest_bare(self, request: Request, pool: Pool) -> int | None:
        """The node without GPUs that one member fills best."""
        flags, memory = pool.flags, self.memory
        for _, number in self.bare[bisect_left(self.bare, (request.cpu_milli, -1)) :]:
            if flags[number] and memory[number] >= request.memory_bytes:
                return number
        return None

    def tightest_spare(self, request: Request, pool: Pool) -> int | None:
        """The node with GPUs that one member without fills best while its free GPUs keep their share of CPUs."""
        fragments = self._judge()
        if fragments is not None:
            return fragments.choose(request, (), pool)
        flags, memory, kept = pool.flags, self.memory, self.kept
        wanted, wanted_memory = request.cpu_milli, request.memory_bytes
        for cpu, number in self.rich[bisect_left(self.rich, (wanted, -1)) :]:
            if flags[number] and cpu - kept[number] >= wanted and memory[number] >= wanted_memory:
                return number
        return None


def _kept(node: tuple[int, Mapping[str, int], Shares]) -> int:
    """``node``: the CPU that each GPU may count on, free GPUs, what is left of shared ones."""
    share, gpus, shares = node
    kept = share * sum(gpus.values())
    if shares:
        kept += share * sum(left for parts in shares.values() for left in parts) // WHOLE
    return kept


def _has_more(shares: Shares, before: Shares, gpus: Mapping[str, int], gpus_before: Mapping[str, int]) -> bool:
    """Whether something may fit on these devices that did not before. A device that was opened is no gain."""
    for model, left in shares.items():
        opened = gpus_before.get(model, 0) - gpus.get(model, 0)
        had = sorted((*before.get(model, ()), *([WHOLE] * opened)), reverse=True)
        now = sorted(left, reverse=True)
        if len(now) > len(had) or any(a > b for a, b in zip(now, had, strict=False)):
            return True
    return False


def slots_in(
    cpu: int,
    memory: int,
    gpus: Mapping[str, int],
    request: Request,
    models: Sequence[str],
    most: int,
    shares: Shares = NO_SHARES,
) -> int:
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
    elif request.gpu_milli and slots > 0:
        by_parts = 0
        for model in models:
            if model in gpus or model in shares:
                by_parts += room_for_parts(shares.get(model, ()), max(0, gpus.get(model, 0)), request.gpu_milli)
        slots = min(slots, by_parts)
    return max(0, slots)
