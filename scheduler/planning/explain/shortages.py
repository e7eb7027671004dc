"""Which resource equal members are short of, where it comes nearest, and which jobs hold the missing amount."""

from __future__ import annotations

from datetime import datetime
from itertools import islice
from typing import Any

from core.domain.sharing.gpus import WHOLE_GPU
from core.domain.sharing.resources import ResourceRequest
from scheduler.planning import phrases
from scheduler.planning.explain.member_phrases import each_member
from scheduler.planning.explain.occupancy import MOST_LOOKED_AT, GpuOccupancy
from scheduler.planning.model import Reason, WaitReasonCode
from scheduler.planning.placement.capacity import Capacity
from scheduler.planning.placement.cluster import NodePool
from scheduler.planning.placement.demand import Demand, MemberGroup


class ShortageReasons:
    """The shortages in the ``free`` capacity of one plan."""

    def __init__(self, free: Capacity, holders: GpuOccupancy, now: datetime) -> None:
        self.free = free
        self.cluster = free.cluster
        self.holders = holders
        self.now = now
        self._hole_phrases: dict[tuple[int, tuple[str, ...], int], tuple[str, dict[str, Any]]] = {}
        self._most_cpu: dict[int, int] = {}
        self._most_memory: dict[int, int] = {}

    def explain(self, demand: Demand, group: MemberGroup) -> Reason | None:
        """Why one group alone finds no room now; ``None`` if it does."""
        request = group.request
        request_numbers = _request_numbers(group)
        shortage: tuple[str, dict[str, Any]] | None = None
        if request.gpu_count:
            hole, phrase, numbers = self._largest_hole(demand.pool, group)
            if hole < request.gpu_count:
                sentence = (
                    f"needs {phrases.gpus(request.gpu_count, request.gpu_models)} on one node {each_member(group)}; "
                )
                return Reason(WaitReasonCode.NO_ROOM, sentence + phrase, {**request_numbers, **numbers})
        elif request.gpu_milli:
            shortage = self._short_of_parts(demand.pool, group)
        else:
            shortage = self._short_of_bare(demand.pool, group)
        if shortage is not None:
            return Reason(WaitReasonCode.NO_ROOM, shortage[0], {**request_numbers, **shortage[1]})

        def members(request: ResourceRequest) -> int:
            return sum(slots for _, slots in self.free.rooms(request, group.models, demand.pool, group.count))

        fits_now = members(request)
        if fits_now >= group.count:
            return None
        if not fits_now:
            return self._short_for_gpus(demand.pool, group, request_numbers)
        binding = phrases.binding(request, members)
        return Reason(
            WaitReasonCode.NO_ROOM,
            f"needs {phrases.request(request, binding)} on one node {each_member(group)}; there is room for {fits_now} "
            "of them now",
            {**request_numbers, "fits_now": fits_now, "binding": list(binding)},
        )

    def _largest_hole(self, pool: NodePool, group: MemberGroup) -> tuple[int, str, dict[str, Any]]:
        """The most free GPUs of one accepted model on a node, in words, and which jobs hold the missing ones there."""
        size = group.request.gpu_count
        key = (id(pool), group.models, size)
        description = self._hole_phrases.get(key)
        if description is None:
            description = self._hole_phrases[key] = self._describe_hole(pool, group.models, size)
        return description[1]["largest_hole"], *description

    def _describe_hole(self, pool: NodePool, models: tuple[str, ...], size: int) -> tuple[str, dict[str, Any]]:
        hole, candidates = self.free.largest_hole(models, pool)
        if hole >= size:
            return "", {"largest_hole": hole}
        # Among equal holes the one that will be large enough first; the whole node must be large enough.
        allocatable = self.cluster.totals.gpus
        large_enough = list(islice(((n, m) for n, m in candidates if allocatable[m][n] >= size), MOST_LOOKED_AT))
        number, model, blocking = self.holders.first_to_free(large_enough or candidates, size - hole)
        name = self.cluster.nodes[number].id
        numbers: dict[str, Any] = {"largest_hole": hole, "node": name, "gpu_model": model}
        phrase = f"the largest hole is {hole}, on {name}" if hole else "none is free"
        if blocking is not None:
            where = "its GPUs" if hole else f"the GPUs of {name}"
            are = "is" if blocking.gpus == 1 else "are"
            phrase += f"; {blocking.gpus} of {where} {are} held by {blocking.phrase(self.now)}"
            numbers |= blocking.numbers()
        return phrase, numbers

    def _short_of_parts(self, pool: NodePool, group: MemberGroup) -> tuple[str, dict[str, Any]] | None:
        """For members that want a part of a GPU: no device has enough left."""
        part = group.request.gpu_milli
        largest_part, first = max((self._most_left(number, group.models), -number) for number in pool.members)
        if largest_part >= part:
            return None
        name = self.cluster.nodes[-first].id
        phrase = (
            f"the most that is left of one is {phrases.part_of_gpu(largest_part)}, on {name}"
            if largest_part
            else "nothing is left of any"
        )
        sentence = f"needs {phrases.gpu_text(group.request)} {each_member(group)}; {phrase}"
        on = self.holders.occupants_phrase(-first) if largest_part else ""
        return sentence + on, {"largest_part_milli": largest_part, "node": name}

    def _most_left(self, number: int, models: tuple[str, ...]) -> int:
        """Thousandths of the emptiest device on the node."""
        gpus, shares = self.free.gpus[number], self.free.shares[number]
        return max(
            (WHOLE_GPU if gpus.get(m, 0) > 0 else max(shares.get(m, (0,)), default=0) for m in models), default=0
        )

    def _short_of_bare(self, pool: NodePool, group: MemberGroup) -> tuple[str, dict[str, Any]] | None:
        """For members without GPUs: not even one finds enough CPU, or enough memory."""
        request, free = group.request, self.free
        if id(pool) not in self._most_cpu:
            self._most_cpu[id(pool)] = max(pool.members, key=lambda n: (free.cpu[n], -n))
            self._most_memory[id(pool)] = max(pool.members, key=lambda n: (free.memory[n], -n))
        number = self._most_cpu[id(pool)]
        name = self.cluster.nodes[number].id
        if free.cpu[number] < request.cpu_milli:
            most_free = phrases.cpus(free.cpu[number])
            needs = f"needs {phrases.cpu_text(request)} on one node {each_member(group)}"
            sentence = f"{needs}; the most that is free is {most_free}, on {name}"
            return sentence + self.holders.occupants_phrase(number), {
                "most_free_cpu_milli": free.cpu[number],
                "node": name,
            }
        number = self._most_memory[id(pool)]
        name = self.cluster.nodes[number].id
        if free.memory[number] < request.memory_bytes:
            most_free = phrases.memory(free.memory[number])
            needs = f"needs {phrases.memory_text(request)} on one node {each_member(group)}"
            sentence = f"{needs}; the most that is free is {most_free}, on {name}"
            return sentence + self.holders.occupants_phrase(number), {
                "most_free_memory_bytes": free.memory[number],
                "node": name,
            }
        return None

    def _short_for_gpus(self, pool: NodePool, group: MemberGroup, request_numbers: dict[str, Any]) -> Reason:
        """Each resource is free somewhere, but not all on one node: name the nearest node."""
        request, free = group.request, self.free

        def share(number: int) -> float:
            cpu = free.cpu[number] / request.cpu_milli if request.cpu_milli else 1.0
            memory = free.memory[number] / request.memory_bytes if request.memory_bytes else 1.0
            return min(cpu, memory, 1.0)

        def has_gpus(number: int) -> bool:
            return any(free.gpus[number].get(model, 0) >= request.gpu_count for model in group.models)

        enough = [n for n in pool.members if not request.gpu_count or has_gpus(n)]
        number = max(enough, key=lambda n: (share(n), -n))
        name = self.cluster.nodes[number].id
        amounts = [phrases.cpus(free.cpu[number]), phrases.memory(free.memory[number])]
        if request.gpu_count:
            amounts.insert(0, phrases.gpus(max(free.gpus[number].get(m, 0) for m in group.models), ()))
        scarce = [
            name
            for name, amount, available in (
                ("cpu", request.cpu_milli, free.cpu[number]),
                ("memory", request.memory_bytes, free.memory[number]),
            )
            if available < amount
        ]
        sentence = (
            f"needs {phrases.request(request, scarce)} together on one node {each_member(group)}; "
            f"{name} comes nearest with {phrases.all_of(amounts)} free{self.holders.occupants_phrase(number)}"
        )
        numbers = {"node": name, "free_cpu_milli": free.cpu[number], "free_memory_bytes": free.memory[number]}
        return Reason(WaitReasonCode.NO_ROOM, sentence, {**request_numbers, **numbers})


def _request_numbers(group: MemberGroup) -> dict[str, Any]:
    request = group.request
    numbers: dict[str, Any] = {"role": group.roles[0][0], "replicas": group.count}
    if request.gpu_count:
        numbers |= {"gpus": request.gpu_count, "gpu_models": list(request.gpu_models)}
    elif request.gpu_milli:
        numbers |= {"gpu_milli": request.gpu_milli, "gpu_models": list(request.gpu_models)}
    return numbers | {"cpu_milli": request.cpu_milli, "memory_bytes": request.memory_bytes}
