"""The decision about victims: which gangs are stopped or shrunk, for which preemptor, and what each job is told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from core.domain.ids import JobId
from scheduler.planning.model import Migration, Preempt, PreemptCode, QueuedGang, Reason, RunningGang, Shrink, Snapshot
from scheduler.planning.preemption.eviction import Evictable
from scheduler.planning.preemption.messages import PreemptionMessages
from scheduler.planning.preemption.policy import PreemptionPolicy
from scheduler.planning.preemption.shrink_candidates import freed_amounts, replicas_by_gang, without_redundant
from scheduler.planning.preemption.victims import VictimSet


@dataclass(slots=True)
class PreemptionDecision:
    """The victims of a plan. ``reasons``: wait reasons of the jobs for which victims are stopped."""

    preempts: list[Preempt] = field(default_factory=list)
    shrinks: list[Shrink] = field(default_factory=list)
    moves: list[Migration] = field(default_factory=list)
    reasons: dict[JobId, Reason] = field(default_factory=dict)

    @property
    def touched(self) -> set[JobId]:
        """Jobs that are stopped or shrunk, and therefore do not grow."""
        return {preempt.job_id for preempt in self.preempts} | {shrink.job_id for shrink in self.shrinks}


class DecisionBuilder:
    """Writes down accepted victim sets; the shares of ``preemption_policy`` follow them."""

    def __init__(self, messages: PreemptionMessages, preemption_policy: PreemptionPolicy) -> None:
        self.messages = messages
        self.preemption_policy = preemption_policy
        self.decision = PreemptionDecision()

    def accept(self, preemptor: QueuedGang, victims: VictimSet, code: PreemptCode | None = None) -> None:
        """Stop and shrink ``victims`` for ``preemptor``. ``code``: the reason, if it is not one of the policy."""
        shares, decision = self.preemption_policy.shares, self.decision
        evictables = without_redundant(victims.evictables)
        whole_gangs = [evictable for evictable in evictables if evictable.index is None]
        shrunk = replicas_by_gang(evictables)
        for evictable in whole_gangs:
            decision.preempts.append(self._preempt(preemptor, evictable.gang, code))
            self._release(evictable)
        for replicas in shrunk.values():
            decision.shrinks += self._shrink(preemptor, replicas)
            for replica in replicas:
                self._release(replica)
        decision.reasons[preemptor.job_id] = self.messages.preempting(
            [evictable.gang for evictable in whole_gangs], [replicas[0].gang for replicas in shrunk.values()]
        )
        shares.add(preemptor.project, preemptor.user, victims.draft.quota_amounts())

    def _release(self, evictable: Evictable) -> None:
        policy, gang = self.preemption_policy, evictable.gang
        policy.shares.add(gang.project, gang.user, freed_amounts(evictable, policy), -1)

    def _preempt(self, preemptor: QueuedGang, victim: RunningGang, code: PreemptCode | None) -> Preempt:
        policy = self.preemption_policy
        code = code or policy.reason_to_preempt(preemptor, victim) or PreemptCode.PRIORITY
        turns = policy.turns.turn_counts(preemptor, victim) if code is PreemptCode.TIME_SLICE else None
        sentence = self.messages.stopped(victim, preemptor, code, turns)
        return Preempt(victim.job_id, preemptor.job_id, code, sentence)

    def _shrink(self, preemptor: QueuedGang, replicas: Sequence[Evictable]) -> list[Shrink]:
        victim = replicas[0].gang
        role = victim.gang.elastic
        if role is None:
            return []
        indices = tuple(sorted(replica.index for replica in replicas if replica.index is not None))
        sentence = self.messages.shrunk(victim, len(indices), preemptor)
        return [Shrink(victim.job_id, role.role, indices, preemptor.job_id, sentence)]


def clear_closed_nodes(snapshot: Snapshot, messages: PreemptionMessages) -> list[Preempt]:
    """Stop the preemptible gangs on nodes that are now reserved for other projects, and on drained nodes.

    However briefly they ran; gangs that are not preemptible may run to their end there.
    """
    preempts: dict[JobId, Preempt] = {}
    running = [gang for gang in snapshot.running if gang.is_preemptible and not gang.is_stopping]
    running.sort(key=lambda gang: gang.job_id)
    for booking in sorted(snapshot.bookings, key=lambda booking: booking.id):
        if not booking.begins_at <= snapshot.now < booking.ends_at:
            continue
        for gang in running:
            nodes = sorted({node for _, node in gang.nodes if node in booking.nodes})
            if nodes and gang.project != booking.project and gang.job_id not in preempts:
                sentence = messages.booked(booking, nodes)
                preempts[gang.job_id] = Preempt(gang.job_id, None, PreemptCode.BOOKING, sentence)
    draining = {node.id for node in snapshot.nodes if node.is_draining}
    for gang in running if draining else ():
        nodes = sorted({node for _, node in gang.nodes if node in draining})
        if nodes and gang.job_id not in preempts:
            preempts[gang.job_id] = Preempt(gang.job_id, None, PreemptCode.DRAIN, messages.drained(nodes))
    return list(preempts.values())
