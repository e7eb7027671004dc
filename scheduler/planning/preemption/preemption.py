"""Preemption: which gangs are stopped or shrunk so that blocked jobs start, as few as possible, only if it certainly
helps.

Runs once, at the end of the walk through the queue. `docs/planner.md`, "Preemption", describes the rules.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from zlib import crc32

from core.domain.ids import JobId
from core.domain.sharing.policy import Defragment
from scheduler.planning.model import Migration, PreemptCode, QueuedGang, Snapshot
from scheduler.planning.placement.backfill import RunningUsage
from scheduler.planning.placement.cluster import ClusterIndex
from scheduler.planning.placement.demand import Demand, demand_of
from scheduler.planning.placement.eligibility import Eligibility
from scheduler.planning.placement.ledger import Ledger
from scheduler.planning.placement.partial import PartialPlacement
from scheduler.planning.preemption.candidates import PreemptionCandidates
from scheduler.planning.preemption.capacities import HypotheticalCapacities
from scheduler.planning.preemption.decision import DecisionBuilder, PreemptionDecision, clear_closed_nodes
from scheduler.planning.preemption.eviction import Evictable, EvictionWhatIf
from scheduler.planning.preemption.messages import PreemptionMessages
from scheduler.planning.preemption.node_ranking import NodeRanking
from scheduler.planning.preemption.nominations import Nominations
from scheduler.planning.preemption.policy import PreemptionPolicy
from scheduler.planning.preemption.selection import VictimSelection
from scheduler.planning.preemption.shrink_candidates import replicas_to_spare, without_redundant
from scheduler.planning.preemption.victims import VictimSearch, VictimSet
from scheduler.planning.queue.job_classes import JobClass, QueueEntry
from scheduler.planning.queue.shares import Shares

# Further sets of jobs to try when some job of the first set fits nowhere else.
_TRIES: Final = 4


@dataclass(frozen=True, slots=True)
class MigrationSet:
    """``evictables``: the jobs that migrate, ``moves``: their new places, ``draft``: placement of the large gang."""

    evictables: tuple[Evictable, ...]
    moves: tuple[Migration, ...]
    draft: PartialPlacement


def find_migrations(
    job: QueuedGang, demand: Demand, evictables: Sequence[Evictable], what_if: EvictionWhatIf
) -> MigrationSet | None:
    """The cheapest set of migrations found with which ``job`` starts. ``what_if`` is left unchanged.

    Args:
        evictables: whole gangs that may migrate.
    """
    size = job.gang.gpu_count
    smaller = [
        evictable
        for evictable in evictables
        if evictable.gang.gang.gpu_count < size and evictable.gang.priority <= job.priority
    ]
    ranking = NodeRanking(smaller)
    for _ in range(_TRIES):
        choice = VictimSearch(demand, ranking, what_if).choose()
        if choice is None:
            return None
        moves = _elsewhere(job, choice.evictables, choice.draft, what_if)
        if not isinstance(moves, Evictable):
            return MigrationSet(choice.evictables, moves, choice.draft)
        ranking.exclude({moves.gang.job_id})
    return None


def has_enough_gpus(demand: Demand, what_if: EvictionWhatIf) -> bool:
    """Whether the total of free GPUs suffices for the gang: migrations only defragment, they free no GPUs."""
    free = what_if.capacity.gpus
    if not demand.uses_gpus:
        return False
    for group in demand.merged:
        needed = group.request.gpu_count * group.count
        available = sum(free.within(model, demand.pool) for model in group.models)
        if available < needed:
            return False
    return True


def _elsewhere(
    job: QueuedGang, evictables: Sequence[Evictable], draft: PartialPlacement, what_if: EvictionWhatIf
) -> tuple[Migration, ...] | Evictable:
    """New places for all of them next to the gang, or the first job that finds none."""
    room = what_if.copy()
    cluster: ClusterIndex = room.base.cluster
    room.evict(evictables)
    room.claim(draft)
    moves: dict[JobId, Migration] = {}
    for evictable in sorted(evictables, key=lambda evictable: (-evictable.gang.gang.gpu_count, evictable.key)):
        demand = demand_of(evictable.gang.gang, cluster)
        headroom = room.base.headroom
        demand = demand if headroom is None else headroom.bind(demand)
        new_draft = room.fits(demand)
        if new_draft is None:
            return evictable
        room.claim(new_draft)
        moves[evictable.gang.job_id] = Migration(evictable.gang.job_id, job.job_id, new_draft.placements(demand))
    return tuple(moves[evictable.gang.job_id] for evictable in evictables)


# Victim sets searched for in one plan; each costs some 10 ms with 10,000 nodes. Jobs beyond this number are
# considered in the next plan, when the first ones are nominated. All rounds of a plan count together.
MAX_CHOICES: Final = 16
# What may be spent in one plan on classes of claims for which nothing is found, in units of a look at all nodes; a look
# at all running gangs, as rules by shares and turns take, costs more. A class that was refused once costs nothing after
# that.
MAX_SPENT: Final = 512
_LOOK_AT_RUNNING: Final = 8
# Waiting gangs per plan for which migrations are searched for, in order.
MAX_MOVED_FOR: Final = 2


class Preemption:
    """Preemption for the blocked jobs of one pass over the queue.

    Args:
        nominated: nominated jobs for which room is held already, with their placements. hopeless: jobs for which no
        victim is stopped, since other jobs would get the room. over_quota: jobs that wait for a quota of their
        project or user. preemptors: how many jobs have victims already in earlier rounds of the same plan.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        ledger: Ledger,
        running_usage: RunningUsage,
        shares: Shares,
        nominations: Nominations,
        nominated: Mapping[JobId, PartialPlacement],
        hopeless: frozenset[JobId],
        eligibility: Eligibility,
        over_quota: Collection[JobId],
        preemptors: int = 0,
    ) -> None:
        self.snapshot = snapshot
        self.policy = snapshot.policy
        self.nominations = nominations
        self.nominated = nominated
        self.hopeless = hopeless
        self.over_quota = over_quota
        self.preemption_policy = PreemptionPolicy(
            snapshot, nominations.shares_after(shares, nominated), nominations.preemption_policy.overtaking
        )
        self.messages = PreemptionMessages(snapshot)
        self.builder = DecisionBuilder(self.messages, self.preemption_policy)
        self.decision = self.builder.decision
        self.decision.preempts += clear_closed_nodes(snapshot, self.messages)
        self.capacities = HypotheticalCapacities(ledger, self.preemption_policy, nominations.victims, over_quota)
        self.candidates = PreemptionCandidates(
            snapshot,
            running_usage,
            ledger.free.cluster,
            self.preemption_policy,
            shrinking={evictable.gang.job_id for evictable in nominations.victims},
            excluded=self.decision.touched,
        )
        self.selection = VictimSelection(self.candidates, self.capacities, self.preemption_policy, eligibility)
        self._refused: set[tuple[object, ...]] = set()
        self._preemptors = preemptors
        self._spent = 0

    def run(self, blocked: Sequence[QueueEntry], demands: Mapping[JobClass, Demand]) -> PreemptionDecision:
        """Decide for the ``blocked`` jobs, in order; jobs that can never run are not among them. ``demands``: per job
        class.
        """
        for job in [job for _, job, _ in blocked if job.job_id in self.nominated] if self.nominated else ():
            self.decision.reasons[job.job_id] = self.messages.nominated(self.nominations.victims_of(job))
        served = self.nominated.keys() | self.hopeless | self.nominations.preemptors
        waiting = [entry for entry in blocked if entry[1].job_id not in served] if served else blocked
        self._preempt_blocked_jobs(waiting, demands)
        if self.policy.defragment is not Defragment.OFF:
            self._migrate((job, demands[job_class]) for _, job, job_class in waiting)
        return self.decision

    def _preempt_blocked_jobs(self, waiting: Sequence[QueueEntry], demands: Mapping[JobClass, Demand]) -> None:
        """Half of the budget serves the first jobs in order; the other half those behind them, from a different start
        each plan.

        If only the first were served, ten large gangs that no preemption helps would block all others.
        """
        preemptible = [gang for gang in self.snapshot.running if gang.is_preemptible]
        lowest_priority = min((gang.priority for gang in preemptible), default=1 << 30)
        has_growth = self.policy.shrinks and any(replicas_to_spare(gang) for gang in preemptible)
        entitled_classes = {
            job_class
            for job_class in demands
            if has_growth or self.preemption_policy.may_preempt_any(job_class.first, lowest_priority)
        }
        entitled = [(job, demands[job_class]) for _, job, job_class in waiting if job_class in entitled_classes]
        considered = self._preempt_in_order(entitled, MAX_SPENT // 2)
        if considered < len(entitled):
            later = [pair for pair in entitled[considered:] if self._refusal_key(*pair) not in self._refused]
            first = crc32(self.snapshot.now.isoformat().encode()) % max(1, len(later))
            self._preempt_in_order([*later[first:], *later[:first]], MAX_SPENT)

    def _preempt_in_order(self, waiting: Sequence[tuple[QueuedGang, Demand]], budget: int) -> int:
        """Serve jobs until ``budget`` is spent; returns how many were considered."""
        for at, (job, demand) in enumerate(waiting):
            key = self._refusal_key(job, demand)
            if key in self._refused:
                continue
            if self._spent >= budget or self._preemptors >= MAX_CHOICES:
                return at
            rankings = self.candidates.ranking_count
            if job.job_id in self.over_quota:
                victims = self.selection.for_quota(job)
            else:
                victims = self.selection.for_capacity(job, demand)
            if victims is None:
                self._refused.add(key)
                is_by_all = not self.preemption_policy.is_by_priority_only
                self._spent += 1 + _LOOK_AT_RUNNING * is_by_all * (self.candidates.ranking_count - rankings)
            elif victims.evictables:
                self._preemptors += 1
                self._accept(job, victims)
        return len(waiting)

    def _refusal_key(self, job: QueuedGang, demand: Demand) -> tuple[object, ...]:
        """Equal for jobs that may take the same resources by the same rules."""
        quota_holder = (job.project, job.user) if job.job_id in self.over_quota else ()
        has_reservation = self.capacities.has_reservation(job)
        return (
            id(demand),
            has_reservation,
            job.max_hold_s,
            job.is_resumable,
            quota_holder,
            *self.candidates.rights_key(job),
        )

    def _migrate(self, waiting: Iterable[tuple[QueuedGang, Demand]]) -> None:
        """Migrations with which gangs start for which no victim is stopped."""
        tries = 0
        considered: set[int] = set()
        soon_s = self.policy.grace_s + self.policy.restart_cost_s  # a migration is complete then
        for job, demand in waiting:
            if job.job_id in self.over_quota or job.job_id in self.decision.reasons or id(demand) in considered:
                continue
            if self.capacities.has_reservation_within(job, soon_s):
                continue
            considered.add(id(demand))
            what_if = self.capacities.of(job)
            if not has_enough_gpus(demand, what_if):
                continue
            if tries >= MAX_MOVED_FOR:
                return
            tries += 1
            migrations = find_migrations(job, demand, self.candidates.gangs, what_if)
            if migrations is None:
                continue
            self.decision.moves += migrations.moves
            if self.policy.defragment is Defragment.APPLY:
                self._accept(job, VictimSet(migrations.evictables, migrations.draft), PreemptCode.MOVE)
            return  # one at a time: the migration targets are no longer free

    def _accept(self, preemptor: QueuedGang, victims: VictimSet, code: PreemptCode | None = None) -> None:
        self.builder.accept(preemptor, victims, code)
        self.capacities.accept(without_redundant(victims.evictables), victims.draft)
        self.candidates.exclude(evictable.gang.job_id for evictable in victims.evictables)
