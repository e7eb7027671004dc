"""Backfill reservations: when and where a blocked gang can start.

The answer comes from stated ends, else from the nodes that are closest to being free.

Two stages, because the end of a job is either stated or unknown:

1. Known ends, in order of time: the first moment at which the gang fits. Binary search is valid because free amounts
   only grow from end to end. The reservation has a start time, and shorter jobs may run before it (backfilling).
2. If that never suffices: nodes are cleared of jobs with unknown ends as well, those first that cost the fewest
   replicas per member gained, until the gang fits. The reservation has no time, so the reserved amounts stay unused
   meanwhile: where the gang's part is not free yet no job starts, elsewhere only next to it.

Where many sets of nodes have a blocked gang each, the gangs behind the first few get a *claim*: stage 2 without any
known ends, which costs next to nothing. No job starts on claimed nodes.

Nothing is remembered between plans, and need not be: stage 2 sorts nodes by a key that only falls while a node is
reserved (no job comes, some job leaves), so the choice cannot oscillate, and every end on a reserved node brings the
start nearer. `docs/decisions/0005-planner-reservation.md` has the argument.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from core.domain.sharing.gpus import WHOLE_GPU, accepted_models
from core.domain.sharing.resources import ResourceRequest
from scheduler.planning.model import QueuedGang, RunningGang
from scheduler.planning.placement.capacity import NO_SHARED_GPUS, Capacity, FreeAmounts
from scheduler.planning.placement.cluster import ClusterIndex, Ints
from scheduler.planning.placement.demand import Demand
from scheduler.planning.placement.gang import place
from scheduler.planning.placement.ledger import NEVER, BackfillReservation
from scheduler.planning.placement.partial import PartialPlacement, subtract
from scheduler.planning.placement.search import SearchBudget

_NodeUse = tuple[int, ResourceRequest, str | None, int]  # node number, request per member, GPU model, member count
_Result = TypeVar("_Result")
_NOTHING: FreeAmounts = (0, 0, {}, {})
# Beyond this many steps each part is assigned to the device with the most unexplained use.
_MOST_STEPS = 2_000


class RunningUsage:
    """What every running gang holds on schedulable nodes; computed on first use."""

    __slots__ = ("_cluster", "_running", "_uses")

    def __init__(self, cluster: ClusterIndex, running: Iterable[RunningGang]) -> None:
        self._cluster = cluster
        self._running = running
        self._uses: list[tuple[RunningGang, list[_NodeUse]]] | None = None

    def __iter__(self) -> Iterator[tuple[RunningGang, list[_NodeUse]]]:
        if self._uses is None:
            self._uses = [(gang, node_uses(gang, self._cluster)) for gang in self._running]
        return iter(self._uses)


class Timeline:
    """What will be freed and when: by running gangs, and by gangs that this plan starts."""

    __slots__ = ("_freed", "_known", "_members", "_parts", "_unknown", "cluster")

    def __init__(self, cluster: ClusterIndex, running_usage: RunningUsage, now: datetime) -> None:
        self.cluster = cluster
        self._known: list[tuple[float, list[_NodeUse]]] = []
        self._freed: _FreedAmounts | None = None
        self._unknown: dict[int, int] = {}  # node -> replicas without a known end
        self._members: dict[int, int] = {}  # node -> replicas
        self._parts: dict[tuple[int, str], list[tuple[float, int]]] = {}  # node and model -> end and size of each part
        for gang, uses in running_usage:
            # An end in the past is imminent: the platform is about to stop the job.
            end_s = NEVER if gang.expected_end is None else max(0.0, (gang.expected_end - now).total_seconds())
            self._add(end_s, uses)

    def add_start(self, job: QueuedGang, draft: PartialPlacement) -> None:
        self._add(job.max_hold_s, draft.uses())

    def _add(self, end_s: float, uses: list[_NodeUse]) -> None:
        for number, request, model, members in uses:
            if request.gpu_milli and model is not None:
                self._parts.setdefault((number, model), []).extend([(end_s, request.gpu_milli)] * members)
            self._members[number] = self._members.get(number, 0) + members
            if end_s == NEVER:
                self._unknown[number] = self._unknown.get(number, 0) + members
        if end_s < NEVER:
            self._known.append((end_s, uses))
            self._freed = None

    def reserve(self, job: QueuedGang, demand: Demand, free: Capacity) -> BackfillReservation | None:
        """The earliest reservation for ``job``; ``None`` if it would not fit even after all ends."""
        times = sorted({end_s for end_s, _ in self._known})

        def fits_by(position: int) -> PartialPlacement | None:
            return place(demand, self._after(free, times[position]), SearchBudget())

        fit = _first(len(times), fits_by)
        if fit is not None:
            position, draft = fit
            return BackfillReservation(job, demand, times[position], _guarded(draft, draft.left))
        order = self._nearest_to_free(demand, self._unknown)

        def fits_on(position: int) -> PartialPlacement | None:
            return place(demand, self._after(free, NEVER, order[: position + 1]), SearchBudget())

        fit = _first(len(order), fits_on)
        return None if fit is None else BackfillReservation(job, demand, None, _left_for_backfill(fit[1], free))

    def claim(self, job: QueuedGang, demand: Demand, empty: Capacity) -> BackfillReservation | None:
        """Reserve whole nodes for ``job`` from now on, whatever runs there and until when.

        Args:
            empty: the capacity of the empty cluster.
        """
        order = self._nearest_to_free(demand, self._members)

        def fits_on(position: int) -> PartialPlacement | None:
            return place(replace(demand, pool=self.cluster.pool(order[: position + 1])), empty, SearchBudget())

        fit = _first(len(order), fits_on)
        return None if fit is None else BackfillReservation(job, demand, None, dict.fromkeys(fit[1].left, _NOTHING))

    def _nearest_to_free(self, demand: Demand, replicas: Mapping[int, int]) -> list[int]:
        """Nodes by the ``replicas`` that must end there per member gained."""
        pool, totals = demand.pool, self.cluster.totals
        members = totals.members(demand.merged[0].request, demand.merged[0].models, pool.numbers)
        replica_counts = np.array([replicas.get(number, 0) for number in pool.numbers.tolist()], dtype=np.float64)
        cost = np.where(members > 0, replica_counts / np.maximum(np.minimum(members, demand.merged[0].count), 1), NEVER)
        order: list[int] = pool.numbers[np.lexsort((pool.numbers, cost))].tolist()
        return order

    def _after(self, free: Capacity, end_s: float, cleared: Sequence[int] = ()) -> Capacity:
        """Free amounts after all known ends up to ``end_s``, with the nodes in ``cleared`` empty."""
        cpu, memory, gpus, shares = free.cpus.copy(), free.memories.copy(), free.gpus.copy(), free.shares.copy()
        returned = self._columns()
        has_ended = returned.end_s <= end_s
        numbers, size = returned.number[has_ended], len(cpu)
        cpu += np.bincount(numbers, weights=returned.cpu[has_ended], minlength=size).astype(np.int64)
        memory += np.bincount(numbers, weights=returned.memory[has_ended], minlength=size).astype(np.int64)
        for model, model_number in self.cluster.model_number.items():
            of_model = has_ended & (returned.model == model_number)
            if of_model.any():
                freed_gpus = np.bincount(returned.number[of_model], weights=returned.gpus[of_model], minlength=size)
                gpus.whole[model] += freed_gpus.astype(np.int64)
        for (number, model), parts in self._parts.items():
            ending = [part for part_end_s, part in parts if part_end_s <= end_s and part_end_s < NEVER]
            if ending:
                staying = [part for part_end_s, part in parts if part_end_s > end_s or part_end_s == NEVER]
                free_parts, freed = give_back(shares[number].get(model, ()), staying, ending)
                shares[number] = {**shares[number], model: free_parts}
                gpus.whole[model][number] += freed
        # Cap at the allocatable amounts: a stopping gang may have returned a part already.
        totals = self.cluster.totals
        np.minimum(cpu, np.maximum(totals.cpu, free.cpus), out=cpu)
        np.minimum(memory, np.maximum(totals.memory, free.memories), out=memory)
        for model, column in gpus.whole.items():
            np.minimum(column, np.maximum(totals.gpus[model], free.gpus.whole[model]), out=column)
        if cleared:
            cleared_nodes = np.array(cleared, dtype=np.int64)
            cpu[cleared_nodes], memory[cleared_nodes] = totals.cpu[cleared_nodes], totals.memory[cleared_nodes]
            for model, column in gpus.whole.items():
                column[cleared_nodes] = totals.gpus[model][cleared_nodes]
            for number in cleared:
                shares[number] = NO_SHARED_GPUS
        after = Capacity(self.cluster, cpu, memory, gpus, shares)
        # The capacity beyond the headroom of free GPUs may shrink when a job ends.
        after.headroom = None if free.headroom is None else free.headroom.as_if_free
        return after

    def _columns(self) -> _FreedAmounts:
        """Amounts freed at known ends, one row per node and job."""
        if self._freed is None:
            models = self.cluster.model_number
            lines = [
                (
                    number,
                    members * request.cpu_milli,
                    members * request.memory_bytes,
                    -1 if model is None else models.get(model, -1),
                    members * request.gpu_count,
                )
                for _, uses in self._known
                for number, request, model, members in uses
            ]
            columns = np.array(lines, dtype=np.int64).reshape(len(lines), 5).T
            ends = np.array([end_s for end_s, uses in self._known for _ in uses], dtype=np.float64)
            self._freed = _FreedAmounts(ends, *columns)
        return self._freed


@dataclass(frozen=True, slots=True)
class _FreedAmounts:
    end_s: NDArray[np.float64]
    number: Ints
    cpu: Ints
    memory: Ints
    model: Ints
    gpus: Ints


def _left_for_backfill(draft: PartialPlacement, free: Capacity) -> dict[int, FreeAmounts]:
    """What other jobs may use on the nodes of ``draft`` while its start is unknown.

    Where its part is free already, the rest. Elsewhere nothing: a new job would only replace one that ends, and the
    node would never become free for the gang.
    """
    after: dict[int, FreeAmounts] = {}
    for number, request, model, members in draft.uses():
        amounts = after.get(number) or (free.cpu[number], free.memory[number], free.gpus[number], free.shares[number])
        after[number] = subtract(amounts, request, model, members)
    backfillable = {
        number: amounts_left if min(amounts_left[0], amounts_left[1], *amounts_left[2].values(), 0) >= 0 else _NOTHING
        for number, amounts_left in after.items()
    }
    return _guarded(draft, backfillable)


def _guarded(draft: PartialPlacement, backfillable: Mapping[int, FreeAmounts]) -> dict[int, FreeAmounts]:
    """``backfillable`` without GPUs of models of which the gang will have parts on the node: best fit could put another
    job's part on the gang's device.
    """
    guarded = dict(backfillable)
    for number, request, model, _ in draft.uses():
        if request.gpu_milli and model is not None:
            cpu, memory, gpus, shares = guarded[number]
            guarded[number] = (cpu, memory, {**gpus, model: 0}, {**shares, model: ()})
    return guarded


def node_uses(gang: RunningGang, cluster: ClusterIndex) -> list[_NodeUse]:
    """What a running gang holds, on schedulable nodes."""
    requests = {role.role: role.request for role in gang.gang.roles}
    counts: dict[tuple[int, str, str | None], int] = {}
    number_of, recorded = cluster.number_of, gang.gpu_models
    for position, (role, node) in enumerate(gang.nodes):
        number = number_of.get(node)
        request = requests.get(role)
        if number is None or request is None:
            continue
        model: str | None = None
        if request.uses_gpu:
            model = recorded[position] if position < len(recorded) else None
            model = model or _likely_model(request, cluster.models_of[number])
        key = (number, role, model)
        counts[key] = counts.get(key, 0) + 1
    return [(number, requests[role], model, members) for (number, role, model), members in counts.items()]


def _likely_model(request: ResourceRequest, models_present: Sequence[str]) -> str | None:
    accepted = accepted_models(request.gpu_models, models_present) if request.gpu_models else models_present
    return next(iter(accepted), None)


def _first(count: int, fits: Callable[[int], _Result | None]) -> tuple[int, _Result] | None:
    """The smallest position for which ``fits`` has a result, if all larger ones have one."""
    if not count:
        return None
    result = fits(count - 1)
    if result is None:
        return None
    low, high = 0, count - 1
    while low < high:
        middle = (low + high) // 2
        nearer = fits(middle)
        if nearer is None:
            low = middle + 1
        else:
            high, result = middle, nearer
    return high, result


def give_back(shares: tuple[int, ...], staying: Sequence[int], ending: Sequence[int]) -> tuple[tuple[int, ...], int]:
    """What is left of the shared devices when the parts ``ending`` are over, and how many devices are whole again.

    The snapshot does not say which part is on which device. Staying and ending parts are assigned so that the use of
    each device is explained. If several assignments do, one is taken: the end of a part may free another device than
    assumed, so this serves forecasts only, and each tick computes it again.
    """
    parts = sorted([(part, True) for part in staying] + [(part, False) for part in ending], reverse=True)
    seats = _exactly([part for part, _ in parts], [WHOLE_GPU - left for left in shares])
    freed, staying_on = list(shares), [False] * len(shares)
    for (part, stays), seat in zip(parts, seats, strict=True):
        if seat is None:
            continue
        if stays:
            staying_on[seat] = True
        else:
            freed[seat] = min(WHOLE_GPU, freed[seat] + part)
    emptied = [device for device, left in enumerate(freed) if left == WHOLE_GPU and not staying_on[device]]
    return tuple(sorted(left for device, left in enumerate(freed) if device not in emptied)), len(emptied)


def _exactly(parts: Sequence[int], used: Sequence[int]) -> list[int | None]:
    """A device for each part (larger parts first), such that all devices are used up if possible."""
    steps = _MOST_STEPS
    left = list(used)
    seats: list[int | None] = []

    def descend(position: int) -> bool:
        nonlocal steps
        steps -= 1
        if position == len(parts):
            return not any(left)
        tried_amounts = set[int]()
        for device, amount in enumerate(left):
            if amount >= parts[position] and amount not in tried_amounts and steps > 0:
                tried_amounts.add(amount)
                left[device] -= parts[position]
                seats.append(device)
                if descend(position + 1):
                    return True
                seats.pop()
                left[device] += parts[position]
        return False

    if descend(0):
        return seats
    left, seats = list(used), []
    for part in parts:
        device = max(range(len(left)), key=lambda position: (left[position], -position), default=None)
        if device is None or left[device] < part:
            seats.append(None)
            continue
        left[device] -= part
        seats.append(device)
    return seats
