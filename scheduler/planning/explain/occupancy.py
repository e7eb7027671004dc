"""GPU occupancy: which jobs hold the GPUs of a node, and until when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from scheduler.planning import phrases
from scheduler.planning.model import QueuedGang, RunningGang
from scheduler.planning.placement.backfill import RunningUsage
from scheduler.planning.placement.partial import PartialPlacement

_Part = tuple[RunningGang | QueuedGang, int, str | None]  # gang, number of GPUs, GPU model

# Equal holes that are compared for the one that grows first: with thousands of them one is as good an example as
# another.
MOST_LOOKED_AT: Final = 256


@dataclass(frozen=True, slots=True)
class GpuHolder:
    """What one job holds on one node. ``end``: its stated end, if any; ``likely``: its expected end."""

    job: str
    job_id: str
    end: datetime | None
    gpus: int
    model: str | None
    likely: datetime | None = None

    @property
    def until(self) -> datetime | None:
        """The best known end: the expected or the stated one, whichever is earlier."""
        known_ends = [end for end in (self.end, self.likely) if end is not None]
        return min(known_ends, default=None)

    @property
    def is_guess(self) -> bool:
        return self.likely is not None and self.until == self.likely != self.end

    @property
    def order(self) -> tuple[object, ...]:
        """Sort key: earliest end first, then the largest, so that few names suffice."""
        until = self.until
        return (until is None, until.timestamp() if until else 0.0, -self.gpus, self.job_id)


@dataclass(frozen=True, slots=True)
class BlockingHolders:
    """The holders that must end for a hole to be large enough."""

    holders: tuple[GpuHolder, ...]
    gpus: int

    @property
    def until(self) -> datetime | None:
        return _last([holder.until for holder in self.holders])

    @property
    def surely_until(self) -> datetime | None:
        return _last([holder.end for holder in self.holders])

    @property
    def is_guess(self) -> bool:
        """Whether ``until`` is an estimate instead of a stated end."""
        return any(holder.is_guess for holder in self.holders)

    def phrase(self, now: datetime) -> str:
        """``job sweep-31 until about 14:20 UTC``."""
        names = phrases.jobs([holder.job for holder in self.holders])
        return names + phrases.until(self.until, now, is_single=len(self.holders) == 1, is_likely=self.is_guess)

    def numbers(self) -> dict[str, Any]:
        until, likely = self.surely_until, self.until if self.is_guess else None
        return {
            "held_by": [holder.job_id for holder in self.holders],
            "held_gpus": self.gpus,
            "until": until.isoformat() if until else None,
            **({"likely_until": likely.isoformat()} if likely else {}),
        }


def _last(ends: Sequence[datetime | None]) -> datetime | None:
    known_ends = [end for end in ends if end is not None]
    return max(known_ends) if len(known_ends) == len(ends) else None


class GpuOccupancy:
    """Holders by node, computed on first use."""

    def __init__(
        self, now: datetime, running_usage: RunningUsage, starts: Sequence[tuple[QueuedGang, PartialPlacement]]
    ) -> None:
        self._now = now
        self._running_usage = running_usage
        self._starts = starts
        self._parts: dict[int, list[_Part]] | None = None
        self._by_node: dict[int, list[GpuHolder]] = {}

    def holders_on(self, number: int) -> list[GpuHolder]:
        """Those on one node, who ends first at the front."""
        holders = self._by_node.get(number)
        if holders is None:
            holders = [self._holder(*part) for part in self._all_parts().get(number, ())]
            holders.sort(key=lambda holder: holder.order)
            self._by_node[number] = holders
        return holders

    def _all_parts(self) -> dict[int, list[_Part]]:
        if self._parts is None:
            self._parts = {}
            uses = [*self._running_usage, *((job, draft.uses()) for job, draft in self._starts)]
            for gang, parts in uses:
                for number, request, model, members in parts:
                    self._parts.setdefault(number, []).append((gang, members * request.gpu_count, model))
        return self._parts

    def _holder(self, gang: RunningGang | QueuedGang, gpus: int, model: str | None) -> GpuHolder:
        if isinstance(gang, RunningGang):
            end = gang.expected_end
        else:
            end = None if gang.max_run_time_s is None else self._now + timedelta(seconds=gang.max_hold_s)
        likely = None if gang.estimate is None else phrases.on_grid(gang.estimate.likely_s, self._now)
        return GpuHolder(gang.name, gang.job_id, end, gpus, model, likely)

    def first_to_free(
        self, candidates: Sequence[tuple[int, str]], missing: int
    ) -> tuple[int, str, BlockingHolders | None]:
        """The (node, GPU model) where ``missing`` more GPUs are free first, and the holders that must end there.

        ``None`` in place of the holders where the known ones do not hold that many.
        """
        best: tuple[tuple[object, ...], int, str, BlockingHolders | None] | None = None
        for number, model in candidates[:MOST_LOOKED_AT]:
            blocking = self._to_end(number, model, missing)
            if blocking is None:
                key: tuple[object, ...] = (2, 0.0, 0, number, model)
            else:
                until = blocking.until
                key = (until is None, until.timestamp() if until else 0.0, len(blocking.holders), number, model)
            if best is None or key < best[0]:
                best = (key, number, model, blocking)
        if best is None:
            raise AssertionError("no node has the model")
        return best[1], best[2], best[3]

    def _to_end(self, number: int, model: str, missing: int) -> BlockingHolders | None:
        needed: list[GpuHolder] = []
        freed = 0
        for holder in self.holders_on(number):
            if holder.model == model and holder.gpus:
                needed.append(holder)
                freed += holder.gpus
                if freed >= missing:
                    return BlockingHolders(tuple(needed), freed)
        return None

    def occupants_phrase(self, number: int) -> str:
        """The other jobs on the node, for the end of a sentence: `` next to job a until about 14:20 UTC``."""
        holders = self.holders_on(number)
        if not holders:
            return ""
        names = list(dict.fromkeys(holder.job for holder in holders))
        if len(names) == 1:
            until = phrases.until(holders[0].until, self._now, is_single=True, is_likely=holders[0].is_guess)
            return f" next to {phrases.jobs(names)}{until}"
        first = holders[0]
        if first.until is None:
            return f" next to {phrases.jobs(names)}"
        until = phrases.until(first.until, self._now, is_single=True, is_likely=first.is_guess)
        return f" next to {phrases.jobs(names)} ({first.job}{until})"
