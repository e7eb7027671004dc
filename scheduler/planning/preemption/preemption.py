"""Preemption: which gangs are stopped or shrunk so that blocked jobs start, as few as possible, only if it certainly
helps.

Runs once, at the end of the walk through the queue. `docs/planner.md`, "Preemption", describes the rules.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final
from zlib import crc32

from core.domain.ids import JobId
from core.domain.sharing.policy import Defragment, QueueOrder
from scheduler.planning.model import Migration, Preempt, PreemptCode, QueuedGang, Reason, Shrink, Snapshot
from scheduler.planning.placement.backfill import RunningUsage
from scheduler.planning.placement.cluster import ClusterIndex
from scheduler.planning.placement.demand import Demand
from scheduler.planning.placement.eligibility import Eligibility
from scheduler.planning.placement.ledger import Ledger
from scheduler.planning.placement.partial import PartialPlacement
from scheduler.planning.preemption import shrink_candidates
from scheduler.planning.preemption.eviction import Evictable, EvictionWhatIf
from scheduler.planning.preemption.messages import PreemptionMessages
from scheduler.planning.preemption.migration import find_migrations, has_enough_gpus
from scheduler.planning.preemption.node_ranking import NodeRanking
from scheduler.planning.preemption.nominations import Nominations
from scheduler.planning.preemption.policy import PreemptionPolicy
from scheduler.planning.preemption.shrink_candidates import replicas_to_spare
from scheduler.planning.preemption.victims import VictimSearch, VictimSet
from scheduler.planning.preemption.within_quota import QuotaPreemption
from scheduler.planning.queue.job_classes import JobClass, QueueEntry
from scheduler.planning.queue.shares import Shares

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


class Preemption:
    """The state of one victim search.

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
        self.ledger = ledger
        self.cluster: ClusterIndex = ledger.free.cluster
        self.preemption_policy = PreemptionPolicy(snapshot, shares)
        self.nominations = nominations
        self.nominated = nominated
        self.hopeless = hopeless
        self.eligibility = eligibility
        self.over_quota = over_quota
        self.messages = PreemptionMessages(snapshot)
        self.decision = PreemptionDecision()
        self._running_usage = running_usage
        self._all: list[Evictable] | None = None
        self._more: list[Evictable] = []
        self._rankings: dict[tuple[object, ...], NodeRanking] = {}
        self._gone: set[JobId] = set()
        self._accepted: list[tuple[Sequence[Evictable], PartialPlacement]] = []
        self._what_ifs: dict[tuple[int, frozenset[int]], EvictionWhatIf] = {}
        self._refused: set[tuple[object, ...]] = set()
        self._choices = preemptors
        self._spent = 0
        self._own = {reservation.job.job_id for reservation in ledger.backfill_reservations}

    def run(self, blocked: Sequence[QueueEntry], demands: Mapping[JobClass, Demand]) -> PreemptionDecision:
        """Decide for the ``blocked`` jobs, in order; jobs that can never run are not among them. ``demands``: per job
        class.
        """
        self._begin_bookings()
        self._drain()
        for job in [job for _, job, _ in blocked if job.job_id in self.nominated] if self.nominated else ():
            self.decision.reasons[job.job_id] = self.messages.promised(self.nominations.victims_of(job))
        self.preemption_policy = PreemptionPolicy(self.snapshot, self._shares_at_last())
        served = self.nominated.keys() | self.hopeless | self.nominations.preemptors
        waiting = [entry for entry in blocked if entry[1].job_id not in served] if served else blocked
        self._preempt_blocked_jobs(waiting, demands)
        if self.policy.defragment is not Defragment.OFF:
            self._move((job, demands[job_class]) for _, job, job_class in waiting if job.job_id not in self.over_quota)
        return self.decision

    def _shares_at_last(self) -> Shares:
        """Amounts held once all decisions have taken effect: victims are gone, and nominated jobs are in their places.

        With the present amounts, a project would lose more than it borrowed while its first victim is still stopping.
        """
        shares = self.preemption_policy.shares.copy()  # these decisions have not taken effect yet
        for evictable in self.nominations.victims:
            shares.add(evictable.gang.project, evictable.gang.user, shares.running_amounts(evictable.gang), -1)
        for job_id, draft in self.nominated.items():
            job = self.nominations.jobs[job_id]
            shares.add(job.project, job.user, draft.quota_amounts())
        return shares

    def _preempt_blocked_jobs(self, waiting: Sequence[QueueEntry], demands: Mapping[JobClass, Demand]) -> None:
        """Half of the budget serves the first jobs in order; the other half those behind them, from a different start
        each plan.

        If only the first were served, ten large gangs that no preemption helps would block all others.
        """
        running = [gang for gang in self.snapshot.running if gang.is_preemptible]
        least = min((gang.priority for gang in running), default=1 << 30)
        has_growth = self.policy.shrinks and any(replicas_to_spare(gang) for gang in running)
        job_classes = {
            job_class
            for job_class in demands
            if has_growth or self.preemption_policy.may_preempt_any(job_class.first, least)
        }
        able = [(job, demands[job_class]) for _, job, job_class in waiting if job_class in job_classes]
        done = self._take_in_order(able, MAX_SPENT // 2)
        if done < len(able):
            behind = [pair for pair in able[done:] if self._refusal_key(*pair) not in self._refused]
            first = crc32(self.snapshot.now.isoformat().encode()) % max(1, len(behind))
            self._take_in_order([*behind[first:], *behind[:first]], MAX_SPENT)

    def _take_in_order(self, waiting: Sequence[tuple[QueuedGang, Demand]], most: int) -> int:
        """Serve jobs until ``most`` of the budget is spent; returns how many were considered."""
        for at, (job, demand) in enumerate(waiting):
            key = self._refusal_key(job, demand)
            if key in self._refused:
                continue
            if self._spent >= most or self._choices >= MAX_CHOICES:
                return at
            rankings = len(self._rankings)
            choice = self._free_quota(job) if job.job_id in self.over_quota else self._choose(job, demand)
            if choice is None:
                self._refused.add(key)
                is_by_all = not self.preemption_policy.is_by_priority_only
                self._spent += 1 + _LOOK_AT_RUNNING * is_by_all * (len(self._rankings) - rankings)
            elif choice.evictables:
                self._choices += 1
                self._accept(job, choice)
        return len(waiting)

    def _move(self, waiting: Iterable[tuple[QueuedGang, Demand]]) -> None:
        """Migrations with which gangs start for which no victim is stopped."""
        tried = 0
        considered: set[int] = set()
        for job, demand in waiting:
            if id(demand) in considered or job.job_id in self.decision.reasons or self._starts_soon(job):
                continue
            considered.add(id(demand))
            what_if = self._what_if(job)
            if not has_enough_gpus(demand, what_if):
                continue
            if tried >= MAX_MOVED_FOR:
                return
            tried += 1
            moved = find_migrations(
                job,
                demand,
                [evictable for evictable in self._whole_gangs() if self._is_still_running(evictable)],
                what_if,
            )
            if moved is None:
                continue
            self.decision.moves += moved.moves
            if self.policy.defragment is Defragment.APPLY:
                self._accept(job, VictimSet(moved.evictables, moved.draft), PreemptCode.MOVE)
            return  # one at a time: the migration targets are no longer free

    def _starts_soon(self, job: QueuedGang) -> bool:
        """Whether it has a reservation that begins before a migration would be complete."""
        soon_s = self.policy.grace_s + self.policy.restart_cost_s
        return any(
            reservation.job.job_id == job.job_id and reservation.start_s is not None and reservation.start_s <= soon_s
            for reservation in self.ledger.backfill_reservations
        )

    # ---- evictable units ----

    def _whole_gangs(self) -> list[Evictable]:
        """All gangs that may be stopped."""
        if self._all is None:
            self._list_evictables()
        return self._all or []

    def _surplus_replicas(self) -> list[Evictable]:
        """Every replica of gangs above their minimum."""
        if self._all is None:
            self._list_evictables()
        return self._more

    def _list_evictables(self) -> None:
        self._all = []
        # A gang that is giving up replicas is left alone until they are gone; they are listed as a separate stopping
        # gang.
        busy = {evictable.gang.job_id for evictable in self.nominations.victims}
        restart_s = self.policy.restart_cost_s
        for gang, uses in self._running_usage:
            if gang.job_id in busy or gang.job_id in self._gone or not uses:
                continue
            if self.preemption_policy.may_stop(gang):
                gpus = sum(members * (request.gpu_count + request.gpu_milli / 1000) for _, request, _, members in uses)
                self._all.append(Evictable(gang, tuple(uses), gang.lost_gpu_s + restart_s * (gpus or 1.0)))
            if self.policy.shrinks and gang.is_preemptible and gang.gang.elastic is not None:
                self._more += shrink_candidates.shrinkable_replicas(gang, self.cluster)

    def _refusal_key(self, job: QueuedGang, demand: Demand) -> tuple[object, ...]:
        """Equal for jobs that may take the same resources by the same rules."""
        whose = (job.project, job.user) if job.job_id in self.over_quota else ()
        return (id(demand), job.job_id in self._own, job.max_hold_s, whose, *self._rank_key(job))

    def _rank_key(self, job: QueuedGang) -> tuple[object, ...]:
        """Equal for jobs of one shape with the same rights over every running gang."""
        if self.preemption_policy.is_by_priority_only:
            return (job.priority,)
        turn: tuple[object, ...] = ()
        if self.policy.rotation_s is not None:
            turn = (
                self.preemption_policy.turns.level(job),
                job.estimate,
                self.preemption_policy.turns.rank_among_running(job),
            )
        elif self.policy.time_slice_s is not None:
            is_fifo = self.policy.order is QueueOrder.FIFO
            turn = (self.preemption_policy.turns.level(job), job.estimate, job.queued_at if is_fifo else None)
        return (job.priority, job.project, job.user, job.shape, *turn)

    def _ranked(self, job: QueuedGang, *, with_whole: bool, barred: frozenset[JobId] = frozenset()) -> NodeRanking:
        """The units that ``job`` may preempt, ranked."""
        key: tuple[object, ...] = (with_whole, barred, *self._rank_key(job))
        if not self.preemption_policy.is_by_priority_only:
            key = (*key, len(self._accepted))  # preemption reasons depend on shares
        known = self._rankings.get(key)
        if known is None:
            evictables = [
                p
                for p in self._surplus_replicas()
                if self._is_still_running(p) and self.preemption_policy.may_take_growth(job, p.gang)
            ]
            if with_whole:
                evictables += [
                    evictable
                    for evictable in self._whole_gangs()
                    if evictable.gang.job_id not in barred
                    and self._is_still_running(evictable)
                    and self.preemption_policy.reason_to_preempt(job, evictable.gang)
                ]
            known = self._rankings[key] = NodeRanking(evictables)
        return known

    # ---- one job ----

    def _choose(self, job: QueuedGang, demand: Demand) -> VictimSet | None:
        """The victims for ``job``; empty if what is stopping already suffices."""
        what_if = self._what_if(job)
        soon = what_if.fits(demand)
        if soon is not None:
            what_if.claim(soon)
            self._accepted.append(((), soon))
            return VictimSet((), soon)
        growth = self._ranked(job, with_whole=False)
        if growth.evictables:
            choice = self._within_bounds(job, demand, growth, what_if)
            if choice is not None:
                return choice
        barred: frozenset[JobId] = frozenset()
        while True:
            ranking = self._ranked(job, with_whole=True, barred=barred)
            if not ranking.evictables:
                return None
            choice = self._within_bounds(job, demand, ranking, what_if)
            if choice is None:
                return None
            wrong = self._first_without_right(job, choice)
            if wrong is None:
                return choice
            barred |= {wrong}

    def _free_quota(self, job: QueuedGang) -> VictimSet | None:
        """Victims of its own project for a job that is over its quota, and further victims for its room."""
        what_if = self._what_if(job)
        quota_preemption = QuotaPreemption(job, self.eligibility, self.preemption_policy, what_if)
        taken = quota_preemption.victims_to_fit(
            [
                p
                for p in self._surplus_replicas()
                if self._is_still_running(p) and self.preemption_policy.may_take_growth(job, p.gang)
            ]
            + [
                p
                for p in self._whole_gangs()
                if self._is_still_running(p)
                and self.preemption_policy.reason_to_preempt(job, p.gang) is PreemptCode.PRIORITY
            ]
        )
        if taken is None:
            return None
        evictables, demand = taken
        if quota_preemption.place_without(evictables) is None:
            keys = {evictable.key for evictable in evictables}
            others = [p for p in self._ranked(job, with_whole=True).alive if p.key not in keys]
            what_if.evict(evictables)
            more = self._within_bounds(job, demand, NodeRanking(others), what_if)
            what_if.restore(evictables)
            if more is None:
                return None
            evictables = [*evictables, *more.evictables]
        choice = quota_preemption.pruned(evictables)
        if choice is None or not self._is_within_bounds(job, choice) or self._first_without_right(job, choice):
            return None
        return choice

    def _is_still_running(self, evictable: Evictable) -> bool:
        return evictable.gang.job_id not in self._gone

    def _within_bounds(
        self, job: QueuedGang, demand: Demand, ranking: NodeRanking, what_if: EvictionWhatIf
    ) -> VictimSet | None:
        """A victim set that leaves every elastic gang its minimum of replicas (or stops it), and every other project
        its guaranteed replicas.
        """
        choice = VictimSearch(demand, ranking, what_if).choose()
        if choice is None or self._is_within_bounds(job, choice):
            return choice
        # Retry with the replicas that may leave in any case.
        removable = shrink_candidates.replicas_that_may_leave(job, ranking.alive, self.preemption_policy)
        choice = VictimSearch(demand, NodeRanking(removable), what_if).choose()
        return choice if choice is not None and self._is_within_bounds(job, choice) else None

    def _is_within_bounds(self, job: QueuedGang, choice: VictimSet) -> bool:
        given = [evictable for mine in shrink_candidates.by_gang(choice.evictables).values() for evictable in mine]
        return not shrink_candidates.shrinks_too_far(given) and len(
            shrink_candidates.unguaranteed_replicas(job, given, self.preemption_policy)
        ) == len(given)

    def _first_without_right(self, job: QueuedGang, choice: VictimSet) -> JobId | None:
        """The first victim whose preemption is no longer justified once the victims before it are gone; ``None``: all
        are.
        """
        shares, done = self.preemption_policy.shares, list[tuple[Evictable, Mapping[str, int]]]()
        wrong: JobId | None = None
        for evictable in shrink_candidates.without_redundant(choice.evictables):
            if evictable.index is None and self.preemption_policy.reason_to_preempt(job, evictable.gang) is None:
                wrong = evictable.gang.job_id
                break
            amounts = (
                self.preemption_policy.exchange.usage_of(evictable.gang)
                if evictable.index is None
                else shrink_candidates.amounts_of(evictable)
            )
            shares.add(evictable.gang.project, evictable.gang.user, amounts, -1)
            done.append((evictable, amounts))
        for evictable, amounts in done:
            shares.add(evictable.gang.project, evictable.gang.user, amounts)
        return wrong

    def _accept(self, job: QueuedGang, choice: VictimSet, by: PreemptCode | None = None) -> None:
        shares = self.preemption_policy.shares
        whole = [evictable for evictable in choice.evictables if evictable.index is None]
        gone = {evictable.gang.job_id for evictable in whole}
        for evictable in whole:
            code = by or self.preemption_policy.reason_to_preempt(job, evictable.gang) or PreemptCode.PRIORITY
            turns = (
                self.preemption_policy.turns.turn_counts(job, evictable.gang)
                if code is PreemptCode.TIME_SLICE
                else None
            )
            sentence = self.messages.stopped(evictable.gang, job, code, turns)
            self.decision.preempts.append(Preempt(evictable.gang.job_id, job.job_id, code, sentence))
            shares.add(
                evictable.gang.project,
                evictable.gang.user,
                self.preemption_policy.exchange.usage_of(evictable.gang),
                -1,
            )
        smaller = shrink_candidates.by_gang(choice.evictables)
        for evictables in smaller.values():
            self._shrink(evictables, job)
            for evictable in evictables:
                shares.add(evictable.gang.project, evictable.gang.user, shrink_candidates.amounts_of(evictable), -1)
        self.decision.reasons[job.job_id] = self.messages.preempting(
            [evictable.gang for evictable in whole], [evictables[0].gang for evictables in smaller.values()]
        )
        shares.add(job.project, job.user, choice.draft.quota_amounts())
        # A gang that was shrunk in this plan is left alone for the rest of it.
        self._gone |= gone | smaller.keys()
        taken = [
            evictable for evictable in choice.evictables if evictable.index is None or evictable.gang.job_id not in gone
        ]
        self._accepted.append((taken, choice.draft))
        for what_if in self._what_ifs.values():
            what_if.evict(taken)
            what_if.claim(choice.draft)
        for ranking in self._rankings.values():
            ranking.drop(self._gone)

    def _shrink(self, evictables: list[Evictable], job: QueuedGang) -> None:
        gang = evictables[0].gang
        role = gang.gang.elastic
        if role is None:
            return
        taken = tuple(sorted(evictable.index for evictable in evictables if evictable.index is not None))
        sentence = self.messages.shrunk(gang, len(taken), job)
        self.decision.shrinks.append(Shrink(gang.job_id, role.role, taken, job.job_id, sentence))

    def _what_if(self, job: QueuedGang) -> EvictionWhatIf:
        """The hypothetical capacity for ``job``: what it may use, plus room that is becoming free and is promised to no
        job.
        """
        ledger = self.ledger
        if job.job_id in self._own or self.preemption_policy.may_reclaim(job) or self._is_passed_over(job):
            level, closed = 0, frozenset[int]()
        else:
            level = ledger.level(job.max_hold_s)
            closed = ledger.reserved_nodes
        what_if = self._what_ifs.get((level, closed))
        if what_if is None:
            what_if = self._what_ifs[level, closed] = EvictionWhatIf(ledger.views[level], closed)
            what_if.evict(self.nominations.victims)
            for evictables, draft in self._accepted:
                what_if.evict(evictables)
                what_if.claim(draft)
        return what_if

    def _is_passed_over(self, job: QueuedGang) -> bool:
        """Whether all reservations belong to jobs of lower priority that were reached first because this job is over
        quota.
        """
        return job.job_id in self.over_quota and all(
            reservation.job.priority < job.priority for reservation in self.ledger.backfill_reservations
        )

    # ---- bookings and drained nodes ----

    def _drain(self) -> None:
        """Stop the preemptible gangs on drained nodes, however briefly they ran; other gangs may run to their end
        there.
        """
        draining = {node.id for node in self.snapshot.nodes if node.is_draining}
        if not draining:
            return
        for gang in sorted(self.snapshot.running, key=lambda gang: gang.job_id):
            nodes = sorted({node for _, node in gang.nodes if node in draining})
            if not nodes or gang.is_stopping or not gang.is_preemptible or gang.job_id in self._gone:
                continue
            self._gone.add(gang.job_id)
            self.decision.preempts.append(Preempt(gang.job_id, None, PreemptCode.DRAIN, self.messages.drained(nodes)))

    def _begin_bookings(self) -> None:
        """Nodes reserved from now on: stop the preemptible gangs of other projects there, however briefly they ran."""
        now = self.snapshot.now
        for booking in sorted(self.snapshot.bookings, key=lambda booking: booking.id):
            if not booking.begins_at <= now < booking.ends_at:
                continue
            for gang in sorted(self.snapshot.running, key=lambda gang: gang.job_id):
                nodes = sorted({node for _, node in gang.nodes if node in booking.nodes})
                is_theirs = gang.project == booking.project
                if is_theirs or not nodes or gang.is_stopping or not gang.is_preemptible or gang.job_id in self._gone:
                    continue
                self._gone.add(gang.job_id)
                sentence = self.messages.booked(booking, nodes)
                self.decision.preempts.append(Preempt(gang.job_id, None, PreemptCode.BOOKING, sentence))
