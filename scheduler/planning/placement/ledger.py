"""The ledger: free amounts, and the part of them that is reserved for gangs with a backfill reservation.

A job that certainly ends before a reservation starts may use everything that is free (backfilling); any other only
what is left next to the reserved amounts. So there is one *view* of the capacity per moment at which a reservation
opens: a job sees the view in which every reservation that it may run into is held.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass

from core.domain.ids import JobId
from core.domain.sharing.resources import ResourceRequest
from scheduler.planning.model import QueuedGang
from scheduler.planning.placement.capacity import Capacity, FreeAmounts, SharedGpus
from scheduler.planning.placement.demand import Demand
from scheduler.planning.placement.partial import PartialPlacement, subtract

NEVER = float("inf")
# In place of a run time: refused whatever the run time.
REFUSED = -NEVER


@dataclass(frozen=True, slots=True)
class BackfillReservation:
    """Backfill reservation: nodes for a waiting gang from ``start_s`` on (seconds from now; ``None``: unknown).

    ``backfillable``: per reserved node, what other jobs may use meanwhile even if they do not end before the start.
    ``is_lent``: other jobs like it may use all of it.
    """

    job: QueuedGang
    demand: Demand
    start_s: float | None
    backfillable: Mapping[int, FreeAmounts]
    is_lent: bool = False

    @property
    def opens_s(self) -> float:
        """Jobs that end later than this must leave the reserved amounts free."""
        return -1.0 if self.start_s is None else self.start_s


class Ledger:
    """Free amounts and backfill reservations.

    Attributes:
        backfill_reservations: in the order in which they were made. opens_s: the different moments at which they open,
        the unknown one (-1) first. views: ``views[k]`` respects the reservations of the first ``k`` moments.
    """

    __slots__ = ("_backfillable", "_holder", "backfill_reservations", "opens_s", "views")

    def __init__(self, free: Capacity) -> None:
        self.backfill_reservations: list[BackfillReservation] = []
        self.opens_s: list[float] = []
        self.views = [free]
        self._backfillable: dict[int, FreeAmounts] = {}
        self._holder: dict[int, BackfillReservation] = {}

    @property
    def free(self) -> Capacity:
        """Everything that is free now, reserved or not."""
        return self.views[0]

    @property
    def reserved_nodes(self) -> frozenset[int]:
        """Nodes with a backfill reservation."""
        return frozenset(self._holder)

    def holders(self, draft: PartialPlacement) -> set[JobId]:
        """The jobs with a reservation on nodes of ``draft``."""
        return {self._holder[number].job.job_id for number in draft.left if number in self._holder}

    def level(self, run_time_s: float) -> int:
        """The view that a job of this run time may use."""
        return bisect_left(self.opens_s, run_time_s)

    def floor_s(self, level: int) -> float:
        """The longest run time whose level is below ``level``; ``REFUSED`` if there is none."""
        return self.opens_s[level - 1] if level else REFUSED

    def reserve(self, reservation: BackfillReservation) -> None:
        """Add a reservation. Its nodes must not be reserved yet."""
        self.backfill_reservations.append(reservation)
        for number, amounts in reservation.backfillable.items():
            self._backfillable[number] = amounts
            self._holder[number] = reservation
        at = bisect_left(self.opens_s, reservation.opens_s)
        if at == len(self.opens_s) or self.opens_s[at] != reservation.opens_s:
            self.opens_s.insert(at, reservation.opens_s)
            self.views.insert(at + 1, self.views[at].copy(parent=self.free))
        for view in self.views[at + 1 :]:
            for number in reservation.backfillable:
                self._show(view, number, is_reserved=True)

    def start(self, draft: PartialPlacement, run_time_s: float) -> None:
        """Subtract a gang's amounts from all views. Where an amount is not free yet, the free part is subtracted."""
        free = self.free
        for number, request, model, members in draft.uses():
            amounts = (free.cpu[number], free.memory[number], free.gpus[number], free.shares[number])
            free.put(number, *_without_members(amounts, request, model, members))
            holder = self._holder.get(number)
            if holder is not None and run_time_s > holder.opens_s:
                self._backfillable[number] = subtract(self._backfillable[number], request, model, members)
            for opens_s, view in zip(self.opens_s, self.views[1:], strict=True):
                self._show(view, number, is_reserved=holder is not None and holder.opens_s <= opens_s)

    def _show(self, view: Capacity, number: int, *, is_reserved: bool) -> None:
        free = self.free
        if not is_reserved:
            view.put(number, free.cpu[number], free.memory[number], free.gpus[number], free.shares[number])
            return
        cpu, memory, gpus, shares = self._backfillable[number]
        whole_gpus = {model: min(count, gpus.get(model, 0)) for model, count in free.gpus[number].items()}
        parts: SharedGpus = free.shares[number]
        if parts or shares:
            parts = {model: _common_parts(left, shares.get(model, ())) for model, left in parts.items()}
        view.put(number, min(free.cpu[number], cpu), min(free.memory[number], memory), whole_gpus, parts)


def _without_members(amounts: FreeAmounts, request: ResourceRequest, model: str | None, members: int) -> FreeAmounts:
    """``amounts`` without ``members``. A part of a GPU leaves no remainder on a device that is not free."""
    if model is None or not request.gpu_milli:
        return subtract(amounts, request, model, members)
    for _ in range(members):
        cpu, memory, gpus, shares = subtract(amounts, request, model, 1)
        is_opened = gpus.get(model, 0) < amounts[2].get(model, 0)
        amounts = (
            (cpu, memory, amounts[2], amounts[3]) if is_opened and gpus[model] < 0 else (cpu, memory, gpus, shares)
        )
    return amounts


def _common_parts(free_now: tuple[int, ...], backfillable: tuple[int, ...]) -> tuple[int, ...]:
    """What is left on shared devices both now and next to a reservation.

    Nothing where a device is shared only now: it becomes whole, perhaps for the gang, and best fit could put a part
    there.
    """
    return (
        tuple(min(pair) for pair in zip(free_now, backfillable, strict=True))
        if len(free_now) == len(backfillable)
        else ()
    )
