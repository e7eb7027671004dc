"""A partial placement: what a gang takes so far, as a layer over a capacity that is not modified."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from core.domain.sharing.gpus import after_part
from core.domain.sharing.resources import ResourceRequest
from scheduler.planning.model import Placement
from scheduler.planning.placement.capacity import Capacity, FreeAmounts, slots_in
from scheduler.planning.placement.cluster import Flags, Ints, NodePool, Rooms
from scheduler.planning.placement.demand import Demand, MemberGroup
from scheduler.planning.queue.shares import total_amounts


@dataclass(frozen=True, slots=True)
class Pick:
    """``count`` members on one node, with GPUs of one model (``None`` without GPUs)."""

    number: int
    model: str | None
    count: int


def subtract(left: FreeAmounts, request: ResourceRequest, model: str | None, members: int) -> FreeAmounts:
    """The amounts left by ``members``. GPU parts go to devices by the rule of
    :mod:`core.domain.sharing.gpus`.
    """
    cpu, memory, gpus, shares = left
    if model is not None:
        if request.gpu_count:
            gpus = {**gpus, model: gpus.get(model, 0) - members * request.gpu_count}
        elif request.gpu_milli:
            parts, whole_devices = shares.get(model, ()), gpus.get(model, 0)
            for _ in range(members):
                parts, opened = after_part(parts, request.gpu_milli)
                whole_devices -= opened
            gpus, shares = {**gpus, model: whole_devices}, {**shares, model: parts}
    return cpu - members * request.cpu_milli, memory - members * request.memory_bytes, gpus, shares


class PartialPlacement:
    """``left``: free amounts on the nodes used so far. ``picks``: per group, the nodes of its members. ``banned``:
    nodes that the next group must not use.
    """

    __slots__ = ("banned", "capacity", "left", "picks")

    def __init__(self, capacity: Capacity) -> None:
        self.capacity = capacity
        self.left: dict[int, FreeAmounts] = {}
        self.picks: list[tuple[MemberGroup, list[Pick]]] = []
        self.banned: frozenset[int] = frozenset()

    def amounts(self, number: int) -> FreeAmounts:
        left = self.left.get(number)
        if left is not None:
            return left
        capacity = self.capacity
        return capacity.cpu[number], capacity.memory[number], capacity.gpus[number], capacity.shares[number]

    def slots(self, number: int, request: ResourceRequest, models: Sequence[str], most: int) -> int:
        cpu, memory, gpus, shares = self.amounts(number)
        return slots_in(cpu, memory, gpus, request, models, most, shares)

    def rooms(self, request: ResourceRequest, models: Sequence[str], pool: NodePool, most: int) -> Rooms:
        """As :meth:`Capacity.rooms`, minus what this gang takes already."""
        rooms = self.capacity.rooms(request, models, pool, most)
        if self.banned:
            rooms = rooms.where(~self.among(rooms.numbers, self.banned))
        if not self.left or not len(rooms):
            return rooms
        slots = rooms.slots.copy()
        for position in np.flatnonzero(self.among(rooms.numbers, self.left)).tolist():
            slots[position] = self.slots(int(rooms.numbers[position]), request, models, most)
        return Rooms(rooms.numbers, slots).where(slots > 0)

    def among(self, numbers: Ints, nodes: Collection[int]) -> Flags:
        """Which of ``numbers`` are among ``some``."""
        flags = np.zeros(len(self.capacity.cpu), dtype=np.bool_)
        flags[list(nodes)] = True
        return flags[numbers]

    def columns(self, numbers: Ints) -> tuple[Ints, Ints, Ints]:
        """Free CPU, memory and whole devices on these nodes, minus what this gang takes already."""
        capacity = self.capacity
        cpu, memory, gpus = capacity.cpus[numbers], capacity.memories[numbers], capacity.free_gpus(numbers)
        if self.left and len(numbers):
            for position in np.flatnonzero(self.among(numbers, self.left)).tolist():
                left = self.left[int(numbers[position])]
                cpu[position], memory[position], gpus[position] = (
                    left[0],
                    left[1],
                    sum(max(0, count) for count in left[2].values()),
                )
        return cpu, memory, gpus

    def take(self, number: int, request: ResourceRequest, model: str | None, count: int) -> None:
        self.left[number] = subtract(self.amounts(number), request, model, count)

    def add(self, group: MemberGroup, picks: Iterable[Pick]) -> None:
        """Place a group; the picks must fit."""
        picks = list(picks)
        for pick in picks:
            self.take(pick.number, group.request, pick.model, pick.count)
        self.picks.append((group, picks))

    def copied_to(self, capacity: Capacity) -> PartialPlacement:
        """The same placement on another capacity, which must have room for it."""
        placement = PartialPlacement(capacity)
        for group, picks in self.picks:
            placement.add(group, picks)
        return placement

    def uses(self) -> list[tuple[int, ResourceRequest, str | None, int]]:
        """What it takes: (node, request of one member, model, members); larger GPU parts first, the order of device
        assignment.
        """
        used = [(pick.number, group.request, pick.model, pick.count) for group, picks in self.picks for pick in picks]
        used.sort(key=lambda item: -item[1].gpu_milli)
        return used

    def quota_amounts(self) -> dict[str, int]:
        """What it takes, by quota keys."""
        return total_amounts((request, model, members) for _, request, model, members in self.uses())

    def is_sound(self) -> bool:
        """Whether all GPU parts still find devices when assigned larger ones first, whatever the order while drafting.

        Recomputes ``left`` in that order.
        """
        if len({group.request.gpu_milli for group, _ in self.picks if group.request.gpu_milli}) < 2:
            return True
        capacity, left = self.capacity, dict[int, FreeAmounts]()
        for number, request, model, members in self.uses():
            amounts = left.get(number) or (
                capacity.cpu[number],
                capacity.memory[number],
                capacity.gpus[number],
                capacity.shares[number],
            )
            left[number] = subtract(amounts, request, model, members)
        self.left = left
        return all(min(gpus.values(), default=0) >= 0 for _, _, gpus, _ in left.values())

    def placements(self, demand: Demand) -> tuple[Placement, ...]:
        """Every replica in rank order; consecutive ranks of a role share nodes where possible."""
        nodes = self.capacity.cluster.nodes
        # Nodes in the order of the largest group, so that ps 0 is next to worker 0.
        order: dict[int, int] = {}
        for _, picks in sorted(self.picks, key=lambda item: -item[0].count):
            for pick in picks:
                order.setdefault(pick.number, len(order))
        queues: dict[str, list[Placement]] = {role.role: [] for role in demand.gang.roles}
        for group, picks in self.picks:
            seats = (
                pick
                for pick in sorted(picks, key=lambda pick: (order[pick.number], pick.model or ""))
                for _ in range(pick.count)
            )
            for role, replicas in group.roles:
                for index in range(replicas):
                    seat = next(seats)
                    queues[role].append(Placement(role, index, nodes[seat.number].id, seat.model))
        return tuple(placement for role in demand.gang.roles for placement in queues[role.role])
