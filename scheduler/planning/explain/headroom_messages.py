"""Wait reasons of gangs without GPUs that are blocked by the GPU headroom."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from core.domain.sharing.gpus import WHOLE_GPU
from core.domain.sharing.resources import as_gpus
from scheduler.planning import phrases
from scheduler.planning.explain.member_phrases import each_member
from scheduler.planning.explain.occupancy import GpuOccupancy
from scheduler.planning.model import Reason, WaitReasonCode
from scheduler.planning.placement.capacity import Capacity
from scheduler.planning.placement.demand import Demand, MemberGroup
from scheduler.planning.placement.gang import place
from scheduler.planning.placement.partial import PartialPlacement
from scheduler.planning.placement.search import SearchBudget


def explain_headroom(demand: Demand, free: Capacity, budget: SearchBudget, holders: GpuOccupancy) -> Reason | None:
    """The reason if only the GPU headroom blocks the gang; ``None`` if it would not fit without the headroom either."""
    headroom = free.headroom
    if not demand.respects_headroom or headroom is None or not headroom.is_active:
        return None
    draft = place(replace(demand, respects_headroom=False), free, budget)
    if draft is None:
        return None
    spare = headroom.capacity_beyond(free)
    group, number, members = _first_short(draft, spare)
    request = group.request
    cpu, memory = headroom.reserved_on(number, free.gpus[number], free.shares[number])
    cpu, memory = min(cpu, free.cpu[number]), min(memory, free.memory[number])
    scarce = [
        name
        for name, available, needed in (
            ("cpu", spare.cpu[number], members * request.cpu_milli),
            ("memory", spare.memory[number], members * request.memory_bytes),
        )
        if available < needed
    ]
    name, milli = free.cluster.nodes[number].id, free.left_milli(number)
    free_amounts = _amounts(scarce, free.cpu[number], free.memory[number])
    reserved = _amounts(scarce, cpu, memory)
    reserved_clause = "but kept" if reserved == free_amounts else f"of which {reserved} {_is(scarce, cpu)} kept"
    fits_now = spare.rooms(request, (), demand.pool, group.count).total
    if not fits_now:
        remark = _without_gpus(demand, group, free, holders)
    elif fits_now < group.count:
        remark = f"; there is room for {fits_now} of them beyond that now"
    else:
        remark = "; beyond that there is room for each of its roles alone, but not for all together"
    sentence = (
        f"needs {phrases.request(request, scarce)} on one node {each_member(group)}; {free_amounts} "
        f"{_is(scarce, free.cpu[number])} free "
        f"on {name}, {reserved_clause} for its {as_gpus(milli):g} free "
        f"{'GPU' if milli == WHOLE_GPU else 'GPUs'}{remark}"
    )
    numbers: dict[str, Any] = {
        "role": group.roles[0][0],
        "replicas": group.count,
        "cpu_milli": request.cpu_milli,
        "memory_bytes": request.memory_bytes,
        "node": name,
        "binding": scarce,
        "free_cpu_milli": free.cpu[number],
        "kept_cpu_milli": cpu,
        "free_memory_bytes": free.memory[number],
        "kept_memory_bytes": memory,
        "free_gpu_milli": milli,
        "fits_now": fits_now,
    }
    return Reason(WaitReasonCode.GPU_HEADROOM, sentence, numbers)


def _first_short(draft: PartialPlacement, spare: Capacity) -> tuple[MemberGroup, int, int]:
    """The group that does not fit beyond the headroom, its node (the one with the most CPU), and its members there."""
    has_gpus, base = spare.cluster.has_gpus, draft.capacity
    candidates = [
        (
            spare.slots(pick.number, group.request, (), pick.count) >= pick.count,
            -base.cpu[pick.number],
            pick.number,
            position,
        )
        for position, (group, picks) in enumerate(draft.picks)
        for pick in picks
        if has_gpus[pick.number]
    ]
    _, _, number, position = min(candidates)
    group, picks = draft.picks[position]
    return group, number, next(pick.count for pick in picks if pick.number == number)


def _amounts(names: Sequence[str], cpu: int, memory: int) -> str:
    """``12 CPUs and 4 GiB of memory``."""
    amounts = {"cpu": phrases.cpus(cpu), "memory": phrases.memory(memory)}
    return phrases.all_of([amounts[name] for name in names or amounts])


def _is(names: Sequence[str], cpu: int) -> str:
    return "is" if list(names) == ["memory"] or (list(names) == ["cpu"] and cpu == 1000) else "are"


def _without_gpus(demand: Demand, group: MemberGroup, free: Capacity, holders: GpuOccupancy) -> str:
    """The nearest node without GPUs, as the end of a sentence; empty if there is no such node."""
    cpu_nodes = demand.pool.numbers[~free.cluster.has_gpus[demand.pool.numbers]]
    if not len(cpu_nodes):
        return ""
    request = group.request
    # The node closest to one member's request.
    share = np.minimum(
        free.cpus[cpu_nodes] / max(1, request.cpu_milli), free.memories[cpu_nodes] / max(1, request.memory_bytes)
    )
    number = int(cpu_nodes[int(share.argmax())])
    scarce = [
        name
        for name, available, needed in (
            ("cpu", free.cpu[number], request.cpu_milli),
            ("memory", free.memory[number], request.memory_bytes),
        )
        if available < needed
    ]
    free_amounts = _amounts(scarce, free.cpu[number], free.memory[number])
    name = free.cluster.nodes[number].id
    return (
        f"; of the nodes without GPUs {name} comes nearest with {free_amounts} free{holders.occupants_phrase(number)}"
    )
