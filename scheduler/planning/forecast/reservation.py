"""When and where a blocked gang can start: from the stated ends of what runs, else on the nodes nearest to being free.

Two stages, because an end is either stated or unknown:

1. Known ends, in order of time: the first moment at which the gang fits. Binary search is right since what is free
   only grows from end to end. The reservation has a time, and shorter jobs may run before it.
2. If that never suffices: nodes are cleared of the jobs with unknown ends too, those first that cost the fewest
   replicas per member gained, until the gang fits. The reservation has no time, so nothing may use the reserved
   amounts meanwhile: on a node where the gang's part is not free yet nobody starts, on another one only beside it.

Where many sets of nodes have a blocked gang each, the gangs behind the first few get a *claim*: stage 2 without a look
at anybody's end, so that it costs next to nothing. Nobody starts on claimed nodes.

Nothing is remembered between two plans, and need not be: stage 2 sorts nodes by a key that only falls while a node is
held (nobody new comes, somebody leaves), so the choice cannot swing for ever, and every end on a held node brings the
start nearer. `docs/decisions/0005-planner-reservation.md` has the argument.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from core.domain.sharing.gpu_models import accepted_models
from core.domain.sharing.resources import ResourceRequest
from scheduler.planning.model import QueuedGang, RunningGang
from scheduler.planning.placement.capacity import NO_SHARED_GPUS, Capacity, FreeAmounts
from scheduler.planning.placement.cluster import ClusterIndex
from scheduler.planning.placement.demand import Demand
from scheduler.planning.placement.devices import give_back
from scheduler.planning.placement.gang import place
from scheduler.planning.placement.ledger import NEVER, Reservation
from scheduler.planning.placement.node_arrays import Ints
from scheduler.planning.placement.partial import PartialPlacement, subtract
from scheduler.planning.placement.search import SearchBudget

_Held = tuple[int, ResourceRequest, str | None, int]  # node, request of one member, GPU model, members
_Result = TypeVar("_Result")
_NOTHING: FreeAmounts = (0, 0, {}, {})


class RunningUsage:
    """What every running gang holds, on the nodes that take work; worked out when first asked."""

    __slots__ = ("_cluster", "_held", "_running")

    def __init__(self, cluster: ClusterIndex, running: Iterable[RunningGang]) -> None:
        self._cluster = cluster
        self._running = running
        self._held: list[tuple[RunningGang, list[_Held]]] | None = None

    def __iter__(self) -> Iterator[tuple[RunningGang, list[_Held]]]:
        if self._held is None:
            self._held = [(gang, node_uses(gang, self._cluster)) for gang in self._running]
        return iter(self._held)


class Timeline:
    """What will be given back and when: by the running gangs, and by those that this plan starts."""

    __slots__ = ("_given_back", "_known", "_members", "_parts", "_unknown", "cluster")

    def __init__(self, cluster: ClusterIndex, holdings: RunningUsage, now: datetime) -> None:
        self.cluster = cluster
        self._known: list[tuple[float, list[_Held]]] = []
        self._given_back: _GivenBack | None = None
        self._unknown: dict[int, int] = {}  # node -> replicas without a known end
        self._members: dict[int, int] = {}  # node -> replicas
        self._parts: dict[tuple[int, str], list[tuple[float, int]]] = {}  # node and model -> end and size of each part
        for gang, held in holdings:
            # An end that has passed is near: the platform is about to stop the job.
            end_s = NEVER if gang.expected_end is None else max(0.0, (gang.expected_end - now).total_seconds())
            self._add(end_s, held)

    def add_start(self, job: QueuedGang, draft: PartialPlacement) -> None:
        self._add(job.max_hold_s, draft.uses())

    def _add(self, end_s: float, held: list[_Held]) -> None:
        for number, request, model, members in held:
            if request.gpu_milli and model is not None:
                self._parts.setdefault((number, model), []).extend([(end_s, request.gpu_milli)] * members)
            self._members[number] = self._members.get(number, 0) + members
            if end_s == NEVER:
                self._unknown[number] = self._unknown.get(number, 0) + members
        if end_s < NEVER:
            self._known.append((end_s, held))
            self._given_back = None

    def reserve(self, job: QueuedGang, demand: Demand, free: Capacity) -> Reservation | None:
        """Where and when ``job`` starts at the earliest; ``None`` if it would not fit even when all is over."""
        times = sorted({end_s for end_s, _ in self._known})

        def fits_by(position: int) -> PartialPlacement | None:
            return place(demand, self._after(free, times[position]), SearchBudget())

        found = _first(len(times), fits_by)
        if found is not None:
            position, draft = found
            return Reservation(job, demand, times[position], _guarded(draft, draft.left))
        order = self._nearest_to_free(demand, self._unknown)

        def fits_on(position: int) -> PartialPlacement | None:
            return place(demand, self._after(free, NEVER, order[: position + 1]), SearchBudget())

        found = _first(len(order), fits_on)
        return None if found is None else Reservation(job, demand, None, _beside_now(found[1], free))

    def claim(self, job: QueuedGang, demand: Demand, empty: Capacity) -> Reservation | None:
        """Nodes that are kept for ``job`` from now on and whole, whoever is to end there and when.

        Args:
            empty: the cluster as if nothing ran.
        """
        order = self._nearest_to_free(demand, self._members)

        def fits_on(position: int) -> PartialPlacement | None:
            return place(replace(demand, pool=self.cluster.pool(order[: position + 1])), empty, SearchBudget())

        found = _first(len(order), fits_on)
        return None if found is None else Reservation(job, demand, None, dict.fromkeys(found[1].left, _NOTHING))

    def _nearest_to_free(self, demand: Demand, replicas: Mapping[int, int]) -> list[int]:
        """Nodes by those of ``replicas`` per member gained when these are gone."""
        pool, whole = demand.pool, self.cluster.whole
        members = whole.members(demand.merged[0].request, demand.merged[0].models, pool.numbers)
        held = np.array([replicas.get(number, 0) for number in pool.numbers.tolist()], dtype=np.float64)
        cost = np.where(members > 0, held / np.maximum(np.minimum(members, demand.merged[0].count), 1), NEVER)
        order: list[int] = pool.numbers[np.lexsort((pool.numbers, cost))].tolist()
        return order

    def _after(self, free: Capacity, end_s: float, cleared: Sequence[int] = ()) -> Capacity:
        """What is free when all known ends up to ``end_s`` have come and the nodes in ``cleared`` are empty."""
        cpu, memory, gpus, shares = free.cpus.copy(), free.memories.copy(), free.gpus.copy(), free.shares.copy()
        back = self._columns()
        has_ended = back.end_s <= end_s
        numbers, size = back.number[has_ended], len(cpu)
        cpu += np.bincount(numbers, weights=back.cpu[has_ended], minlength=size).astype(np.int64)
        memory += np.bincount(numbers, weights=back.memory[has_ended], minlength=size).astype(np.int64)
        for model, at in self.cluster.model_number.items():
            inside = has_ended & (back.model == at)
            if inside.any():
                given = np.bincount(back.number[inside], weights=back.gpus[inside], minlength=size)
                gpus.whole[model] += given.astype(np.int64)
        for (number, model), parts in self._parts.items():
            ending = [part for its_end_s, part in parts if its_end_s <= end_s and its_end_s < NEVER]
            if ending:
                staying = [part for its_end_s, part in parts if its_end_s > end_s or its_end_s == NEVER]
                left, freed = give_back(shares[number].get(model, ()), staying, ending)
                shares[number] = {**shares[number], model: left}
                gpus.whole[model][number] += freed
        # A holder may have given back a part already: a node never has more than all of its own.
        whole = self.cluster.whole
        np.minimum(cpu, np.maximum(whole.cpu, free.cpus), out=cpu)
        np.minimum(memory, np.maximum(whole.memory, free.memories), out=memory)
        for model, column in gpus.whole.items():
            np.minimum(column, np.maximum(whole.gpus[model], free.gpus.whole[model]), out=column)
        if cleared:
            at_once = np.array(cleared, dtype=np.int64)
            cpu[at_once], memory[at_once] = whole.cpu[at_once], whole.memory[at_once]
            for model, column in gpus.whole.items():
                column[at_once] = whole.gpus[model][at_once]
            for number in cleared:
                shares[number] = NO_SHARED_GPUS
        after = Capacity(self.cluster, cpu, memory, gpus, shares)
        # What is spare beside free GPUs alone may shrink when somebody ends.
        after.headroom = None if free.headroom is None else free.headroom.as_if_free
        return after

    def _columns(self) -> _GivenBack:
        """What is given back at known ends, one line per node and job."""
        if self._given_back is None:
            models = self.cluster.model_number
            lines = [
                (
                    number,
                    members * request.cpu_milli,
                    members * request.memory_bytes,
                    -1 if model is None else models.get(model, -1),
                    members * request.gpu_count,
                )
                for _, held in self._known
                for number, request, model, members in held
            ]
            columns = np.array(lines, dtype=np.int64).reshape(len(lines), 5).T
            ends = np.array([end_s for end_s, held in self._known for _ in held], dtype=np.float64)
            self._given_back = _GivenBack(ends, *columns)
        return self._given_back


@dataclass(frozen=True, slots=True)
class _GivenBack:
    end_s: NDArray[np.float64]
    number: Ints
    cpu: Ints
    memory: Ints
    model: Ints
    gpus: Ints


def _beside_now(draft: PartialPlacement, free: Capacity) -> dict[int, FreeAmounts]:
    """What others may take on the nodes of ``draft`` while nobody knows when it starts.

    Where its part is free already, what is free beside that. Elsewhere nothing: whoever came now would only take the
    place of somebody who ends, and the gang would never see the node grow empty.
    """
    after: dict[int, FreeAmounts] = {}
    for number, request, model, members in draft.uses():
        here = after.get(number) or (free.cpu[number], free.memory[number], free.gpus[number], free.shares[number])
        after[number] = subtract(here, request, model, members)
    beside = {
        number: left if min(left[0], left[1], *left[2].values(), 0) >= 0 else _NOTHING for number, left in after.items()
    }
    return _guarded(draft, beside)


def _guarded(draft: PartialPlacement, beside: Mapping[int, FreeAmounts]) -> dict[int, FreeAmounts]:
    """Nobody else gets devices of a model of which the gang is to have parts on that node: a part goes where it fits best,
    which may be the gang's place.
    """
    guarded = dict(beside)
    for number, request, model, _ in draft.uses():
        if request.gpu_milli and model is not None:
            cpu, memory, gpus, shares = guarded[number]
            guarded[number] = (cpu, memory, {**gpus, model: 0}, {**shares, model: ()})
    return guarded


def node_uses(gang: RunningGang, cluster: ClusterIndex) -> list[_Held]:
    """What a running gang holds, on the nodes that take work."""
    requests = {role.role: role.request for role in gang.gang.roles}
    counts: dict[tuple[int, str, str | None], int] = {}
    number_of, told = cluster.number_of, gang.gpu_models
    for position, (role, node) in enumerate(gang.nodes):
        number = number_of.get(node)
        request = requests.get(role)
        if number is None or request is None:
            continue
        model: str | None = None
        if request.uses_gpu:
            model = told[position] if position < len(told) else None
            model = model or _likely_model(request, cluster.models_of[number])
        key = (number, role, model)
        counts[key] = counts.get(key, 0) + 1
    return [(number, requests[role], model, members) for (number, role, model), members in counts.items()]


def _likely_model(request: ResourceRequest, present: Sequence[str]) -> str | None:
    accepted = accepted_models(request.gpu_models, present) if request.gpu_models else present
    return next(iter(accepted), None)


def _first(count: int, ask: Callable[[int], _Result | None]) -> tuple[int, _Result] | None:
    """The smallest position that ``ask`` answers, if all larger ones are answered too."""
    if not count:
        return None
    answer = ask(count - 1)
    if answer is None:
        return None
    low, high = 0, count - 1
    while low < high:
        middle = (low + high) // 2
        nearer = ask(middle)
        if nearer is None:
            low = middle + 1
        else:
            high, answer = middle, nearer
    return high, answer
