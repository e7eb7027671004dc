"""The gang planner: order the queue, place each gang whole or not at all, reserve room for the first blocked gang.

`docs/planner.md` describes the algorithm. In short: jobs are taken in queue order (priority, fair shares, the
policy's order). A gang that fits into the capacity that its run time may use starts. The first blocked gang that
would fit an empty cluster gets a reservation (backfilling: jobs behind it may only use what the reservation leaves).
Free amounts only shrink while a plan is built, so a shape that was refused once stays refused, and equal shapes are
tried once. Wait reasons are written at the end, against the final free capacity, so that equal shapes have equal
reasons.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, partial

from core.domain.ids import JobId
from scheduler.planning.elastic.growth import Grower, Growth, in_rank_order
from scheduler.planning.explain.wait_reasons import Infeasibility, WaitReasons
from scheduler.planning.fixpoint import plan_to_fixpoint
from scheduler.planning.forecast.reservation import RunningUsage, Timeline
from scheduler.planning.model import Grow, Plan, QueuedGang, Reason, RunningGang, Snapshot, Start
from scheduler.planning.placement.capacity import Capacity
from scheduler.planning.placement.cluster import ClusterIndex
from scheduler.planning.placement.demand import Demand
from scheduler.planning.placement.eligibility import Eligibility
from scheduler.planning.placement.feasibility import EmptyCluster
from scheduler.planning.placement.fragmentation import WorkloadProfile
from scheduler.planning.placement.gang import place
from scheduler.planning.placement.gpu_headroom import GpuHeadroom
from scheduler.planning.placement.ledger import NEVER, REFUSED, Ledger
from scheduler.planning.placement.partial import PartialPlacement
from scheduler.planning.placement.search import SearchBudget
from scheduler.planning.preemption.nominations import Nominations
from scheduler.planning.preemption.policy import PreemptionPolicy
from scheduler.planning.preemption.preemption import Preemption, PreemptionDecision
from scheduler.planning.queue.job_classes import JobClass, JobFamily, QueueEntry
from scheduler.planning.queue.ordering import JobQueue
from scheduler.planning.queue.quota import QuotaExcess
from scheduler.planning.queue.shares import Shares, draft_amounts

# A timed reservation simulates every stated end, which costs a few milliseconds; one is enough per set of competing
# nodes. Gangs beyond this number claim their nodes by a rule that ignores time.
MAX_TIMED_RESERVATIONS = 8
# Job classes for which no reserved room could be borrowed. Searching for more would cost more than it finds.
MAX_LOANS_REFUSED = 16


def plan(snapshot: Snapshot) -> Plan:
    """Decide which jobs start now, in order, and give a reason for every job that waits.

    Pure: nothing is mutated; the same snapshot gives the same plan, in whatever order its parts are listed.
    """
    return plan_to_fixpoint(snapshot, _Planning)


def plan_to_apply(snapshot: Snapshot) -> Plan:
    """The same plan without ``order``, for the control loop, which applies it.

    The order needs a second walk through the queue with hypothetical shares; with a thousand jobs that took a third
    of the planning time.
    """
    return plan_to_fixpoint(snapshot, partial(_Planning, tells_order=False))


@dataclass(frozen=True, slots=True)
class LeftoverCapacity:
    """What one job finds free when it is its turn: what it may use of that, whatever it is kept for."""

    cluster: ClusterIndex
    free: Capacity


def plan_with_leftover(snapshot: Snapshot, job_id: JobId) -> tuple[Plan, LeftoverCapacity | None]:
    """The plan, and what it leaves to a job that waits, when it comes to it; ``None`` if its quota
    leaves it nothing.
    """
    planning = _Planning(snapshot, watched=job_id)
    made = planning.build_plan()
    return replace(made, waits={**planning.reasons(), **made.waits}), planning.turn


class _Planning:
    """The state of one call of :func:`plan`. What is remembered of a shape is remembered per key
    (:mod:`.eligibility`).
    """

    def __init__(self, snapshot: Snapshot, watched: JobId | None = None, *, tells_order: bool = True) -> None:
        self.snapshot = snapshot
        self.tells_order = tells_order
        self.watched = watched
        self.turn: LeftoverCapacity | None = None
        self.cluster = ClusterIndex(node for node in snapshot.nodes if node.is_schedulable)
        self.empty = EmptyCluster(self.cluster)
        self.free = Capacity.free(self.cluster)
        typical = cache(
            lambda: WorkloadProfile.of_snapshot(
                self.eligibility.without_hopeless(snapshot, self.infeasibility.reason), self.cluster, self._can_ever_run
            )
        )
        self.free.set_workload(typical)
        self.headroom = GpuHeadroom(self.cluster, typical, self.empty)
        self.holdings = RunningUsage(self.cluster, snapshot.running)
        self.shares = Shares(snapshot)
        self.eligibility = Eligibility(snapshot, self.cluster, self.shares)
        self.policy = snapshot.policy
        if self.policy.keeps_for_gpus and self.cluster.gpu_models:
            self.free.headroom = self.empty.headroom = self.headroom
            self.eligibility.apply_headroom = self.headroom.bind
        self.preemption_policy = PreemptionPolicy(snapshot, self.shares)
        self.nominations = Nominations(snapshot, self.holdings, self.preemption_policy)
        self.kept: dict[JobId, PartialPlacement] = {}  # where those will be for whom others are being stopped
        self.held_back: list[tuple[QueuedGang, dict[str, int], dict[str, int]]] = []  # of the limits, for these
        self.infeasibility = Infeasibility(self.empty)
        may_start = None if self.eligibility.is_open else self._may_start
        self.queue = JobQueue(snapshot, self.shares, self._can_ever_run, may_start)
        self.grower = Grower(self.cluster, self.shares, self.eligibility.quotas)
        self.growths: dict[JobId, Growth] = {}
        self.timeline: Timeline | None = None
        self.refused_above_s: dict[str, float] = {}  # key -> jobs that may run longer than this are refused
        self.starts: list[tuple[QueuedGang, PartialPlacement]] = []
        self._waiting: list[QueueEntry] | None = None
        # Of the current round:
        self.ledger = Ledger(self.free)
        self.budget = SearchBudget()
        self.reserved: set[int] = set()  # nodes that a gang with a reservation competes for
        self.unlent: set[str] = set()  # eligibility to which nobody lends
        self.blocked: set[str] = set()  # eligibility that were considered for a reservation

    def build_plan(self, hopeless: frozenset[JobId] = frozenset(), preemptors: int = 0) -> Plan:
        """What this plan does; of its reasons only those of jobs for which others are stopped. May be asked again.

        Args:
            hopeless: nobody is stopped for these.
            preemptors: jobs for which others were stopped before it.
        """
        if self._waiting is None:
            self._waiting = self.walk()
            while self._grow(self._waiting):
                self._waiting = self.walk()  # growing changes shares, and these the order
        taken = self._preempt(self._waiting, hopeless, preemptors)
        order: tuple[JobId, ...] = ()
        if self.tells_order:
            order = (*(job.job_id for job, _ in self.starts), *(job.job_id for job in self.queue.in_order()))
        grows = tuple(grow for grow in self._grown() if grow.job_id not in taken.touched)
        return Plan(
            self._started(),
            taken.reasons,
            grows,
            tuple(taken.preempts),
            tuple(taken.shrinks),
            tuple(taken.moves),
            order,
        )

    def reasons(self) -> dict[JobId, Reason]:
        """Why everybody waits who waits in what this plan last said."""
        return self._reasons(self._waiting or [])

    def walk(self) -> list[QueueEntry]:
        """Start what can start; who still waits, in order."""
        while True:
            waiting, is_settled = self._round()
            if is_settled:
                return waiting

    def _round(self) -> tuple[list[QueueEntry], bool]:
        """One walk through the queue: who still waits, and whether another walk would start nothing.

        A start beside a reservation may shift where the reserved gang is to run, and so set nodes free for others;
        and it changes whose turn it is. The last walk of a plan starts nothing: planning again is that walk once
        more.
        """
        self.ledger = Ledger(self.free)
        self.reserved = set()
        self.blocked = set()
        self.unlent = set()
        if self.budget.ran_out:
            self.refused_above_s.clear()
        else:
            self.refused_above_s = {
                key: above
                for key, above in self.refused_above_s.items()
                if above == REFUSED and not self.eligibility.demands[key].respects_headroom
            }
        self.budget = SearchBudget()
        waiting: list[QueueEntry] = []
        started = len(self.starts)
        withdrawn, are_promised = self.queue.withdrawn, bool(self.nominations.jobs)
        for run in self.queue.walk():
            _, job, job_class = run[0]
            self._keep_promises(job.priority)
            if self.watched is not None:
                for _, one, _ in run:
                    if one.job_id == self.watched:
                        self._watch(one)
            if len(run) > 1 or self.queue.waits(job_class):
                # What was promised to one that was started so is free.
                waiting += [entry for entry in run if entry[1].job_id not in withdrawn] if are_promised else run
            elif job.job_id not in withdrawn and (job.job_id in self.kept or not self._try_start(job, job_class)):
                waiting += run
        self.shares.forget_reserved()
        return waiting, not waiting or len(self.starts) == started

    def _keep_promises(self, priority: int) -> bool:
        """Start those for whom others were stopped, or hold for them what will be free; whether anybody started.

        They come before everybody else of their priority.
        """
        has_started = False
        while (job := self.nominations.pop_due(priority)) is not None:
            key = self.eligibility.key_of(job)
            is_over = isinstance(key, QuotaExcess)
            if isinstance(key, QuotaExcess):
                key = self.eligibility.key_under(job, self.nominations.quotas_after_victims(job, self.shares))
                if isinstance(key, QuotaExcess):
                    continue
            demand = self.eligibility.demand(job, key)
            run_time_s = job.max_hold_s
            if not is_over and self._fits(demand, run_time_s):
                has_started |= self._try_start(job)
                continue
            draft = self.nominations.place_nominated(job, demand, self.ledger)
            if draft is not None:
                self.ledger.start(draft, run_time_s)
                if self.timeline is not None:
                    self.timeline.add_start(job, draft)
                self.kept[job.job_id] = draft
                if not self.eligibility.quotas.is_empty:
                    self._hold_back(job, draft)
        return has_started

    def _fits(self, demand: Demand, run_time_s: float) -> bool:
        return place(demand, self.ledger.views[self.ledger.level(run_time_s)], self.budget) is not None

    def _hold_back(self, job: QueuedGang, draft: PartialPlacement) -> None:
        """Nobody else of its project takes what the limits leave to one whose room is being made."""
        of_project, of_user = self.nominations.quota_to_hold(job, draft, self.shares)
        self.shares.hold(job.project, job.user, of_project, of_user)
        self.held_back.append((job, of_project, of_user))

    def _preempt(self, waiting: list[QueueEntry], hopeless: frozenset[JobId], preemptors: int) -> PreemptionDecision:
        """Who goes so that some of those who wait may start."""
        demands: dict[JobClass, Demand] = {}
        over: set[JobClass] = set()
        found: dict[JobFamily | JobClass, tuple[Demand | None, bool]] = {}
        is_one_sight = self.eligibility.bookings.is_empty  # whatever the length
        for job_class in {job_class: None for _, _, job_class in waiting}:
            key = job_class.job_family if is_one_sight else job_class
            if key not in found:
                found[key] = self._blocked(job_class.first)
            demand, is_over = found[key]
            if demand is not None:
                demands[job_class] = demand
                if is_over:
                    over.add(job_class)
        blocked = [entry for entry in waiting if entry[2] in demands]
        are_over = {job.job_id for _, job, job_class in blocked if job_class in over} if over else set[JobId]()
        shares = self.shares.copy() if self.held_back else self.shares
        for job, of_project, of_user in self.held_back:
            shares.hold(job.project, job.user, of_project, of_user, -1)  # by their places they are counted
        preemption = Preemption(
            self.snapshot,
            self.ledger,
            self.holdings,
            shares,
            self.nominations,
            self.kept,
            hopeless,
            self.eligibility,
            are_over,
            preemptors,
        )
        return preemption.run(blocked, demands)

    def _blocked(self, job: QueuedGang) -> tuple[Demand | None, bool]:
        """What it asks for, if others' places could be any use to it; whether it waits for what it may have at once."""
        key = self.eligibility.key_of(job)
        if isinstance(key, QuotaExcess):
            if key.is_never or not self._can_ever_run(job):
                return None, True
            return self.eligibility.demand(job, job.shape), True
        demand = self.eligibility.demand(job, key)
        return (demand if self.infeasibility.reason(key, demand) is None else None), False

    def _watch(self, job: QueuedGang) -> None:
        key = self.eligibility.key_of(job)
        if isinstance(key, QuotaExcess):
            self.turn = None
            return
        level = self.ledger.level(job.max_hold_s)
        free = self.ledger.views[level].copy()
        narrow = self.eligibility.filter_of(key)
        for number in () if narrow is None else narrow.hidden:
            free.put(number, 0, 0, {}, {})
        self.turn = LeftoverCapacity(self.cluster, free)

    def _can_ever_run(self, job: QueuedGang) -> bool:
        return self.infeasibility.reason(job.shape, self.eligibility.demand(job, job.shape)) is None

    def _may_start(self, job: QueuedGang) -> bool:
        """Whether quotas and bookings leave it anything on which it could run."""
        key = self.eligibility.key_of(job)
        return (
            not isinstance(key, QuotaExcess)
            and self.infeasibility.reason(key, self.eligibility.demand(job, key)) is None
        )

    def _try_start(self, job: QueuedGang, job_class: JobClass | None = None) -> bool:
        """``job_class``: of the queue, which is told if there is nothing for all of them."""
        key = self.eligibility.key_of(job)
        # What is booked depends on how long a job runs, what it may have by its limits does not.
        is_one_sight = self.eligibility.bookings.is_empty
        if isinstance(key, QuotaExcess):
            if job_class is not None:
                self.queue.refuse(job_class, REFUSED)
            return False  # it waits for its quota and for nothing else: no room is kept for it
        run_time_s = job.max_hold_s
        above_s = self.refused_above_s.get(key)
        if above_s is not None and run_time_s > above_s:
            if key not in self.blocked:
                self._reserve_for(job, key)
            if above_s != REFUSED and self._borrow(job, key):
                return True
            if job_class is not None and (above_s == REFUSED or not self._may_borrow(key)):
                self.queue.refuse(job_class, above_s if is_one_sight else None)
            return False
        level = self.ledger.level(run_time_s)
        draft = place(self.eligibility.demand(job, key), self.ledger.views[level], self.budget)
        if draft is None:
            self.refused_above_s[key] = self.ledger.floor_s(level)
            self._reserve_for(job, key)
            return level > 0 and self._borrow(job, key)
        self._start(job, draft, run_time_s)
        return True

    def _may_borrow(self, key: str) -> bool:
        """No, if it is known that nobody lends to it."""
        is_refused = key in self.unlent or len(self.unlent) >= MAX_LOANS_REFUSED
        return self.policy.takes_turns and not is_refused

    def _borrow(self, job: QueuedGang, key: str) -> bool:
        """Start it in room that is held for others, if each of these may take it back when the rest of theirs is free.

        Without that the room of a large gang would stand idle until the last of it is free, though whoever is there
        then has to give it back after the time that is guaranteed to each.
        """
        if not self._may_borrow(key):
            return False
        lenders = [
            one for one in self.ledger.reservations if one.start_s is None and self.preemption_policy.may_lend(one.job, job)
        ]
        if not lenders:
            return False
        draft = place(self.eligibility.demand(job, key), self.ledger.free, self.budget)
        if draft is None or not self.ledger.holders(draft) <= {one.job.job_id for one in lenders}:
            self.unlent.add(key)
            return False
        self._start(job, draft, REFUSED)
        return True

    def _start(self, job: QueuedGang, draft: PartialPlacement, run_time_s: float) -> None:
        self.ledger.start(draft, run_time_s)
        if self.timeline is not None:
            self.timeline.add_start(job, draft)
        self.starts.append((job, draft))
        self.shares.add(job.project, job.user, draft_amounts(draft))
        self.queue.withdrawn.add(job.job_id)

    def _reserve_for(self, job: QueuedGang, key: str) -> None:
        """Hold room for a gang that is the first to be blocked among those that compete for the same nodes."""
        self.blocked.add(key)
        demand = self.eligibility.demand(job, key)
        place_of = self.headroom.on_cpu_nodes(demand)
        touched = place_of.touched_nodes(self.cluster)
        if not self.reserved.isdisjoint(touched) or self.infeasibility.reason(key, demand) is not None:
            return
        if self.timeline is None:
            self.timeline = Timeline(self.cluster, self.holdings, self.snapshot.now)
            for started, draft in self.starts:
                self.timeline.add_start(started, draft)
            for job_id, draft in self.kept.items():
                self.timeline.add_start(self.nominations.jobs[job_id], draft)
        lasting = self._lasting(job, key, place_of)
        if len(self.ledger.reservations) < MAX_TIMED_RESERVATIONS:
            reservation = self.timeline.reserve(job, lasting, self.free)
        else:
            reservation = self.timeline.claim(job, lasting, self.empty.capacity)
        if reservation is not None:
            reservation = self.headroom.lend(replace(reservation, demand=demand), self.free)
            self.ledger.reserve(reservation)
            self.reserved |= touched
            # Small jobs behind it would raise the share of its own project, and the gang lose its turn by that.
            self.shares.count_reserved(job.project, job.user, self.shares.likely_amounts(job.gang, job.shape))

    def _lasting(self, job: QueuedGang, key: str, demand: Demand) -> Demand:
        """The demand without nodes that will be booked for others when it starts, if it can do without them."""
        later = self.eligibility.key_for_reservation(job, key)
        if later == key:
            return demand
        lasting = self.eligibility.demand(job, later)
        if self.infeasibility.reason(later, lasting) is not None:
            return demand
        there = self.headroom.on_cpu_nodes(lasting)
        # Others may hold the nodes with GPUs, where it is to be on those without.
        is_anywhere = demand.pool is self.eligibility.demand(job, key).pool
        return there if is_anywhere or there.pool is not lasting.pool else demand

    def _grow(self, waiting: list[QueueEntry]) -> bool:
        """Give elastic gangs what nobody who waits could use the place of; whether that was anything."""
        bookings = self.eligibility.bookings
        for job, draft in self.starts:
            role = job.gang.elastic
            if role is not None and job.job_id not in self.growths:
                hidden = bookings.hidden(job.project, job.max_hold_s)
                placements = draft.placements(self.eligibility.demand(job, job.shape))
                self.growths[job.job_id] = Growth.of_start(job, role, placements, hidden)
        if self.snapshot.growing and not any(job.job_id in self.growths for job in self.snapshot.growing):
            running = {gang.job_id: gang for gang in self.snapshot.running}
            for grown in self.snapshot.growing:
                role, runs = grown.gang.elastic, running.get(grown.job_id)
                if role is not None and not (runs is not None and self._must_go(runs)):
                    end = runs.expected_end if runs is not None else None
                    left_s = NEVER if end is None else (end - self.snapshot.now).total_seconds()
                    hidden = bookings.hidden(runs.project if runs is not None else "", left_s)
                    self.growths[grown.job_id] = Growth.of_running(grown, role, runs, hidden)
        if not self.growths:
            return False
        return self.grower.grow(self.growths.values(), self.ledger, self._claimed(waiting))

    def _must_go(self, gang: RunningGang) -> bool:
        """Whether it is on a node that is reserved for another project by now: what it grew would be nobody's."""
        now = self.snapshot.now
        return any(
            one.begins_at <= now < one.ends_at and one.project != gang.project and not one.nodes.isdisjoint(nodes)
            for one in self.snapshot.bookings
            for nodes in [{node for _, node in gang.nodes}]
        )

    def _claimed(self, waiting: list[QueueEntry]) -> frozenset[int]:
        """Nodes that somebody who waits may ever use."""
        demands: dict[str, Demand] = {}
        for job_class in {job_class: None for _, _, job_class in waiting}:
            key = self.eligibility.key_of(job_class.first)
            if not isinstance(key, QuotaExcess) and key not in demands:
                demands[key] = self.eligibility.demand(job_class.first, key)
        return frozenset[int]().union(
            *(
                demand.touched_nodes(self.cluster)
                for key, demand in demands.items()
                if not self.infeasibility.reason(key, demand)
            )
        )

    def _started(self) -> tuple[Start, ...]:
        made = []
        for job, draft in self.starts:
            placements = draft.placements(self.eligibility.demand(job, job.shape))
            growth = self.growths.get(job.job_id)
            more = () if growth is None else growth.added
            made.append(Start(job.job_id, in_rank_order(placements, more, job.gang) if more else placements))
        return tuple(made)

    def _grown(self) -> tuple[Grow, ...]:
        running = sorted(job.job_id for job in self.snapshot.growing)
        return tuple(
            Grow(job_id, tuple(growth.added))
            for job_id in running
            if (growth := self.growths.get(job_id)) is not None and growth.added
        )

    def _reasons(self, waiting: list[QueueEntry]) -> dict[JobId, Reason]:
        reasons = WaitReasons(
            self.snapshot,
            infeasibility=self.infeasibility,
            ledger=self.ledger,
            holdings=self.holdings,
            starts=self.starts,
            eligibility=self.eligibility,
            shares=self.shares,
        )
        return reasons.reasons_for(waiting)
