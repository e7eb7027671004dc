"""Preemption candidates: the evictable units of one plan, and which of them a preemptor may take."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from functools import cached_property

from core.domain.ids import JobId
from scheduler.planning.model import PreemptCode, QueuedGang, RunningGang, Snapshot
from scheduler.planning.placement.backfill import RunningUsage
from scheduler.planning.placement.cluster import ClusterIndex
from scheduler.planning.preemption.eviction import Evictable, NodeUse
from scheduler.planning.preemption.node_ranking import NodeRanking
from scheduler.planning.preemption.policy import PreemptionPolicy
from scheduler.planning.preemption.shrink_candidates import shrinkable_replicas


class PreemptionCandidates:
    """The gangs that may be stopped, and the replicas of gangs above their minimum.

    Args:
        shrinking: gangs that are giving up replicas: they are left alone until these are gone, and listed as a
        separate stopping gang. excluded: gangs that stop for other reasons.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        running_usage: RunningUsage,
        cluster: ClusterIndex,
        preemption_policy: PreemptionPolicy,
        shrinking: Collection[JobId],
        excluded: Collection[JobId],
    ) -> None:
        self.policy = snapshot.policy
        self.cluster = cluster
        self.preemption_policy = preemption_policy
        self._running_usage = running_usage
        self._shrinking = shrinking
        self._excluded = set(excluded)
        self._rankings: dict[tuple[object, ...], NodeRanking] = {}

    @property
    def gangs(self) -> list[Evictable]:
        """All whole gangs that may still be stopped."""
        return [evictable for evictable in self._stoppable_gangs if evictable.gang.job_id not in self._excluded]

    @property
    def ranking_count(self) -> int:
        """How many rankings were computed."""
        return len(self._rankings)

    @cached_property
    def _usage(self) -> list[tuple[RunningGang, list[NodeUse]]]:
        return [(gang, uses) for gang, uses in self._running_usage if uses and gang.job_id not in self._shrinking]

    @cached_property
    def _stoppable_gangs(self) -> list[Evictable]:
        gangs: list[Evictable] = []
        for gang, uses in self._usage:
            if self.preemption_policy.may_stop(gang):
                gpus = sum(members * (request.gpu_count + request.gpu_milli / 1000) for _, request, _, members in uses)
                cost = gang.lost_gpu_s + self.policy.restart_cost_s * (gpus or 1.0)
                gangs.append(Evictable(gang, tuple(uses), cost))
        return gangs

    @cached_property
    def _surplus_replicas(self) -> list[Evictable]:
        if not self.policy.shrinks:
            return []
        elastic = [gang for gang, _ in self._usage if gang.is_preemptible and gang.gang.elastic is not None]
        return [replica for gang in elastic for replica in shrinkable_replicas(gang, self.cluster)]

    def replicas_for(self, preemptor: QueuedGang) -> list[Evictable]:
        """The surplus replicas that ``preemptor`` may take."""
        return [
            replica
            for replica in self._surplus_replicas
            if replica.gang.job_id not in self._excluded
            and self.preemption_policy.may_take_growth(preemptor, replica.gang)
        ]

    def gangs_of_lower_priority(self, preemptor: QueuedGang) -> list[Evictable]:
        """The gangs that ``preemptor`` may stop by its priority alone."""
        reason_to_preempt = self.preemption_policy.reason_to_preempt
        return [gang for gang in self.gangs if reason_to_preempt(preemptor, gang.gang) is PreemptCode.PRIORITY]

    def ranking(
        self, preemptor: QueuedGang, revision: int, *, with_gangs: bool, barred: frozenset[JobId] = frozenset()
    ) -> NodeRanking:
        """The units that ``preemptor`` may take, ranked.

        Args:
            revision: number of victim sets accepted before. with_gangs: whole gangs, too, not replicas alone. barred:
            gangs that must not be stopped.
        """
        key: tuple[object, ...] = (with_gangs, barred, *self.rights_key(preemptor))
        if not self.preemption_policy.is_by_priority_only:
            key = (*key, revision)  # preemption reasons depend on shares
        ranking = self._rankings.get(key)
        if ranking is None:
            evictables = self.replicas_for(preemptor)
            if with_gangs:
                evictables += [
                    self._for_turn(preemptor, gang) if reason is PreemptCode.TIME_SLICE else gang
                    for gang in self.gangs
                    if gang.gang.job_id not in barred
                    and (reason := self.preemption_policy.reason_to_preempt(preemptor, gang.gang))
                ]
            ranking = self._rankings[key] = NodeRanking(evictables)
        return ranking

    def _for_turn(self, preemptor: QueuedGang, gang: Evictable) -> Evictable:
        return replace(gang, cost=self.preemption_policy.turns.cost_of_turn(preemptor, gang.gang, gang.cost))

    def rights_key(self, job: QueuedGang) -> tuple[object, ...]:
        """Equal for jobs of one shape with the same rights over every running gang."""
        if self.preemption_policy.is_by_priority_only:
            return (job.priority,)
        turns = self.preemption_policy.turns
        turn: tuple[object, ...] = ()
        if self.policy.rotation_s is not None:
            turn = (*turns.rights(job), turns.level(job), job.estimate, turns.rank_among_running(job))
        elif self.policy.time_slice_s is not None:
            turn = turns.rights(job)
        return (job.priority, job.project, job.user, job.shape, *turn)

    def exclude(self, victims: Iterable[JobId]) -> None:
        """``victims`` are stopped or shrunk by this plan: they are left alone for the rest of it."""
        self._excluded |= set(victims)
        for ranking in self._rankings.values():
            ranking.exclude(self._excluded)
