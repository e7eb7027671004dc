"""Why a shape waits: the binding number first, then which jobs hold it and what to do.

Written once per shape against the final free capacity of the plan, so equal shapes share one reason.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from itertools import islice
from typing import Any

from core.domain.sharing.gpus import WHOLE_GPU
from core.domain.sharing.resources import Gang, ResourceRequest
from core.domain.sharing.wait_phrases import RESERVED_FOR, reserved_for, starts_first
from scheduler.planning import phrases
from scheduler.planning.explain.headroom_messages import explain_headroom
from scheduler.planning.explain.infeasible import explain_infeasible
from scheduler.planning.explain.member_phrases import each_member, members
from scheduler.planning.explain.occupancy import MOST_LOOKED_AT, GpuOccupancy
from scheduler.planning.model import Reason, Snapshot, WaitReasonCode
from scheduler.planning.placement.capacity import Capacity
from scheduler.planning.placement.cluster import ClusterIndex, NodePool
from scheduler.planning.placement.demand import Demand, MemberGroup, demand_of
from scheduler.planning.placement.feasibility import EmptyCluster
from scheduler.planning.placement.gang import best_domain, place
from scheduler.planning.placement.ledger import BackfillReservation, Ledger
from scheduler.planning.placement.search import SearchBudget


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
        nodes = phrases.some_of([f"{node.id} {node.why_not}" for node in usable])
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
        self._hole_phrases: dict[tuple[int, tuple[str, ...], int], tuple[str, dict[str, Any]]] = {}
        self._most_cpu: dict[int, int] = {}
        self._most_memory: dict[int, int] = {}

    def explain(self, demand: Demand, refusal: WaitReasonCode | None) -> Reason:
        """``refusal``: why the gang can never run, or ``None``."""
        if refusal is not None:
            return self._never(demand, refusal)
        if place(demand, self.free, self.budget) is not None:
            return self._held_back(demand)
        return self.quarantined.add_to(self._no_room(demand), demand.gang)

    def _no_room(self, demand: Demand) -> Reason:
        headroom = explain_headroom(demand, self.free, self.budget, self.holders)
        if headroom is not None:
            return self._with_start(demand, headroom)
        for group in demand.merged:
            missing = self._missing(demand, group)
            if missing is not None:
                return self._with_start(demand, missing)
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

    def _held_back(self, demand: Demand) -> Reason:
        binding = self._binding(demand)
        if binding is None:  # only if an earlier search gave up and this one did not
            return Reason(WaitReasonCode.NO_ROOM, "was not placed in this round; it is looked at again in the next")
        numbers: dict[str, Any] = {"before": binding.job.job_id, "on": self._node_names(binding)}
        blocking_job = f"job {binding.job.name}, which is before it in the queue"
        on = phrases.some_of(self._node_names(binding))
        if binding.start_s is None:
            sentence = (
                f"would fit now, but it would delay {blocking_job}: what is free on {on} is kept for that job, and "
                f"when it can start is not known since jobs there state no max_run_time"
            )
            return Reason(WaitReasonCode.RESERVED, f"{sentence}; it starts by itself after that", numbers)
        # Points in time, no durations: a reason that still holds must not read differently with every tick.
        at, phrase = self._moment(binding.start_s)
        sentence = f"would fit now, but it might delay {blocking_job} and is to start on {on} at {phrase}"
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
        """The date and its phrase; no date where the stated ends have passed and it may be any moment."""
        if in_s <= 0:
            return None, "any moment"
        at = self.snapshot.now + timedelta(seconds=in_s)
        return at, phrases.about(at, self.snapshot.now)

    def _node_names(self, reservation: BackfillReservation) -> list[str]:
        return [self.cluster.nodes[number].id for number in sorted(reservation.backfillable)]

    # ---- no room ----

    def _missing(self, demand: Demand, group: MemberGroup) -> Reason | None:
        """Why one group alone finds no room now; ``None`` if it does."""
        request = group.request
        request_numbers = self._request_numbers(group)
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
            return self._short_beside_gpus(demand.pool, group, request_numbers)
        binding = phrases.binding(request, members)
        return Reason(
            WaitReasonCode.NO_ROOM,
            f"needs {phrases.request(request, binding)} on one node {each_member(group)}; there is room for {fits_now} "
            "of them now",
            {**request_numbers, "fits_now": fits_now, "binding": list(binding)},
        )

    def _request_numbers(self, group: MemberGroup) -> dict[str, Any]:
        request = group.request
        numbers: dict[str, Any] = {"role": group.roles[0][0], "replicas": group.count}
        if request.gpu_count:
            numbers |= {"gpus": request.gpu_count, "gpu_models": list(request.gpu_models)}
        elif request.gpu_milli:
            numbers |= {"gpu_milli": request.gpu_milli, "gpu_models": list(request.gpu_models)}
        return numbers | {"cpu_milli": request.cpu_milli, "memory_bytes": request.memory_bytes}

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
            phrase += f"; {blocking.gpus} of {where} {are} held by {blocking.phrase(self.snapshot.now)}"
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
        sentence = f"needs {phrases.wanted_gpus(group.request)} {each_member(group)}; {phrase}"
        on = self.holders.beside_phrase(-first) if largest_part else ""
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
            needs = f"needs {phrases.wanted_cpus(request.cpu_milli)} on one node {each_member(group)}"
            sentence = f"{needs}; the most that is free is {most_free}, on {name}"
            return sentence + self.holders.beside_phrase(number), {
                "most_free_cpu_milli": free.cpu[number],
                "node": name,
            }
        number = self._most_memory[id(pool)]
        name = self.cluster.nodes[number].id
        if free.memory[number] < request.memory_bytes:
            most_free = phrases.memory(free.memory[number])
            needs = f"needs {phrases.wanted_memory(request.memory_bytes)} on one node {each_member(group)}"
            sentence = f"{needs}; the most that is free is {most_free}, on {name}"
            return sentence + self.holders.beside_phrase(number), {
                "most_free_memory_bytes": free.memory[number],
                "node": name,
            }
        return None

    def _short_beside_gpus(self, pool: NodePool, group: MemberGroup, request_numbers: dict[str, Any]) -> Reason:
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
            f"{name} comes nearest with {phrases.all_of(amounts)} free{self.holders.beside_phrase(number)}"
        )
        numbers = {"node": name, "free_cpu_milli": free.cpu[number], "free_memory_bytes": free.memory[number]}
        return Reason(WaitReasonCode.NO_ROOM, sentence, {**request_numbers, **numbers})

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
        if reservation is None:
            return reason
        numbers = {**reason.numbers, RESERVED_FOR: reservation.job.job_id, "on": self._node_names(reservation)}
        on = phrases.some_of(self._node_names(reservation))
        if reservation.start_s is None:
            start = f"what becomes free on {on} {reserved_for(reservation.job.name)}"
            return Reason(reason.code, f"{reason.sentence}; {start}", numbers)
        at, phrase = self._moment(reservation.start_s)
        if at is not None:
            numbers["expected_start"] = at.isoformat()
        start = f"{starts_first(reservation.job.name)} on {on} at {phrase}"
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
        f"could give that take no new work: {phrases.some_of(descriptions)}; it starts by itself when they come back",
        {"nodes": [node.id for node in unschedulable]},
    )
