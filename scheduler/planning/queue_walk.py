"""The walk through the queue: start what fits, hold room for nominated jobs, reserve room for blocked gangs.

:class:`PlanningContext` has the collaborators of one planning pass, built from a snapshot: cluster, capacity,
eligibility, shares, policy.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from core.domain.ids import JobId
from scheduler.planning.model import QueuedGang, Snapshot
from scheduler.planning.placement.backfill import RunningUsage, Timeline
from scheduler.planning.placement.capacity import Capacity
from scheduler.planning.placement.cluster import ClusterIndex
from scheduler.planning.placement.demand import Demand
from scheduler.planning.placement.eligibility import Eligibility
from scheduler.planning.placement.feasibility import EmptyCluster, Infeasibility
from scheduler.planning.placement.fragmentation import WorkloadProfile
from scheduler.planning.placement.gang import place
from scheduler.planning.placement.gpu_headroom import GpuHeadroom
from scheduler.planning.placement.ledger import REFUSED, Ledger
from scheduler.planning.placement.partial import PartialPlacement
from scheduler.planning.placement.search import SearchBudget
from scheduler.planning.preemption.nominations import Nominations
from scheduler.planning.preemption.policy import PreemptionPolicy
from scheduler.planning.queue.job_classes import JobClass, QueueEntry
from scheduler.planning.queue.ordering import JobQueue
from scheduler.planning.queue.overtaking import Overtaking
from scheduler.planning.queue.quota import QuotaExcess
from scheduler.planning.queue.shares import Shares


class PlanningContext:
    """What a pass over the queue of ``snapshot`` works with.

    Attributes:
        cluster: the schedulable nodes. free: their free capacity; starts are subtracted from it. shares: amounts
        held; starts are added to them.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.cluster = ClusterIndex(node for node in snapshot.nodes if node.is_schedulable)
        self.empty = EmptyCluster(self.cluster)
        self.infeasibility = Infeasibility(self.empty)
        self.shares = Shares(snapshot)
        self.eligibility = Eligibility(snapshot, self.cluster, self.shares)
        self._workload: WorkloadProfile | None = None
        self.headroom = GpuHeadroom(self.cluster, self.workload, self.empty)
        self.free = Capacity.free(self.cluster)
        self.free.set_workload(self.workload)
        if snapshot.policy.keeps_for_gpus and self.cluster.gpu_models:
            self.free.headroom = self.empty.headroom = self.headroom
            self.eligibility.apply_headroom = self.headroom.bind
        self.running_usage = RunningUsage(self.cluster, snapshot.running)
        self.overtaking = Overtaking(snapshot)
        self.preemption_policy = PreemptionPolicy(snapshot, self.shares, self.overtaking)
        self.nominations = Nominations(snapshot, self.running_usage, self.preemption_policy)

    def workload(self) -> WorkloadProfile:
        """The profile of recent demand, computed on first use."""
        if self._workload is None:
            hopeful = self.eligibility.without_hopeless(self.snapshot, self.infeasibility.reason)
            self._workload = WorkloadProfile.of_snapshot(hopeful, self.cluster, self.can_ever_run)
        return self._workload

    def can_ever_run(self, job: QueuedGang) -> bool:
        """Whether the empty cluster could hold the job."""
        return self.infeasibility.reason(job.shape, self.eligibility.demand(job, job.shape)) is None

    def may_start(self, job: QueuedGang) -> bool:
        """Whether quotas and bookings leave the job any nodes on which it could run."""
        key = self.eligibility.key_of(job)
        if isinstance(key, QuotaExcess):
            return False
        return self.infeasibility.reason(key, self.eligibility.demand(job, key)) is None


# A timed reservation simulates every stated end, which costs a few milliseconds; one is enough per set of competing
# nodes. Gangs beyond this number claim their nodes by a rule that ignores time.
MAX_TIMED_BACKFILL_RESERVATIONS = 8
# Job classes for which no reserved room could be borrowed. Searching for more would cost more than it finds.
MAX_LOANS_REFUSED = 16


# Eligibility key, project, user, priority, and whether the job is resumable.
_LoanKey = tuple[str, str, str, int, bool]


def _loan_key(job: QueuedGang, key: str) -> _LoanKey:
    return key, job.project, job.user, job.priority, job.is_resumable


@dataclass(frozen=True, slots=True)
class QuotaHold:
    """Quota that is held for a nominated job until its victims are gone, for its project and for its user."""

    job: QueuedGang
    of_project: dict[str, int]
    of_user: dict[str, int]


