"""Preemption inside a project's own quota: victims of the same project for a job that waits for the quota."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from scheduler.planning.model import QueuedGang
from scheduler.planning.placement.demand import Demand
from scheduler.planning.placement.eligibility import Eligibility
from scheduler.planning.placement.partial import PartialPlacement
from scheduler.planning.preemption.eviction import Evictable, EvictionWhatIf
from scheduler.planning.preemption.policy import PreemptionPolicy
from scheduler.planning.preemption.shrink_candidates import amounts_of, replicas_that_may_leave, without_redundant
from scheduler.planning.preemption.victims import VictimSet
from scheduler.planning.queue.quota import QuotaExcess, QuotaLimit, Quotas
from scheduler.planning.queue.shares import amount_in


class QuotaPreemption:
    """Victim search for a job that is over its quota. ``preemption_policy.shares`` and ``what_if`` are restored
    after each call.
    """

    def __init__(
        self, job: QueuedGang, eligibility: Eligibility, preemption_policy: PreemptionPolicy, what_if: EvictionWhatIf
    ) -> None:
        self.job = job
        self.eligibility = eligibility
        self.preemption_policy = preemption_policy
        self.what_if = what_if

    def victims_to_fit(self, evictables: Sequence[Evictable]) -> tuple[list[Evictable], Demand] | None:
        """The cheapest units of its own project whose eviction satisfies all quotas, and the demand that is allowed
        then.

        ``None``: evicting all of them does not suffice, or nothing need be evicted, since enough is being freed
        already.
        """
        own_units = [evictable for evictable in evictables if evictable.gang.project == self.job.project]
        victims: list[Evictable] = []
        key = self._key_without(victims)
        if not isinstance(key, QuotaExcess):
            return None
        candidates = sorted(
            replicas_that_may_leave(self.job, own_units, self.preemption_policy), key=lambda evictable: evictable.order
        )
        while isinstance(key, QuotaExcess):
            limit = key.limit
            evictable = next((evictable for evictable in candidates if self._counts(evictable, limit)), None)
            if evictable is None:
                return None
            candidates.remove(evictable)
            victims = without_redundant([*victims, evictable])
            key = self._key_without(victims)
        return victims, self.eligibility.demand(self.job, key)

    def place_without(self, evictables: Sequence[Evictable]) -> PartialPlacement | None:
        """Placement of the job with ``evictables`` evicted; ``None`` if a quota or the capacity does not suffice."""
        key = self._key_without(evictables)
        if isinstance(key, QuotaExcess):
            return None
        self.what_if.evict(evictables)
        draft = self.what_if.fits(self.eligibility.demand(self.job, key))
        self.what_if.restore(evictables)
        return draft

    def pruned(self, evictables: Sequence[Evictable]) -> VictimSet | None:
        """The subset of ``evictables`` that is necessary for the job to start."""
        draft = self.place_without(evictables)
        if draft is None:
            return None
        remaining = sorted(without_redundant(evictables), key=lambda evictable: evictable.order)
        for evictable in reversed(list(remaining)):
            fewer = [other for other in remaining if other is not evictable]
            smaller_draft = self.place_without(fewer)
            if smaller_draft is not None:
                remaining, draft = fewer, smaller_draft
        return VictimSet(tuple(remaining), draft)

    def _counts(self, evictable: Evictable, limit: QuotaLimit) -> bool:
        if limit.user and evictable.gang.user != limit.user:
            return False
        return amount_in(amounts_of(evictable), limit.key) > 0

    def _key_without(self, evictables: Iterable[Evictable]) -> str | QuotaExcess:
        with self._without(evictables):
            return self.eligibility.key_under(self.job, Quotas(self.preemption_policy.shares))

    @contextmanager
    def _without(self, evictables: Iterable[Evictable]) -> Iterator[None]:
        shares, evictables = self.preemption_policy.shares, without_redundant(evictables)
        for evictable in evictables:
            shares.add(evictable.gang.project, evictable.gang.user, amounts_of(evictable), -1)
        try:
            yield
        finally:
            for evictable in evictables:
                shares.add(evictable.gang.project, evictable.gang.user, amounts_of(evictable))
