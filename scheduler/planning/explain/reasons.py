"""Why a shape waits: the binding number first, then which jobs hold it and what to do.

Written once per shape against the final free capacity of the plan, so equal shapes share one reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import numpy as np

from core.domain.sharing.gpus import WHOLE_GPU
from core.domain.sharing.resources import Gang, as_gpus
from core.domain.sharing.wait_phrases import RESERVED_FOR, reserved_for, starts_first
from scheduler.planning import phrases
from scheduler.planning.explain.infeasible import explain_infeasible
from scheduler.planning.explain.member_phrases import each_member, members
from scheduler.planning.explain.occupancy import GpuOccupancy
from scheduler.planning.explain.shortages import ShortageReasons
from scheduler.planning.model import Reason, Snapshot, WaitReasonCode
from scheduler.planning.placement.capacity import Capacity
from scheduler.planning.placement.cluster import ClusterIndex
from scheduler.planning.placement.demand import Demand, MemberGroup, demand_of
from scheduler.planning.placement.feasibility import EmptyCluster
from scheduler.planning.placement.gang import best_domain, place
from scheduler.planning.placement.ledger import BackfillReservation, Ledger
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
    group, number, count = _first_short(draft, spare)
    request = group.request
    cpu, memory = headroom.reserved_on(number, free.gpus[number], free.shares[number])
    cpu, memory = min(cpu, free.cpu[number]), min(memory, free.memory[number])
    scarce = [
        name
        for name, available, needed in (
            ("cpu", spare.cpu[number], count * request.cpu_milli),
            ("memory", spare.memory[number], count * request.memory_bytes),
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


class QuarantinedNodes:
    """Quarantined nodes with room for a waiting job, named in its reason, since an administrator may open them."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._cluster = ClusterIndex(node for node in snapshot.nodes if node.is_quarantined)
        self._free = Capacity.free(self._cluster) if self._cluster.nodes else None

    def add_to(self, reason: Reason, gang: Gang) -> Reason:
        """``reason``, extended by the quarantined nodes that have room for one of the gang's largest members."""
        if self._free is None:
            return reason
        demand = demand_of(gang, self._cluster)
        if not demand.pool.members:
            return reason
        group = demand.merged[0]
        usable = [self._cluster.nodes[n] for n, _ in self._free.rooms(group.request, group.models, demand.pool, 1)]
        if not usable:
            return reason
        nodes = phrases.shortlist([f"{node.id} {node.why_not}" for node in usable])
        numbers: dict[str, Any] = {**reason.numbers, "quarantined": [node.id for node in usable]}
        return replace(reason, sentence=f"{reason.sentence}. Besides, {nodes}", numbers=numbers)


