"""Victim selection for one preemptor: sets of which every preemption is justified and every bound is respected."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from core.domain.ids import JobId
from scheduler.planning.model import QueuedGang
from scheduler.planning.placement.demand import Demand
from scheduler.planning.placement.eligibility import Eligibility
from scheduler.planning.placement.partial import PartialPlacement
from scheduler.planning.preemption.candidates import PreemptionCandidates
from scheduler.planning.preemption.capacities import HypotheticalCapacities
from scheduler.planning.preemption.eviction import Evictable, EvictionWhatIf
from scheduler.planning.preemption.node_ranking import NodeRanking
from scheduler.planning.preemption.policy import PreemptionPolicy
from scheduler.planning.preemption.shrink_candidates import (
    amounts_of,
    freed_amounts,
    replicas_by_gang,
    replicas_that_may_leave,
    shrinks_too_far,
    unguaranteed_replicas,
    without_redundant,
)
from scheduler.planning.preemption.victims import VictimSearch, VictimSet
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


class VictimSelection:
    """Selects victims for one preemptor after the other."""

    def __init__(
        self,
        candidates: PreemptionCandidates,
        capacities: HypotheticalCapacities,
        preemption_policy: PreemptionPolicy,
        eligibility: Eligibility,
    ) -> None:
        self.candidates = candidates
        self.capacities = capacities
        self.preemption_policy = preemption_policy
        self.eligibility = eligibility

    def for_capacity(self, preemptor: QueuedGang, demand: Demand) -> VictimSet | None:
        """The victims for ``preemptor``; empty if what is stopping already suffices."""
        what_if = self.capacities.of(preemptor)
        draft = what_if.fits(demand)
        if draft is not None:
            self.capacities.claim_freed(preemptor, draft)
            return VictimSet((), draft)
        replicas = self._ranking(preemptor, with_gangs=False)
        if replicas.evictables:
            victims = self._within_bounds(preemptor, demand, replicas, what_if)
            if victims is not None:
                return victims
        barred: frozenset[JobId] = frozenset()
        while True:
            ranking = self._ranking(preemptor, with_gangs=True, barred=barred)
            if not ranking.evictables:
                return None
            victims = self._within_bounds(preemptor, demand, ranking, what_if)
            if victims is None:
                return None
            unjustified = self._first_unjustified(preemptor, victims)
            if unjustified is None:
                return victims
            barred |= {unjustified}

    def for_quota(self, preemptor: QueuedGang) -> VictimSet | None:
        """Victims of its own project for a job that is over its quota, and further victims for its room."""
        what_if = self.capacities.of(preemptor)
        quota_preemption = QuotaPreemption(preemptor, self.eligibility, self.preemption_policy, what_if)
        fitting = quota_preemption.victims_to_fit(
            self.candidates.replicas_for(preemptor) + self.candidates.gangs_of_lower_priority(preemptor)
        )
        if fitting is None:
            return None
        evictables, demand = fitting
        if quota_preemption.place_without(evictables) is None:
            keys = {evictable.key for evictable in evictables}
            ranking = self._ranking(preemptor, with_gangs=True)
            others = NodeRanking(evictable for evictable in ranking.remaining if evictable.key not in keys)
            what_if.evict(evictables)
            additional = self._within_bounds(preemptor, demand, others, what_if)
            what_if.restore(evictables)
            if additional is None:
                return None
            evictables = [*evictables, *additional.evictables]
        victims = quota_preemption.pruned(evictables)
        if victims is None or not self._is_within_bounds(preemptor, victims):
            return None
        return None if self._first_unjustified(preemptor, victims) else victims

    def _ranking(
        self, preemptor: QueuedGang, *, with_gangs: bool, barred: frozenset[JobId] = frozenset()
    ) -> NodeRanking:
        return self.candidates.ranking(preemptor, self.capacities.revision, with_gangs=with_gangs, barred=barred)

    def _within_bounds(
        self, preemptor: QueuedGang, demand: Demand, ranking: NodeRanking, what_if: EvictionWhatIf
    ) -> VictimSet | None:
        """A victim set that leaves every elastic gang its minimum of replicas (or stops it), and every other project
        its guaranteed replicas.
        """
        victims = VictimSearch(demand, ranking, what_if).choose()
        if victims is None or self._is_within_bounds(preemptor, victims):
            return victims
        # Retry with the replicas that may leave in any case.
        removable = replicas_that_may_leave(preemptor, ranking.remaining, self.preemption_policy)
        victims = VictimSearch(demand, NodeRanking(removable), what_if).choose()
        return victims if victims is not None and self._is_within_bounds(preemptor, victims) else None

    def _is_within_bounds(self, preemptor: QueuedGang, victims: VictimSet) -> bool:
        leaving = [replica for replicas in replicas_by_gang(victims.evictables).values() for replica in replicas]
        return not shrinks_too_far(leaving) and len(
            unguaranteed_replicas(preemptor, leaving, self.preemption_policy)
        ) == len(leaving)

    def _first_unjustified(self, preemptor: QueuedGang, victims: VictimSet) -> JobId | None:
        """The first victim whose preemption is no longer justified once the victims before it are gone; ``None``: all
        are.
        """
        policy = self.preemption_policy
        released: list[tuple[Evictable, Mapping[str, int]]] = []
        unjustified: JobId | None = None
        for evictable in without_redundant(victims.evictables):
            if evictable.index is None and policy.reason_to_preempt(preemptor, evictable.gang) is None:
                unjustified = evictable.gang.job_id
                break
            amounts = freed_amounts(evictable, policy)
            policy.shares.add(evictable.gang.project, evictable.gang.user, amounts, -1)
            released.append((evictable, amounts))
        for evictable, amounts in released:
            policy.shares.add(evictable.gang.project, evictable.gang.user, amounts)
        return unjustified
