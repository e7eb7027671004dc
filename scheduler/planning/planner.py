"""The gang planner: order the queue, place each gang whole or not at all, reserve room for the first blocked gang.

`docs/planner.md` describes the algorithm. In short: jobs are taken in queue order (priority, fair shares, the
policy's order). A gang that fits into the capacity that its run time may use starts. The first blocked gang that
would fit an empty cluster gets a backfill reservation (jobs behind it may only use what the reservation leaves).
Free amounts only shrink while a plan is built, so a shape that was refused once stays refused, and equal shapes are
tried once. Wait reasons are written at the end, against the final free capacity, so that equal shapes have equal
reasons.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from core.domain.ids import JobId
from scheduler.planning.elastic_growth import ElasticGrowth
from scheduler.planning.explain.wait_reasons import WaitReasons
from scheduler.planning.fixpoint import plan_to_fixpoint
from scheduler.planning.model import Plan, QueuedGang, Reason, Shrink, Snapshot
from scheduler.planning.placement.capacity import Capacity
from scheduler.planning.placement.demand import Demand
from scheduler.planning.preemption.decision import PreemptionDecision
from scheduler.planning.preemption.preemption import Preemption
from scheduler.planning.queue.job_classes import JobClass, JobFamily, QueueEntry
from scheduler.planning.queue.quota import QuotaExcess
from scheduler.planning.queue_walk import PlanningContext, QueueWalk


def plan(snapshot: Snapshot) -> Plan:
    """Decide which jobs start now, in order, and give a reason for every job that waits.

    Pure: nothing is mutated; the same snapshot gives the same plan, in whatever order its parts are listed.
    """
    return plan_to_fixpoint(snapshot, PlanningPass)


def plan_to_apply(snapshot: Snapshot) -> Plan:
    """The same plan without ``order``, for the control loop, which applies it.

    The order needs a second walk through the queue with hypothetical shares; with a thousand jobs that took a third
    of the planning time.
    """
    return plan_to_fixpoint(snapshot, partial(PlanningPass, with_order=False))


def plan_with_leftover(snapshot: Snapshot, job_id: JobId) -> tuple[Plan, Capacity | None]:
    """The plan, and the capacity that it leaves to a waiting job; ``None`` if its quota leaves it nothing."""
    planning = PlanningPass(snapshot, watched=job_id)
    first = planning.build_plan()
    return replace(first, waits={**planning.reasons(), **first.waits}), planning.walk.leftover


class PlanningPass:
    """One pass over the queue of ``snapshot``: starts and growth once, then preemption as often as it is asked for.

    Args:
        watched: the job for which the walk records the ``leftover``. with_order: fill in the plan's ``order``.
    """

    def __init__(self, snapshot: Snapshot, watched: JobId | None = None, *, with_order: bool = True) -> None:
        self.snapshot = snapshot
        self.with_order = with_order
        self.context = PlanningContext(snapshot)
        self.walk = QueueWalk(self.context, watched)
        self.growth = ElasticGrowth(snapshot, self.context.eligibility, self.context.cluster, self.context.shares)
        self._waiting: list[QueueEntry] | None = None

    def build_plan(self, hopeless: frozenset[JobId] = frozenset(), preemptors: int = 0) -> Plan:
        """The actions of this pass; of the wait reasons only those of jobs for which victims are stopped.

        May be called again with more hopeless jobs.
        """
        walk, growth = self.walk, self.growth
        if self._waiting is None:
            self._waiting = walk.run()
            while growth.grow(walk.starts, walk.ledger, self._claimed_nodes(self._waiting)):
                self._waiting = walk.run()  # growth changes shares, and these the order
        decision = self._preempt(self._waiting, hopeless, preemptors)
        order: tuple[JobId, ...] = ()
        if self.with_order:
            order = (*(job.job_id for job, _ in walk.starts), *(job.job_id for job in walk.queue.in_order()))
        return Plan(
            starts=growth.starts(walk.starts),
            waits=decision.reasons,
            grows=tuple(grow for grow in growth.grows() if grow.job_id not in decision.touched),
            preempts=tuple(decision.preempts),
            shrinks=tuple(decision.shrinks) or self._balance(decision),
            moves=tuple(decision.moves),
            order=order,
        )

    def _balance(self, decision: PreemptionDecision) -> tuple[Shrink, ...]:
        """Replicas that leave running gangs for others; none while this plan stops anything."""
        if decision.preempts or not self.snapshot.growing:
            return ()
        return self.growth.balance(self._claimed_nodes(self._waiting or []))

    def reasons(self) -> dict[JobId, Reason]:
        """Why the waiting jobs of the plan built last wait."""
        reasons = WaitReasons(
            self.snapshot,
            infeasibility=self.context.infeasibility,
            ledger=self.walk.ledger,
            running_usage=self.context.running_usage,
            starts=self.walk.starts,
            eligibility=self.context.eligibility,
            shares=self.context.shares,
        )
        return reasons.reasons_for(self._waiting or [])

    def _claimed_nodes(self, waiting: Sequence[QueueEntry]) -> frozenset[int]:
        """Nodes that some waiting job may ever use."""
        context, eligibility = self.context, self.context.eligibility
        demands: dict[str, Demand] = {}
        for job_class in {job_class: None for _, _, job_class in waiting}:
            key = eligibility.key_of(job_class.first)
            if not isinstance(key, QuotaExcess) and key not in demands:
                demands[key] = eligibility.demand(job_class.first, key)
        return frozenset[int]().union(
            *(
                demand.touched_nodes(context.cluster)
                for key, demand in demands.items()
                if not context.infeasibility.reason(key, demand)
            )
        )

    # ---- preemption ----

    def _preempt(self, waiting: list[QueueEntry], hopeless: frozenset[JobId], preemptors: int) -> PreemptionDecision:
        """The victims with which some of the waiting jobs may start."""
        demands: dict[JobClass, Demand] = {}
        over_quota: set[JobClass] = set()
        blocked_demands: dict[JobFamily | JobClass, tuple[Demand | None, bool]] = {}
        has_single_key = self.context.eligibility.bookings.is_empty  # whatever the run time
        for job_class in {job_class: None for _, _, job_class in waiting}:
            demand_key = job_class.job_family if has_single_key else job_class
            if demand_key not in blocked_demands:
                blocked_demands[demand_key] = self._blocked_demand(job_class.first)
            demand, is_over_quota = blocked_demands[demand_key]
            if demand is not None:
                demands[job_class] = demand
                if is_over_quota:
                    over_quota.add(job_class)
        blocked = [entry for entry in waiting if entry[2] in demands]
        jobs_over_quota = (
            {job.job_id for _, job, job_class in blocked if job_class in over_quota} if over_quota else set()
        )
        holds = self.walk.quota_holds
        shares = self.context.shares.copy() if holds else self.context.shares
        for hold in holds:  # the placements of nominated jobs are counted instead
            shares.hold(hold.job.project, hold.job.user, hold.of_project, hold.of_user, -1)
        preemption = Preemption(
            self.snapshot,
            self.walk.ledger,
            self.context.running_usage,
            shares,
            self.context.nominations,
            self.walk.nominated,
            hopeless,
            self.context.eligibility,
            jobs_over_quota,
            preemptors,
        )
        return preemption.run(blocked, demands)

    def _blocked_demand(self, job: QueuedGang) -> tuple[Demand | None, bool]:
        """The demand of a job, if preemption could help it; and whether it waits for a quota."""
        context, eligibility = self.context, self.context.eligibility
        key = eligibility.key_of(job)
        if isinstance(key, QuotaExcess):
            if key.is_never or not context.can_ever_run(job):
                return None, True
            return eligibility.demand(job, job.shape), True
        demand = eligibility.demand(job, key)
        return (demand if context.infeasibility.reason(key, demand) is None else None), False
