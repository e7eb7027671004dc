"""The gang planner: order the queue, place each gang whole or not at all, hold room for the first that is blocked.

`docs/planner.md` tells how it thinks. In short: jobs are taken in order (priority, then age). A gang that fits into
what its length may use is started. The first that is blocked, though it would fit an empty cluster, gets a
reservation; whoever comes later may only use what that leaves. Free amounts only shrink while a plan is made, so a
shape that was refused once stays refused, and equal shapes are asked once. Reasons are written at the end, against
what is left then, so that equal shapes have equal reasons.
"""

from __future__ import annotations

from core.domain.ids import JobId
from scheduler.planning.capacity import Capacity
from scheduler.planning.cluster import Cluster
from scheduler.planning.demand import Demand, demand_of
from scheduler.planning.draft import Draft
from scheduler.planning.feasibility import EmptyCluster
from scheduler.planning.gang import place
from scheduler.planning.grow import Growth, grow, with_more
from scheduler.planning.holders import Holders
from scheduler.planning.ledger import NEVER, REFUSED, Ledger
from scheduler.planning.model import Grow, Placement, Plan, QueuedGang, Reason, ReasonCode, Snapshot, Start
from scheduler.planning.order import Queue
from scheduler.planning.reasons import Explainer
from scheduler.planning.reservation import Holdings, Timeline
from scheduler.planning.search import Budget
from scheduler.planning.shares import Shares, of_draft

# Each looks at every stated end, which costs a few milliseconds; one is enough per set of nodes that compete. Gangs
# beyond these claim their nodes by a rule that looks at no time.
MAX_TIMED_RESERVATIONS = 8


def queue_order(job: QueuedGang) -> tuple[object, ...]:
    """Sort key: larger priority first, then who queued first, then the id."""
    return (-job.priority, job.queued_at, job.job_id)


def _growth(job: QueuedGang, placements: tuple[Placement, ...]) -> Growth:
    """An elastic gang that this plan starts with as few replicas as will do."""
    role = job.gang.elastic
    assert role is not None  # noqa: S101 - the caller chose it by that
    placed = tuple((p.node, p.gpu_model) for p in placements if p.role == role.role)
    return Growth(queue_order(job), job.gang, tuple(range(role.replicas, role.most or 0)), placed)


def plan(snapshot: Snapshot) -> Plan:
    """What starts now, in order, and a reason for every job that waits.

    Nothing is mutated; the same snapshot gives the same plan, in whatever order its parts are listed.
    """
    return _Planning(snapshot).run()


def room_behind(snapshot: Snapshot, max_run_time_s: float | None) -> tuple[Cluster, Capacity]:
    """What a job that comes after all of ``snapshot``'s queue, and may run for so long, would find free."""
    planning = _Planning(snapshot)
    planning.walk()
    ledger = planning.ledger
    return planning.cluster, ledger.views[ledger.level(NEVER if max_run_time_s is None else max_run_time_s)]


