"""Whom of its own project to stop for a job that waits for what its project, or its user in it, may have at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from scheduler.planning.elastic.shrink_candidates import amounts_of, replicas_that_may_leave, without_redundant
from scheduler.planning.model import QueuedGang
from scheduler.planning.placement.demand import Demand
from scheduler.planning.placement.eligibility import Eligibility
from scheduler.planning.placement.partial import PartialPlacement
from scheduler.planning.preemption.eviction import Evictable, EvictionWhatIf
from scheduler.planning.preemption.policy import PreemptionPolicy
from scheduler.planning.preemption.victims import VictimSet
from scheduler.planning.queue.quota import QuotaExcess, QuotaLimit, Quotas
from scheduler.planning.queue.shares import amount_in


class QuotaPreemption:
    """What limits leave to one job when others are gone. ``rights.shares`` and ``what_if`` are left as they were."""

    def __init__(
        self, job: QueuedGang, eligibility: Eligibility, rights: PreemptionPolicy, what_if: EvictionWhatIf
    ) -> None:
        self.job = job
        self.eligibility = eligibility
        self.rights = rights
        self.what_if = what_if

    def enough_of(self, evictables: Sequence[Evictable]) -> tuple[list[Evictable], Demand] | None:
        """The cheapest of its own project with which no limit holds it back, and what it asks for then.

        ``None``: not even all of them; or nobody need go, as enough is given back already.
        """
        own = [evictable for evictable in evictables if evictable.gang.project == self.job.project]
        taken: list[Evictable] = []
        seen = self._seen(taken)
        if not isinstance(seen, QuotaExcess):
            return None
        left = sorted(replicas_that_may_leave(self.job, own, self.rights), key=lambda evictable: evictable.order)
        while isinstance(seen, QuotaExcess):
            limit = seen.limit
            evictable = next((evictable for evictable in left if self._counts(evictable, limit)), None)
            if evictable is None:
                return None
            left.remove(evictable)
            taken = without_redundant([*taken, evictable])
            seen = self._seen(taken)
        return taken, self.eligibility.demand(self.job, seen)

    def works(self, evictables: Sequence[Evictable]) -> PartialPlacement | None:
        """Where the job would be without all of ``evictables``; ``None``: a limit, or the room, is not enough."""
        seen = self._seen(evictables)
        if isinstance(seen, QuotaExcess):
            return None
        self.what_if.evict(evictables)
        draft = self.what_if.fits(self.eligibility.demand(self.job, seen))
        self.what_if.restore(evictables)
        return draft

    def pruned(self, evictables: Sequence[Evictable]) -> VictimSet | None:
        """Of these, those without whose end it would not start."""
        draft = self.works(evictables)
        if draft is None:
            return None
        kept = sorted(without_redundant(evictables), key=lambda evictable: evictable.order)
        for evictable in reversed(list(kept)):
            fewer = [one for one in kept if one is not evictable]
            found = self.works(fewer)
            if found is not None:
                kept, draft = fewer, found
        return VictimSet(tuple(kept), draft)

    def _counts(self, evictable: Evictable, limit: QuotaLimit) -> bool:
        if limit.user and evictable.gang.user != limit.user:
            return False
        return amount_in(amounts_of(evictable), limit.key) > 0

    def _seen(self, evictables: Iterable[Evictable]) -> str | QuotaExcess:
        with self._without(evictables):
            return self.eligibility.key_under(self.job, Quotas(self.rights.shares))

    @contextmanager
    def _without(self, evictables: Iterable[Evictable]) -> Iterator[None]:
        shares, evictables = self.rights.shares, without_redundant(evictables)
        for evictable in evictables:
            shares.add(evictable.gang.project, evictable.gang.user, amounts_of(evictable), -1)
        try:
            yield
        finally:
            for evictable in evictables:
                shares.add(evictable.gang.project, evictable.gang.user, amounts_of(evictable))
