"""The collaborators of one planning pass, built from a snapshot: cluster, capacity, eligibility, shares, policy."""

from __future__ import annotations

from scheduler.planning.explain.wait_reasons import Infeasibility
from scheduler.planning.forecast.backfill import RunningUsage
from scheduler.planning.model import QueuedGang, Snapshot
from scheduler.planning.placement.capacity import Capacity
from scheduler.planning.placement.cluster import ClusterIndex
from scheduler.planning.placement.eligibility import Eligibility
from scheduler.planning.placement.feasibility import EmptyCluster
from scheduler.planning.placement.fragmentation import WorkloadProfile
from scheduler.planning.placement.gpu_headroom import GpuHeadroom
from scheduler.planning.preemption.nominations import Nominations
from scheduler.planning.preemption.policy import PreemptionPolicy
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
        self.preemption_policy = PreemptionPolicy(snapshot, self.shares)
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
