"""The gang planner: order the queue, place each gang whole or not at all, hold room for the first that is blocked.

`docs/planner.md` tells how it thinks. In short: jobs are taken in order (priority, then age). A gang that fits into
what its length may use is started. The first that is blocked, though it would fit an empty cluster, gets a
reservation; whoever comes later may only use what that leaves. Free amounts only shrink while a plan is made, so a
shape that was refused once stays refused, and equal shapes are asked once. Reasons are written at the end, against
what is left then, so that equal shapes have equal reasons.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, partial

from core.domain.ids import JobId
from scheduler.planning.elastic.growth import Grower, Growth, with_more
from scheduler.planning.explain.wait_reasons import Reasons, Refusals
from scheduler.planning.fixpoint import settled
from scheduler.planning.forecast.reservation import Holdings, Timeline
from scheduler.planning.model import Grow, Plan, QueuedGang, Reason, RunningGang, Snapshot, Start
from scheduler.planning.placement.capacity import Capacity
from scheduler.planning.placement.cluster import Cluster
from scheduler.planning.placement.demand import Demand
from scheduler.planning.placement.eligibility import Sights
from scheduler.planning.placement.feasibility import EmptyCluster
from scheduler.planning.placement.fragmentation import Typical
from scheduler.planning.placement.gang import place
from scheduler.planning.placement.gpu_headroom import Keeping
from scheduler.planning.placement.ledger import NEVER, REFUSED, Ledger
from scheduler.planning.placement.partial import Draft
from scheduler.planning.placement.search import Budget
from scheduler.planning.preemption.nominations import Promises
from scheduler.planning.preemption.policy import Rights
from scheduler.planning.preemption.preemption import Preempted, Preemption
from scheduler.planning.queue.job_classes import Entry, Family, Kind
from scheduler.planning.queue.ordering import Queue
from scheduler.planning.queue.quota import Excess
from scheduler.planning.queue.shares import Shares, of_draft

# Each looks at every stated end, which costs a few milliseconds; one is enough per set of nodes that compete. Gangs
# beyond these claim their nodes by a rule that looks at no time.
MAX_TIMED_RESERVATIONS = 8
# Kinds of jobs for which no room was found that could be lent. Looking for more would cost more than it finds.
MAX_LOANS_REFUSED = 16


def plan(snapshot: Snapshot) -> Plan:
    """What starts now, in order, and a reason for every job that waits.

    Nothing is mutated; the same snapshot gives the same plan, in whatever order its parts are listed.
    """
    return settled(snapshot, _Planning)


def plan_to_apply(snapshot: Snapshot) -> Plan:
    """The same plan without its ``order``, for who applies it: to walk through the queue once more in other shares, as each of
    a thousand jobs would change them, took a third of a plan.
    """
    return settled(snapshot, partial(_Planning, tells_order=False))


@dataclass(frozen=True, slots=True)
class Turn:
    """What one job finds free when it is its turn: what it may use of that, whatever it is kept for."""

    cluster: Cluster
    free: Capacity


def plan_with_turn(snapshot: Snapshot, job_id: JobId) -> tuple[Plan, Turn | None]:
    """The plan, and what it leaves to a job that waits, when it comes to it; ``None`` if its quota leaves it nothing."""
    planning = _Planning(snapshot, watched=job_id)
    made = planning.said()
    return replace(made, waits={**planning.reasons(), **made.waits}), planning.turn


class _Planning:
    """The state of one call of :func:`plan`. What is remembered of a shape is remembered per sight (:mod:`.sights`)."""

    def __init__(self, snapshot: Snapshot, watched: JobId | None = None, *, tells_order: bool = True) -> None:
        self.snapshot = snapshot
        self.tells_order = tells_order
        self.watched = watched
        self.turn: Turn | None = None
        self.cluster = Cluster(node for node in snapshot.nodes if node.is_schedulable)
        self.empty = EmptyCluster(self.cluster)
        self.free = Capacity.free(self.cluster)
        typical = cache(
            lambda: Typical.of_snapshot(
                self.sights.with_hope(snapshot, self.refusals.of), self.cluster, self._can_ever_run
            )
        )
        self.free.expect(typical)
        self.keeping = Keeping(self.cluster, typical, self.empty)
        self.holdings = Holdings(self.cluster, snapshot.running)
        self.shares = Shares(snapshot)
        self.sights = Sights(snapshot, self.cluster, self.shares)
        self.policy = snapshot.policy
        if self.policy.keeps_for_gpus and self.cluster.gpu_models:
            self.free.keeping = self.empty.keeping = self.keeping
            self.sights.bind = self.keeping.bind
        self.rights = Rights(snapshot, self.shares)
        self.promises = Promises(snapshot, self.holdings, self.rights)
        self.kept: dict[JobId, Draft] = {}  # where those will be for whom others are being stopped
        self.held_back: list[tuple[QueuedGang, dict[str, int], dict[str, int]]] = []  # of the limits, for these
        self.refusals = Refusals(self.empty)
        may_start = None if self.sights.is_open else self._may_start
        self.queue = Queue(snapshot, self.shares, self._can_ever_run, may_start)
        self.grower = Grower(self.cluster, self.shares, self.sights.quotas)
        self.growths: dict[JobId, Growth] = {}
        self.timeline: Timeline | None = None
        self.refused_above_s: dict[str, float] = {}  # sight -> jobs that may run longer than this are refused
        self.starts: list[tuple[QueuedGang, Draft]] = []
        self._waiting: list[Entry] | None = None
        # Of the current round:
        self.ledger = Ledger(self.free)
        self.budget = Budget()
        self.reserved: set[int] = set()  # nodes that a gang with a reservation competes for
        self.unlent: set[str] = set()  # sights to which nobody lends
        self.blocked: set[str] = set()  # sights that were considered for a reservation

    def said(self, vain: frozenset[JobId] = frozenset(), helped: int = 0) -> Plan:
        """What this plan does; of its reasons only those of jobs for which others are stopped. May be asked again.

        Args:
            vain: nobody is stopped for these.
            helped: jobs for which others were stopped before it.
        """
        if self._waiting is None:
            self._waiting = self.walk()
            while self._grow(self._waiting):
                self._waiting = self.walk()  # growing changes shares, and these the order
        taken = self._preempt(self._waiting, vain, helped)
        order: tuple[JobId, ...] = ()
        if self.tells_order:
            order = (*(job.job_id for job, _ in self.starts), *(job.job_id for job in self.queue.in_turn()))
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

    def walk(self) -> list[Entry]:
        """Start what can start; who still waits, in order."""
        while True:
            waiting, is_settled = self._round()
            if is_settled:
                return waiting

    def _round(self) -> tuple[list[Entry], bool]:
        """One walk through the queue: who still waits, and whether another walk would start nothing.

        A start beside a reservation may shift where the reserved gang is to run, and so set nodes free for others; and it
        changes whose turn it is. The last walk of a plan starts nothing: planning again is that walk once more.
        """
        self.ledger = Ledger(self.free)
        self.reserved = set()
        self.blocked = set()
        self.unlent = set()
        if self.budget.ran_out:
            self.refused_above_s.clear()
        else:
            self.refused_above_s = {
                sight: above
                for sight, above in self.refused_above_s.items()
                if above == REFUSED and not self.sights.demands[sight].keeps_off
            }
        self.budget = Budget()
        waiting: list[Entry] = []
        started = len(self.starts)
        withdrawn, are_promised = self.queue.withdrawn, bool(self.promises.jobs)
        for run in self.queue.walk():
            _, job, kind = run[0]
            self._keep_promises(job.priority)
            if self.watched is not None:
                for _, one, _ in run:
                    if one.job_id == self.watched:
                        self._watch(one)
            if len(run) > 1 or self.queue.waits(kind):
                # What was promised to one that was started so is free.
                waiting += [entry for entry in run if entry[1].job_id not in withdrawn] if are_promised else run
            elif job.job_id not in withdrawn and (job.job_id in self.kept or not self._try_start(job, kind)):
                waiting += run
        self.shares.forget_promises()
        return waiting, not waiting or len(self.starts) == started

    def _keep_promises(self, priority: int) -> bool:
        """Start those for whom others were stopped, or hold for them what will be free; whether anybody started.

        They come before everybody else of their priority.
        """
        has_started = False
        while (job := self.promises.next_before(priority)) is not None:
            sight = self.sights.of(job)
            is_over = isinstance(sight, Excess)
            if isinstance(sight, Excess):
                sight = self.sights.by(job, self.promises.quotas_for(job, self.shares))
                if isinstance(sight, Excess):
                    continue
            demand = self.sights.demand(job, sight)
            run_time_s = job.holds_s
            if not is_over and self._fits(demand, run_time_s):
                has_started |= self._try_start(job)
                continue
            draft = self.promises.room_for(job, demand, self.ledger)
            if draft is not None:
                self.ledger.start(draft, run_time_s)
                if self.timeline is not None:
                    self.timeline.add_start(job, draft)
                self.kept[job.job_id] = draft
                if not self.sights.quotas.is_empty:
                    self._hold_back(job, draft)
        return has_started

    def _fits(self, demand: Demand, run_time_s: float) -> bool:
        return place(demand, self.ledger.views[self.ledger.level(run_time_s)], self.budget) is not None

    def _hold_back(self, job: QueuedGang, draft: Draft) -> None:
        """Nobody else of its project takes what the limits leave to one whose room is being made."""
        of_project, of_user = self.promises.held_back(job, draft, self.shares)
        self.shares.hold(job.project, job.user, of_project, of_user)
        self.held_back.append((job, of_project, of_user))

    def _preempt(self, waiting: list[Entry], vain: frozenset[JobId], helped: int) -> Preempted:
        """Who goes so that some of those who wait may start."""
        demands: dict[Kind, Demand] = {}
        over: set[Kind] = set()
        found: dict[Family | Kind, tuple[Demand | None, bool]] = {}
        is_one_sight = self.sights.bookings.is_empty  # whatever the length
        for kind in {kind: None for _, _, kind in waiting}:
            key = kind.family if is_one_sight else kind
            if key not in found:
                found[key] = self._blocked(kind.first)
            demand, is_over = found[key]
            if demand is not None:
                demands[kind] = demand
                if is_over:
                    over.add(kind)
        blocked = [entry for entry in waiting if entry[2] in demands]
        are_over = {job.job_id for _, job, kind in blocked if kind in over} if over else set[JobId]()
        shares = self.shares.copy() if self.held_back else self.shares
        for job, of_project, of_user in self.held_back:
            shares.hold(job.project, job.user, of_project, of_user, -1)  # by their places they are counted
        preemption = Preemption(
            self.snapshot,
            self.ledger,
            self.holdings,
            shares,
            self.promises,
            self.kept,
            vain,
            self.sights,
            are_over,
            helped,
        )
        return preemption.run(blocked, demands)

    def _blocked(self, job: QueuedGang) -> tuple[Demand | None, bool]:
        """What it asks for, if others' places could be any use to it; whether it waits for what it may have at once."""
        sight = self.sights.of(job)
        if isinstance(sight, Excess):
            if sight.is_never or not self._can_ever_run(job):
                return None, True
            return self.sights.demand(job, job.shape), True
        demand = self.sights.demand(job, sight)
        return (demand if self.refusals.of(sight, demand) is None else None), False

    def _watch(self, job: QueuedGang) -> None:
        sight = self.sights.of(job)
        if isinstance(sight, Excess):
            self.turn = None
            return
        level = self.ledger.level(job.holds_s)
        free = self.ledger.views[level].copy()
        narrow = self.sights.narrowed(sight)
        for number in () if narrow is None else narrow.hidden:
            free.put(number, 0, 0, {}, {})
        self.turn = Turn(self.cluster, free)

    def _can_ever_run(self, job: QueuedGang) -> bool:
        return self.refusals.of(job.shape, self.sights.demand(job, job.shape)) is None

    def _may_start(self, job: QueuedGang) -> bool:
        """Whether quotas and bookings leave it anything on which it could run."""
        sight = self.sights.of(job)
        return not isinstance(sight, Excess) and self.refusals.of(sight, self.sights.demand(job, sight)) is None

    def _try_start(self, job: QueuedGang, kind: Kind | None = None) -> bool:
        """``kind``: of the queue, which is told if there is nothing for all of them."""
        sight = self.sights.of(job)
        # What is booked depends on how long a job runs, what it may have by its limits does not.
        is_one_sight = self.sights.bookings.is_empty
        if isinstance(sight, Excess):
            if kind is not None:
                self.queue.refuse(kind, REFUSED)
            return False  # it waits for its quota and for nothing else: no room is kept for it
        run_time_s = job.holds_s
        above_s = self.refused_above_s.get(sight)
        if above_s is not None and run_time_s > above_s:
            if sight not in self.blocked:
                self._reserve_for(job, sight)
            if above_s != REFUSED and self._borrow(job, sight):
                return True
            if kind is not None and (above_s == REFUSED or not self._may_borrow(sight)):
                self.queue.refuse(kind, above_s if is_one_sight else None)
            return False
        level = self.ledger.level(run_time_s)
        draft = place(self.sights.demand(job, sight), self.ledger.views[level], self.budget)
        if draft is None:
            self.refused_above_s[sight] = self.ledger.floor_s(level)
            self._reserve_for(job, sight)
            return level > 0 and self._borrow(job, sight)
        self._start(job, draft, run_time_s)
        return True

    def _may_borrow(self, sight: str) -> bool:
        """No, if it is known that nobody lends to it."""
        is_refused = sight in self.unlent or len(self.unlent) >= MAX_LOANS_REFUSED
        return self.policy.takes_turns and not is_refused

    def _borrow(self, job: QueuedGang, sight: str) -> bool:
        """Start it in room that is held for others, if each of these may take it back when the rest of theirs is free.

        Without that the room of a large gang would stand idle until the last of it is free, though whoever is there then
        has to give it back after the time that is guaranteed to each.
        """
        if not self._may_borrow(sight):
            return False
        lenders = [
            one for one in self.ledger.reservations if one.start_s is None and self.rights.may_lend(one.job, job)
        ]
        if not lenders:
            return False
        draft = place(self.sights.demand(job, sight), self.ledger.free, self.budget)
        if draft is None or not self.ledger.holders(draft) <= {one.job.job_id for one in lenders}:
            self.unlent.add(sight)
            return False
        self._start(job, draft, REFUSED)
        return True

    def _start(self, job: QueuedGang, draft: Draft, run_time_s: float) -> None:
        self.ledger.start(draft, run_time_s)
        if self.timeline is not None:
            self.timeline.add_start(job, draft)
        self.starts.append((job, draft))
        self.shares.add(job.project, job.user, of_draft(draft))
        self.queue.withdrawn.add(job.job_id)

    def _reserve_for(self, job: QueuedGang, sight: str) -> None:
        """Hold room for a gang that is the first to be blocked among those that compete for the same nodes."""
        self.blocked.add(sight)
        demand = self.sights.demand(job, sight)
        place_of = self.keeping.refuge(demand)
        touched = place_of.touched_nodes(self.cluster)
        if not self.reserved.isdisjoint(touched) or self.refusals.of(sight, demand) is not None:
            return
        if self.timeline is None:
            self.timeline = Timeline(self.cluster, self.holdings, self.snapshot.now)
            for started, draft in self.starts:
                self.timeline.add_start(started, draft)
            for job_id, draft in self.kept.items():
                self.timeline.add_start(self.promises.jobs[job_id], draft)
        lasting = self._lasting(job, sight, place_of)
        if len(self.ledger.reservations) < MAX_TIMED_RESERVATIONS:
            reservation = self.timeline.reserve(job, lasting, self.free)
        else:
            reservation = self.timeline.claim(job, lasting, self.empty.capacity)
        if reservation is not None:
            reservation = self.keeping.lends(replace(reservation, demand=demand), self.free)
            self.ledger.reserve(reservation)
            self.reserved |= touched
            # Small jobs behind it would raise the share of its own project, and the gang lose its turn by that.
            self.shares.promise(job.project, job.user, self.shares.likely(job.gang, job.shape))

    def _lasting(self, job: QueuedGang, sight: str, demand: Demand) -> Demand:
        """The demand without nodes that will be booked for others when it starts, if it can do without them."""
        later = self.sights.later(job, sight)
        if later == sight:
            return demand
        lasting = self.sights.demand(job, later)
        if self.refusals.of(later, lasting) is not None:
            return demand
        there = self.keeping.refuge(lasting)
        # Others may hold the nodes with GPUs, where it is to be on those without.
        is_anywhere = demand.pool is self.sights.demand(job, sight).pool
        return there if is_anywhere or there.pool is not lasting.pool else demand

    def _grow(self, waiting: list[Entry]) -> bool:
        """Give elastic gangs what nobody who waits could use the place of; whether that was anything."""
        bookings = self.sights.bookings
        for job, draft in self.starts:
            role = job.gang.elastic
            if role is not None and job.job_id not in self.growths:
                hidden = bookings.hidden(job.project, job.holds_s)
                placements = draft.placements(self.sights.demand(job, job.shape))
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

    def _claimed(self, waiting: list[Entry]) -> frozenset[int]:
        """Nodes that somebody who waits may ever use."""
        demands: dict[str, Demand] = {}
        for kind in {kind: None for _, _, kind in waiting}:
            sight = self.sights.of(kind.first)
            if not isinstance(sight, Excess) and sight not in demands:
                demands[sight] = self.sights.demand(kind.first, sight)
        return frozenset[int]().union(
            *(
                demand.touched_nodes(self.cluster)
                for sight, demand in demands.items()
                if not self.refusals.of(sight, demand)
            )
        )

    def _started(self) -> tuple[Start, ...]:
        made = []
        for job, draft in self.starts:
            placements = draft.placements(self.sights.demand(job, job.shape))
            growth = self.growths.get(job.job_id)
            more = () if growth is None else growth.made
            made.append(Start(job.job_id, with_more(placements, more, job.gang) if more else placements))
        return tuple(made)

    def _grown(self) -> tuple[Grow, ...]:
        running = sorted(job.job_id for job in self.snapshot.growing)
        return tuple(
            Grow(job_id, tuple(growth.made))
            for job_id in running
            if (growth := self.growths.get(job_id)) is not None and growth.made
        )

    def _reasons(self, waiting: list[Entry]) -> dict[JobId, Reason]:
        reasons = Reasons(
            self.snapshot,
            refusals=self.refusals,
            ledger=self.ledger,
            holdings=self.holdings,
            starts=self.starts,
            sights=self.sights,
            shares=self.shares,
        )
        return reasons.of_all(waiting)