class QueueWalk:
    """Walks through the queue until nothing more starts. What is remembered of a shape is stored per eligibility key.

    Args:
        watched: the job for which ``leftover`` is recorded.

    Attributes:
        starts: jobs that start, with their placements. nominated: jobs for which room is held until their victims are
        gone, with their placements. quota_holds: quota held for nominated jobs. leftover: the capacity that the watched
        job may use when the walk reaches it, the GPU headroom included; ``None`` if its quota leaves it nothing.
    """

    def __init__(self, context: PlanningContext, watched: JobId | None = None) -> None:
        self.context = context
        self.eligibility = context.eligibility
        self.infeasibility = context.infeasibility
        self.shares = context.shares
        self.watched = watched
        self.leftover: Capacity | None = None
        may_start = None if self.eligibility.is_open else context.may_start
        self.queue = JobQueue(context.snapshot, self.shares, context.can_ever_run, may_start, context.overtaking)
        self.starts: list[tuple[QueuedGang, PartialPlacement]] = []
        self.nominated: dict[JobId, PartialPlacement] = {}
        self.quota_holds: list[QuotaHold] = []
        self._timeline: Timeline | None = None
        self._refused_above_s: dict[str, float] = {}  # eligibility key -> jobs that may run longer are refused
        # Of the current round:
        self.ledger = Ledger(context.free)
        self._budget = SearchBudget()
        self._reserved: set[int] = set()  # nodes for which a gang with a reservation competes
        self._unlent: set[_LoanKey] = set()  # jobs to which no reservation lends room
        self._considered: set[str] = set()  # eligibility keys that were considered for a reservation

    def run(self) -> list[QueueEntry]:
        """Start what can start; returns the jobs that still wait, in order."""
        while True:
            waiting, is_final = self._round()
            if is_final:
                return waiting

    def _round(self) -> tuple[list[QueueEntry], bool]:
        """One walk: the jobs that still wait, and whether another walk would start nothing.

        A start next to a reservation may move the reserved gang, and so free nodes for other jobs; and it changes the
        fair order. The last walk of a plan starts nothing: planning again repeats that walk.
        """
        self.ledger = Ledger(self.context.free)
        self._reserved = set()
        self._considered = set()
        self._unlent = set()
        if self._budget.ran_out:
            self._refused_above_s.clear()
        else:
            self._refused_above_s = {
                key: above
                for key, above in self._refused_above_s.items()
                if above == REFUSED and not self.eligibility.demands[key].respects_headroom
            }
        self._budget = SearchBudget()
        waiting: list[QueueEntry] = []
        starts_before = len(self.starts)
        withdrawn, has_nominations = self.queue.withdrawn, bool(self.context.nominations.jobs)
        for batch in self.queue.walk():
            _, job, job_class = batch[0]
            self._serve_nominations(job.priority)
            if self.watched is not None:
                for _, member, _ in batch:
                    if member.job_id == self.watched:
                        self._record_leftover(member)
            if len(batch) > 1 or self.queue.waits(job_class):
                # A nominated job of the batch may have started.
                waiting += [entry for entry in batch if entry[1].job_id not in withdrawn] if has_nominations else batch
            elif job.job_id not in withdrawn and (job.job_id in self.nominated or not self._try_start(job, job_class)):
                waiting += batch
        self.shares.forget_reserved()
        return waiting, not waiting or len(self.starts) == starts_before

    # ---- nominated jobs ----

    def _serve_nominations(self, priority: int) -> None:
        """Start nominated jobs, or hold the room that their victims will free. They precede all jobs of
        ``priority``.
        """
        nominations = self.context.nominations
        while (job := nominations.pop_due(priority)) is not None:
            key = self.eligibility.key_of(job)
            is_over_quota = isinstance(key, QuotaExcess)
            if isinstance(key, QuotaExcess):
                key = self.eligibility.key_under(job, nominations.quotas_after_victims(job, self.shares))
                if isinstance(key, QuotaExcess):
                    continue
            demand = self.eligibility.demand(job, key)
            run_time_s = job.max_hold_s
            if not is_over_quota and self._fits(demand, run_time_s):
                self._try_start(job)
                continue
            draft = nominations.place_nominated(job, demand, self.ledger)
            if draft is not None:
                self.ledger.start(draft, run_time_s)
                if self._timeline is not None:
                    self._timeline.add_start(job, draft)
                self.nominated[job.job_id] = draft
                if not self.eligibility.quotas.is_empty:
                    self._hold_quota(job, draft)

    def _fits(self, demand: Demand, run_time_s: float) -> bool:
        return place(demand, self.ledger.views[self.ledger.level(run_time_s)], self._budget) is not None

    def _hold_quota(self, job: QueuedGang, draft: PartialPlacement) -> None:
        """Keep other jobs of the project from using the quota that the nominated job will need."""
        of_project, of_user = self.context.nominations.quota_to_hold(job, draft, self.shares)
        self.shares.hold(job.project, job.user, of_project, of_user)
        self.quota_holds.append(QuotaHold(job, of_project, of_user))

    def _record_leftover(self, job: QueuedGang) -> None:
        key = self.eligibility.key_of(job)
        if isinstance(key, QuotaExcess):
            self.leftover = None
            return
        level = self.ledger.level(job.max_hold_s)
        free = self.ledger.views[level].copy()
        node_filter = self.eligibility.filter_of(key)
        for number in () if node_filter is None else node_filter.hidden:
            free.put(number, 0, 0, {}, {})
        self.leftover = free

    # ---- starts ----

    def _try_start(self, job: QueuedGang, job_class: JobClass | None = None) -> bool:
        """``job_class``: of the queue, which records if none of its jobs can start."""
        key = self.eligibility.key_of(job)
        # Bookings depend on how long a job runs, quotas do not.
        has_single_key = self.eligibility.bookings.is_empty
        if isinstance(key, QuotaExcess):
            if job_class is not None:
                self.queue.refuse(job_class, REFUSED)
            return False  # it waits for its quota only: no room is reserved for it
        run_time_s = job.max_hold_s
        above_s = self._refused_above_s.get(key)
        if above_s is not None and run_time_s > above_s:
            if key not in self._considered:
                self._reserve_for(job, key)
            if above_s != REFUSED and self._borrow(job, key):
                return True
            if job_class is not None and (above_s == REFUSED or not self._may_borrow(job, key)):
                self.queue.refuse(job_class, above_s if has_single_key else None)
            return False
        level = self.ledger.level(run_time_s)
        draft = place(self.eligibility.demand(job, key), self.ledger.views[level], self._budget)
        if draft is None:
            self._refused_above_s[key] = self.ledger.floor_s(level)
            self._reserve_for(job, key)
            return level > 0 and self._borrow(job, key)
        self._start(job, draft, run_time_s)
        return True

    def _may_borrow(self, job: QueuedGang, key: str) -> bool:
        """False if it is known that no reservation lends room to jobs like this."""
        is_refused = _loan_key(job, key) in self._unlent or len(self._unlent) >= MAX_LOANS_REFUSED
        return self.context.preemption_policy.may_lend and not is_refused

    def _borrow(self, job: QueuedGang, key: str) -> bool:
        """Start it in reserved room, if every holder of a reservation there lends it
        (:meth:`.PreemptionPolicy.may_backfill_over`).

        Otherwise the room of a large gang would be idle until its last part is free.
        """
        if not self._may_borrow(job, key):
            return False
        policy = self.context.preemption_policy
        lenders = [
            reservation.job.job_id
            for reservation in self.ledger.backfill_reservations
            if reservation.start_s is None and policy.may_backfill_over(reservation.job, job)
        ]
        if not lenders:
            return False
        draft = place(self.eligibility.demand(job, key), self.ledger.free, self._budget)
        if draft is None:
            self._refused_above_s[key] = REFUSED  # there is no room, reserved or not
            return False
        if not self.ledger.holders(draft) <= set(lenders):
            self._unlent.add(_loan_key(job, key))
            return False
        self._start(job, draft, REFUSED)
        return True

    def _start(self, job: QueuedGang, draft: PartialPlacement, run_time_s: float) -> None:
        self.ledger.start(draft, run_time_s)
        if self._timeline is not None:
            self._timeline.add_start(job, draft)
        self.starts.append((job, draft))
        self.shares.add(job.project, job.user, draft.quota_amounts())
        self.queue.withdrawn.add(job.job_id)

    # ---- backfill reservations ----

    def _reserve_for(self, job: QueuedGang, key: str) -> None:
        """Reserve room for the first blocked gang among those that compete for the same nodes."""
        context = self.context
        self._considered.add(key)
        demand = self.eligibility.demand(job, key)
        reserved_demand = context.headroom.on_cpu_nodes(demand)
        touched = reserved_demand.touched_nodes(context.cluster)
        if not self._reserved.isdisjoint(touched) or self.infeasibility.reason(key, demand) is not None:
            return
        if self._timeline is None:
            self._timeline = Timeline(context.cluster, context.running_usage, context.snapshot.now)
            for started, draft in self.starts:
                self._timeline.add_start(started, draft)
            for job_id, draft in self.nominated.items():
                self._timeline.add_start(context.nominations.jobs[job_id], draft)
        lasting = self._without_later_bookings(job, key, reserved_demand)
        if len(self.ledger.backfill_reservations) < MAX_TIMED_BACKFILL_RESERVATIONS:
            reservation = self._timeline.reserve(job, lasting, context.free)
        else:
            reservation = self._timeline.claim(job, lasting, context.empty.capacity)
        if reservation is not None:
            is_lent = reservation.start_s is None and context.preemption_policy.is_lent(job)
            reservation = replace(reservation, demand=demand, is_lent=is_lent)
            reservation = context.headroom.lend(reservation, context.free)
            self.ledger.reserve(reservation)
            self._reserved |= touched
            # Otherwise small jobs behind it would raise its project's share, and the gang would lose its turn.
            self.shares.count_reserved(job.project, job.user, self.shares.likely_amounts(job.gang, job.shape))

    def _without_later_bookings(self, job: QueuedGang, key: str, demand: Demand) -> Demand:
        """The demand without nodes that will be booked for other projects, if the gang can do without them."""
        later = self.eligibility.key_without_booked_nodes(job, key)
        if later == key:
            return demand
        lasting = self.eligibility.demand(job, later)
        if self.infeasibility.reason(later, lasting) is not None:
            return demand
        on_cpu_nodes = self.context.headroom.on_cpu_nodes(lasting)
        # If it is to run on nodes without GPUs, the reservation must stay there.
        is_anywhere = demand.pool is self.eligibility.demand(job, key).pool
        return on_cpu_nodes if is_anywhere or on_cpu_nodes.pool is not lasting.pool else demand