class Explainer:
    """Builds reasons for one finished plan."""

    def __init__(self, snapshot: Snapshot, empty: EmptyCluster, ledger: Ledger, holders: GpuOccupancy) -> None:
        self.snapshot = snapshot
        self.cluster = empty.cluster
        self.empty = empty
        self.ledger = ledger
        self.free = ledger.free
        self.holders = holders
        self.budget = SearchBudget()
        self.quarantined = QuarantinedNodes(snapshot)
        self._backfill_reservations = {
            id(reservation.demand): reservation for reservation in ledger.backfill_reservations
        }
        self._everywhere: EmptyCluster | None = None  # unschedulable nodes included
        self.shortages = ShortageReasons(self.free, holders, snapshot.now)

    def explain(self, demand: Demand, refusal: WaitReasonCode | None) -> Reason:
        """``refusal``: why the gang can never run, or ``None``."""
        if refusal is not None:
            return self._never(demand, refusal)
        if place(demand, self.free, self.budget) is not None:
            return self._reserved_resources(demand)
        return self.quarantined.add_to(self._no_room(demand), demand.gang)

    def _no_room(self, demand: Demand) -> Reason:
        headroom = explain_headroom(demand, self.free, self.budget, self.holders)
        if headroom is not None:
            return self._with_start(demand, headroom)
        for group in demand.merged:
            shortage = self.shortages.explain(demand, group)
            if shortage is not None:
                return self._with_start(demand, shortage)
        return self._with_start(demand, self._scattered(demand) or self._together(demand))

    # ---- never ----

    def _never(self, demand: Demand, refusal: WaitReasonCode) -> Reason:
        unschedulable = [node for node in self.snapshot.nodes if not node.is_schedulable]
        if unschedulable:
            if self._everywhere is None:
                self._everywhere = EmptyCluster(ClusterIndex(self.snapshot.nodes))
            full_demand = demand_of(demand.gang, self._everywhere.cluster)
            if self._everywhere.refusal(full_demand) is None:
                return _nodes_away(demand, self._everywhere.cluster, full_demand)
        return explain_infeasible(demand, refusal, self.empty)

    # ---- would fit, but would delay a job ahead ----

    def _reserved_resources(self, demand: Demand) -> Reason:
        binding = self._binding(demand)
        if binding is None:  # only if an earlier search gave up and this one did not
            return Reason(WaitReasonCode.NO_ROOM, "was not placed in this round; it is looked at again in the next")
        numbers: dict[str, Any] = {"before": binding.job.job_id, "on": self._node_names(binding)}
        blocking_job = f"job {binding.job.name}, which is before it in the queue"
        on = phrases.shortlist(self._node_names(binding))
        if binding.start_s is None:
            sentence = (
                f"would fit now, but it would delay {blocking_job}: what is free on {on} is kept for that job, and "
                f"when it can start is not known since jobs there state no max_run_time"
            )
            return Reason(WaitReasonCode.RESERVED, f"{sentence}; it starts by itself after that", numbers)
        # Points in time, no durations: a reason that still holds must not read differently with every tick.
        at, phrase = self._moment(binding.start_s)
        sentence = f"would fit now, but it might delay {blocking_job} and is to start on {on} {phrase}"
        if at is not None:
            sentence += "; with a max_run_time that surely ends before that it could run first"
            numbers["until"] = at.isoformat()
        return Reason(WaitReasonCode.RESERVED, sentence, numbers)

    def _binding(self, demand: Demand) -> BackfillReservation | None:
        """The reservation that blocks ``demand``: the first to open among those that it would touch."""
        draft = place(demand, self.free, self.budget)
        for opens_s, view in zip(self.ledger.opens_s, self.ledger.views[1:], strict=True):
            previous_draft = draft
            draft = place(demand, view, self.budget)
            if draft is None:
                return next(
                    (
                        reservation
                        for reservation in self.ledger.backfill_reservations
                        if reservation.opens_s == opens_s
                        and (
                            previous_draft is None
                            or not reservation.backfillable.keys().isdisjoint(previous_draft.left)
                        )
                    ),
                    None,
                )
        return None

    def _moment(self, in_s: float) -> tuple[datetime | None, str]:
        """The latest time by the stated ends, and its phrase; no time where these have passed and it may be any moment.

        Jobs usually end before, so the expected start is often sooner.
        """
        if in_s <= 0:
            return None, "at any moment"
        at = self.snapshot.now + timedelta(seconds=in_s)
        return at, f"by {phrases.about(at, self.snapshot.now)}"

    def _node_names(self, reservation: BackfillReservation) -> list[str]:
        return [self.cluster.nodes[number].id for number in sorted(reservation.backfillable)]

    # ---- no room ----

    def _together(self, demand: Demand) -> Reason:
        """Every group fits alone, the gang does not."""
        gang, size = demand.gang, demand.gang.size
        numbers: dict[str, Any] = {"replicas": size}
        if gang.topology_required and gang.topology is not None:
            level = gang.topology
            domain = best_domain(demand, self.free, level)
            numbers |= {"level": level, "domain": domain[0], "fits_in_domain": domain[1]}
            group = demand.merged[0]
            roomiest = f"; {domain[0]} has room for {domain[1]} of its {members(group)}" if domain[0] else ""
            return Reason(
                WaitReasonCode.TOPOLOGY,
                f"needs room for all {size} replicas inside one {level}{roomiest}; enough is free only over several. "
                f"Without `required` in its topology it would not wait for that",
                numbers,
            )
        roles = phrases.all_of([members(group) for group in demand.merged])
        return Reason(
            WaitReasonCode.NO_ROOM,
            f"needs room for {roles} at the same time; there is room for each of these alone, but not for all together",
            numbers,
        )

    def _scattered(self, demand: Demand) -> Reason | None:
        """Whether it would fit now without the placement rules of its parameter servers."""
        gang = demand.gang
        if not demand.is_scattered:
            return None
        anywhere = demand_of(replace(gang, servers=None, spread_servers=False), self.cluster)
        anywhere = replace(anywhere, respects_headroom=demand.respects_headroom)
        if place(anywhere, self.free, self.budget) is None:
            return None
        rules = [
            *(["on nodes without any other of its replicas (`placement: apart`)"] if gang.servers == "apart" else []),
            *(["no two of them on one node (`spread: true`)"] if gang.spread_servers else []),
        ]
        return Reason(
            WaitReasonCode.NO_ROOM,
            f"needs its parameter servers {phrases.all_of(rules)}; there is room for all its {gang.size} replicas "
            "now, but not so. Without that it could start now",
            {"replicas": gang.size, "placement": gang.servers or "beside", "spread": gang.spread_servers},
        )

    def _with_start(self, demand: Demand, reason: Reason) -> Reason:
        """Adds the expected start of the shape's first job, if it has a reservation."""
        reservation = self._backfill_reservations.get(id(demand))
        if reservation is None or reservation.is_lent:
            return reason  # nothing is promised
        numbers = {**reason.numbers, RESERVED_FOR: reservation.job.job_id, "on": self._node_names(reservation)}
        on = phrases.shortlist(self._node_names(reservation))
        if reservation.start_s is None:
            start = f"what becomes free on {on} {reserved_for(reservation.job.name)}"
            return Reason(reason.code, f"{reason.sentence}; {start}", numbers)
        at, phrase = self._moment(reservation.start_s)
        if at is not None:
            numbers["expected_start"] = at.isoformat()
        start = f"{starts_first(reservation.job.name)} on {on} {phrase}"
        return Reason(reason.code, f"{reason.sentence}; {start}", numbers)


def _nodes_away(demand: Demand, cluster: ClusterIndex, full_demand: Demand) -> Reason:
    """It would fit if cordoned or unready nodes took work."""
    unschedulable = [
        cluster.nodes[number] for number in full_demand.pool.members if not cluster.nodes[number].is_schedulable
    ]
    descriptions = [f"{node.id} {node.why_not or 'takes no new work'}" for node in unschedulable]
    return Reason(
        WaitReasonCode.NO_NODES,
        f"needs {phrases.request(demand.merged[0].request)} {each_member(demand.merged[0])}, and the nodes that "
        f"could give that take no new work: {phrases.shortlist(descriptions)}; it starts by itself when they come back",
        {"nodes": [node.id for node in unschedulable]},
    )