class _Planning:
    """The state of one call of :func:`plan`."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.cluster = Cluster(node for node in snapshot.nodes if node.is_schedulable)
        self.empty = EmptyCluster(self.cluster)
        self.free = Capacity.free(self.cluster)
        self.holdings = Holdings(self.cluster, snapshot.running)
        self.timeline: Timeline | None = None
        self.demands: dict[str, Demand] = {}
        self.refusals: dict[str, ReasonCode | None] = {}  # shape -> why it can never run
        self.refused_above_s: dict[str, float] = {}  # shape -> jobs that may run longer than this are refused
        self.starts: list[tuple[QueuedGang, Draft]] = []
        self.shares = Shares(snapshot)
        self.queue = Queue(snapshot, self.shares)
        # Of the current round:
        self.ledger = Ledger(self.free)
        self.budget = Budget()
        self.reserved: set[int] = set()  # nodes that a gang with a reservation competes for
        self.blocked: set[str] = set()  # shapes that were considered for a reservation

    def walk(self) -> list[QueuedGang]:
        """Start what can start; who still waits, in order."""
        while True:
            waiting, is_settled = self._round()
            if is_settled:
                return waiting

    def run(self) -> Plan:
        waiting = self.walk()
        order = (*(job.job_id for job, _ in self.starts), *(job.job_id for job in self.queue.in_turn()))
        starts = [(job, draft.placements(self.demands[job.shape])) for job, draft in self.starts]
        waits = self._reasons(waiting)
        started, grows = self._grow(starts, waiting)
        return Plan(started, waits, grows, order=order)

    def _grow(
        self, starts: list[tuple[QueuedGang, tuple[Placement, ...]]], waiting: list[QueuedGang]
    ) -> tuple[tuple[Start, ...], tuple[Grow, ...]]:
        """The starts, and what runs, with as many replicas of elastic roles as nobody who waits could use the place of."""
        elastic = [(job, placements) for job, placements in starts if job.gang.elastic is not None]
        running = sorted(self.snapshot.growing, key=lambda job: job.job_id)
        if not elastic and not running:
            return tuple(Start(job.job_id, placements) for job, placements in starts), ()
        growths = [_growth(job, placements) for job, placements in elastic]
        growths += [
            Growth((-job.priority, job.queued_at, job.job_id), job.gang, job.indices, job.placed) for job in running
        ]
        given = grow(growths, self.ledger, self.cluster, self._claimed(waiting))
        more = {job.job_id: placements for (job, _), placements in zip(elastic, given, strict=False)}
        return (
            tuple(
                Start(job.job_id, with_more(placements, more.get(job.job_id, ()), job.gang))
                for job, placements in starts
            ),
            tuple(
                Grow(job.job_id, tuple(placements))
                for job, placements in zip(running, given[len(elastic) :], strict=True)
                if placements
            ),
        )

    def _claimed(self, waiting: list[QueuedGang]) -> frozenset[int]:
        """Nodes that somebody who waits may ever use."""
        demands = {job.shape: self.demands[job.shape] for job in waiting}
        return frozenset[int]().union(
            *(
                demand.touched_nodes(self.cluster)
                for shape, demand in demands.items()
                if not self._refusal(shape, demand)
            )
        )

    def _round(self) -> tuple[list[QueuedGang], bool]:
        """One walk through the queue: who still waits, and whether another walk would start nothing.

        A start beside a reservation may shift where the reserved gang is to run, and so set nodes free for others.
        Walking again until nothing starts makes a plan that stays the same when it is planned again.
        """
        self.ledger = Ledger(self.free)
        self.reserved = set()
        self.blocked = set()
        if self.budget.ran_out:
            self.refused_above_s.clear()
        else:
            self.refused_above_s = {s: above for s, above in self.refused_above_s.items() if above == REFUSED}
        self.budget = Budget()
        waiting: list[QueuedGang] = []
        is_settled = True
        for job in self.queue.walk():
            if not self._try_start(job):
                waiting.append(job)
            elif self.ledger.reservations:
                is_settled = False
        return waiting, is_settled

    def _try_start(self, job: QueuedGang) -> bool:
        run_time_s = NEVER if job.max_run_time_s is None else job.max_run_time_s
        above_s = self.refused_above_s.get(job.shape)
        if above_s is not None and run_time_s > above_s:
            if job.shape not in self.blocked:
                self._reserve_for(job, self.demands[job.shape])
            return False
        demand = self.demands.get(job.shape)
        if demand is None:
            demand = self.demands[job.shape] = demand_of(job.gang, self.cluster)
        level = self.ledger.level(run_time_s)
        draft = place(demand, self.ledger.views[level], self.budget)
        if draft is None:
            self.refused_above_s[job.shape] = self.ledger.floor_s(level)
            self._reserve_for(job, demand)
            return False
        self.ledger.start(draft, run_time_s)
        if self.timeline is not None:
            self.timeline.add_start(job, draft)
        self.starts.append((job, draft))
        self.shares.add(job.project, job.user, of_draft(draft))
        self.queue.withdrawn.add(job.job_id)
        return True

    def _reserve_for(self, job: QueuedGang, demand: Demand) -> None:
        """Hold room for a gang that is the first to be blocked among those that compete for the same nodes."""
        self.blocked.add(job.shape)
        touched = demand.touched_nodes(self.cluster)
        if not self.reserved.isdisjoint(touched) or self._refusal(job.shape, demand) is not None:
            return
        if self.timeline is None:
            self.timeline = Timeline(self.cluster, self.holdings, self.snapshot.now)
            for started, draft in self.starts:
                self.timeline.add_start(started, draft)
        if len(self.ledger.reservations) < MAX_TIMED_RESERVATIONS:
            reservation = self.timeline.reserve(job, demand, self.free)
        else:
            reservation = self.timeline.claim(job, demand, self.empty.capacity)
        if reservation is not None:
            self.ledger.reserve(reservation)
            self.reserved |= touched

    def _refusal(self, shape: str, demand: Demand) -> ReasonCode | None:
        if shape not in self.refusals:
            self.refusals[shape] = self.empty.refusal(demand)
        return self.refusals[shape]

    def _reasons(self, waiting: list[QueuedGang]) -> dict[JobId, Reason]:
        explainer = Explainer(
            self.snapshot, self.empty, self.ledger, Holders(self.snapshot.now, self.holdings, self.starts)
        )
        known: dict[str, Reason] = {}
        waits: dict[JobId, Reason] = {}
        for job in waiting:
            reason = known.get(job.shape)
            if reason is None:
                demand = self.demands[job.shape]
                explained = explainer.explain(demand, self._refusal(job.shape, demand))
                reason = known[job.shape] = explained
            waits[job.job_id] = reason
        return waits
