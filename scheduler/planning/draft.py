"""A gang half placed: what it takes so far, laid over a capacity that is not changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from core.domain.resources import Request
from scheduler.planning.capacity import Capacity, slots_in
from scheduler.planning.cluster import Pool
from scheduler.planning.demand import Demand, Group
from scheduler.planning.model import Placement


@dataclass(frozen=True, slots=True)
class Pick:
    """``count`` members on one node, with GPUs of one model (``None`` without)."""

    number: int
    model: str | None
    count: int


class Draft:
    """``left``: what stays free on the nodes used so far. ``picks``: per group, where its members go."""

    __slots__ = ("capacity", "left", "picks")

    def __init__(self, capacity: Capacity) -> None:
        self.capacity = capacity
        self.left: dict[int, tuple[int, int, Mapping[str, int]]] = {}
        self.picks: list[tuple[Group, list[Pick]]] = []

    def amounts(self, number: int) -> tuple[int, int, Mapping[str, int]]:
        left = self.left.get(number)
        if left is not None:
            return left
        capacity = self.capacity
        return capacity.cpu[number], capacity.memory[number], capacity.gpus[number]

    def slots(self, number: int, request: Request, models: Sequence[str], most: int) -> int:
        cpu, memory, gpus = self.amounts(number)
        return slots_in(cpu, memory, gpus, request, models, most)

    def rooms(self, request: Request, models: Sequence[str], pool: Pool, most: int) -> list[tuple[int, int]]:
        """As :meth:`Capacity.rooms`, less what this gang takes already."""
        rooms = self.capacity.rooms(request, models, pool, most)
        if not self.left:
            return rooms
        left = self.left
        fresh = [(n, self.slots(n, request, models, most) if n in left else slots) for n, slots in rooms]
        return [room for room in fresh if room[1]]

    def take(self, number: int, request: Request, model: str | None, count: int) -> None:
        cpu, memory, gpus = self.amounts(number)
        if model is not None:
            gpus = {**gpus, model: gpus.get(model, 0) - count * request.gpu_count}
        self.left[number] = (cpu - count * request.cpu_milli, memory - count * request.memory_bytes, gpus)

    def add(self, group: Group, picks: Iterable[Pick]) -> None:
        """Place a group; the picks must fit."""
        picks = list(picks)
        for pick in picks:
            self.take(pick.number, group.request, pick.model, pick.count)
        self.picks.append((group, picks))

    def used(self) -> list[tuple[int, Request, str | None, int]]:
        """What it takes: (node, request of one member, model, members)."""
        return [(pick.number, group.request, pick.model, pick.count) for group, picks in self.picks for pick in picks]

    def placements(self, demand: Demand) -> tuple[Placement, ...]:
        """Every replica in rank order; consecutive ranks of a role share a node as far as they can."""
        nodes = self.capacity.cluster.nodes
        # Nodes in the order in which the largest group met them, so that ps 0 stands beside worker 0.
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
