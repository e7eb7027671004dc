"""A simulated cluster in memory: running and waiting jobs. Applies plans like the control loop, validating every
action.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from core.domain.ids import JobId, NodeId
from core.domain.jobs.speed_curve import SpeedCurve
from core.domain.sharing.gpus import WHOLE_GPU, accepted_models, device_for_part, in_order_of_size
from core.domain.sharing.policy import Policy
from core.domain.sharing.resources import Amounts, Gang, ResourceRequest
from scheduler.planning import (
    Grow,
    GrowingGang,
    NodeSnapshot,
    Placement,
    Plan,
    QueuedGang,
    RunningGang,
    Snapshot,
    Start,
)
from scheduler.planning.model import Account, Booking, Preempt, Shrink

Holder = tuple[str, str, int]  # job, role, index


class SharedDevices:
    """The shared devices by node and model: how much each replica has of each. Parts taken before have
    no known holder.
    """

    def __init__(self) -> None:
        self._devices: dict[tuple[NodeId, str], list[dict[Holder | None, int]]] = {}

    def take(self, node: NodeId, free: Amounts, model: str, part: int, holder: Holder) -> Amounts:
        """Free amounts once ``holder`` has a part; negative GPUs if no device has room."""
        devices = self._of(node, free, model)
        at = device_for_part([WHOLE_GPU - sum(device.values()) for device in devices], part)
        if at is None:
            devices.append({})
            free = _with_gpus(free, model, -1)
        devices[-1 if at is None else at][holder] = part
        return self._shown(node, free, model)

    def give(self, node: NodeId, free: Amounts, model: str, holder: Holder) -> Amounts:
        """Free amounts once ``holder`` is gone; a device without parts is whole again."""
        devices = self._of(node, free, model)
        device = next(device for device in devices if holder in device)
        del device[holder]
        if not device:
            devices.remove(device)
            free = _with_gpus(free, model, 1)
        return self._shown(node, free, model)

    def _of(self, node: NodeId, free: Amounts, model: str) -> list[dict[Holder | None, int]]:
        before = free.shares.get(model, ())
        return self._devices.setdefault((node, model), [{None: WHOLE_GPU - left} for left in before])

    def _shown(self, node: NodeId, free: Amounts, model: str) -> Amounts:
        left = tuple(sorted(WHOLE_GPU - sum(device.values()) for device in self._devices[node, model]))
        shares: Mapping[str, tuple[int, ...]] = {**free.shares, model: left}
        return replace(free, shares={name: parts for name, parts in shares.items() if parts})


def _with_gpus(free: Amounts, model: str, more: int) -> Amounts:
    return replace(free, gpus={**free.gpus, model: free.gpus.get(model, 0) + more})


class WrongPlan(Exception):
    """The planner violated an invariant; the message says which."""


@dataclass(frozen=True, slots=True)
class SimulatedRun:
    """A started job with its placements."""

    job: QueuedGang
    placements: tuple[Placement, ...]
    started_at: datetime
    stops_at: datetime | None = None  # preempted, in its grace period
    stops_for: JobId | None = None
    size_changed_at: datetime | None = None

    def view(self) -> RunningGang:
        limit = None if self.job.max_run_time_s is None else self.job.max_hold_s
        return self.job.running(
            self.placements,
            expected_end=self.stops_at or (None if limit is None else self.started_at + timedelta(seconds=limit)),
            started_at=self.started_at,
            is_stopping=self.stops_at is not None,
            stopping_for=self.stops_for,
            size_changed_at=self.size_changed_at,
        )

    def growing(self, speed: SpeedCurve) -> GrowingGang | None:
        """``None`` if it has its maximum of replicas."""
        job = self.job
        role = job.gang.elastic
        if role is None or self.stops_at is not None:
            return None
        placed_replicas = [placement for placement in self.placements if placement.role == role.role]
        lacking = sorted(set(range(role.most or 0)) - {placement.index for placement in placed_replicas})
        placed = tuple((placement.node, placement.gpu_model) for placement in placed_replicas)
        if not lacking:
            return None
        return GrowingGang(job.job_id, job.priority, job.queued_at, job.gang, tuple(lacking), placed, speed)


class SimulatedCluster:
    """Nodes, running and queued jobs. Values that go into a snapshot are replaced, never modified."""

    def __init__(
        self,
        nodes: Iterable[NodeSnapshot],
        *,
        policy: Policy | None = None,
        accounts: Iterable[Account] = (),
        bookings: Iterable[Booking] = (),
    ) -> None:
        self.policy = policy or Policy()
        self.accounts = tuple(accounts)
        self.bookings = tuple(bookings)
        self.finished_run_times: tuple[int, ...] = ()
        self.nodes: dict[NodeId, NodeSnapshot] = {node.id: node for node in nodes}
        self.queued: dict[JobId, QueuedGang] = {}
        self.running: dict[JobId, SimulatedRun] = {}
        self._views: dict[JobId, RunningGang] = {}
        self._shared = SharedDevices()

    def snapshot(self, now: datetime) -> Snapshot:
        return Snapshot(
            now=now,
            nodes=tuple(self.nodes.values()),
            queued=tuple(self.queued.values()),
            running=tuple(self._views.values()),
            growing=tuple(
                view
                for job_id, running in self.running.items()
                if (view := running.growing(self._views[job_id].speed)) is not None
            ),
            accounts=self.accounts,
            bookings=self.bookings,
            policy=self.policy,
            finished_run_times=self.finished_run_times,
        )

    def update_view(self, view: RunningGang) -> None:
        """Update what is known of a running job: attained service, estimate, work since its last checkpoint."""
        self._views[view.job_id] = view

    def view(self, job_id: JobId) -> RunningGang:
        return self._views[job_id]

    def enqueue(self, job: QueuedGang) -> None:
        self.queued[job.job_id] = job

    def apply(self, plan: Plan, now: datetime) -> None:
        """Apply a plan. Raises :class:`WrongPlan` if an action is invalid.

        A preempted job holds its resources until :meth:`release`.
        """
        for start in plan.starts:
            self.start(start, now)
        for preempt in plan.preempts:
            self.preempt(preempt, now)
        for shrink in plan.shrinks:
            self.shrink(shrink, now)
        for grow in plan.grows:
            self.grow(grow, now)
        if plan.waits.keys() != self.queued.keys():
            raise WrongPlan("exactly the jobs that are not started must have a wait reason")

    def start(self, start: Start, now: datetime) -> None:
        job = self.queued.pop(start.job_id, None)
        if job is None:
            raise WrongPlan(f"{start.job_id} is started but does not wait")
        placed = Counter(placement.role for placement in start.placements)
        members = [
            (role.role, index)
            for role in job.gang.roles
            for index in range(min(max(role.replicas, placed[role.role]), role.most or role.replicas))
        ]
        if members != [(placement.role, placement.index) for placement in start.placements]:
            raise WrongPlan(f"{start.job_id}: a gang starts with all its replicas, in rank order")
        requests = {role.role: role.request for role in job.gang.roles}
        for at in in_order_of_size([requests[placement.role].gpu_milli for placement in start.placements]):
            self._take(job.job_id, job.gang, requests[start.placements[at].role], start.placements[at])
        self._check_topology(job.gang, start.job_id, start.placements)
        self._check_servers(job.gang, start.job_id, start.placements)
        self._run(SimulatedRun(replace(job, room_since=None), start.placements, now))

    def preempt(self, preempt: Preempt, now: datetime) -> None:
        """The job is asked to stop; it holds its resources until :meth:`release`, after its grace period."""
        running = self.running.get(preempt.job_id)
        if running is None or running.stops_at is not None:
            raise WrongPlan(f"{preempt.job_id} is preempted but does not run, or stops already")
        if not self._views[preempt.job_id].is_preemptible:
            raise WrongPlan(f"{preempt.job_id} is preempted but must not be")
        stops_at = now + timedelta(seconds=self.policy.grace_s)
        self._run(replace(running, stops_at=stops_at, stops_for=preempt.for_job))
        self._promise(preempt.for_job, now)

    def _promise(self, job_id: JobId | None, now: datetime) -> None:
        """Record since when victims are stopped for the job, unless that is recorded already."""
        job = self.queued.get(job_id) if job_id is not None else None
        if job is not None and job.room_since is None:
            self.enqueue(replace(job, room_since=now))

    def release(self, job_id: JobId, queued: QueuedGang) -> SimulatedRun:
        """A preempted job has stopped: it returns its resources and waits again, as ``queued``."""
        running = self.finish(job_id)
        self.enqueue(queued)
        return running

    def shrink(self, shrink: Shrink, now: datetime) -> None:
        """Remove these replicas of an elastic job, which runs on with the others."""
        running = self.running.get(shrink.job_id)
        role = running.job.gang.elastic if running is not None else None
        if running is None or role is None or role.role != shrink.role:
            raise WrongPlan(f"{shrink.job_id} shrinks but is no elastic job that runs")
        leaving = [p for p in running.placements if p.role == role.role and p.index in shrink.indices]
        staying = tuple(p for p in running.placements if p not in leaving)
        if len(leaving) != len(set(shrink.indices)) or not leaving:
            raise WrongPlan(f"{shrink.job_id}: shrinks by replicas that it does not have")
        if sum(p.role == role.role for p in staying) < role.replicas:
            raise WrongPlan(f"{shrink.job_id}: shrinks below the replicas that it needs")
        for placement in leaving:
            self._give(shrink.job_id, role.request, placement)
        self._run(replace(running, placements=staying, size_changed_at=now))
        self._promise(shrink.for_job, now)

    def lose(self, job_id: JobId, lost: int) -> None:
        """An elastic job loses its last ``lost`` elastic replicas; it may grow again."""
        running = self.running[job_id]
        role = running.job.gang.elastic
        if role is None:
            raise WrongPlan(f"{job_id} is not elastic")
        staying = list(running.placements)
        for _ in range(lost):
            lost_replica = max((p for p in staying if p.role == role.role), key=lambda p: p.index)
            staying.remove(lost_replica)
            self._give(job_id, role.request, lost_replica)
        self._run(replace(running, placements=tuple(staying)))

    def grow(self, grow: Grow, now: datetime) -> None:
        running = self.running.get(grow.job_id)
        role = running.job.gang.elastic if running is not None else None
        if running is None or role is None:
            raise WrongPlan(f"{grow.job_id} grows but is no elastic job that runs")
        for placement in grow.placements:
            self._take(grow.job_id, running.job.gang, role.request, placement)
        placements = (*running.placements, *grow.placements)
        self._check_servers(running.job.gang, grow.job_id, placements)
        indices = [placement.index for placement in placements if placement.role == role.role]
        if len(set(indices)) != len(indices) or len(indices) > (role.most or 0) or max(indices) >= (role.most or 0):
            raise WrongPlan(f"{grow.job_id}: more replicas than it may have, or one twice")
        if {placement.role for placement in grow.placements} != {role.role}:
            raise WrongPlan(f"{grow.job_id}: only its elastic role grows")
        self._run(replace(running, placements=placements, size_changed_at=now))

    def _run(self, running: SimulatedRun) -> None:
        self.running[running.job.job_id] = running
        self._views[running.job.job_id] = running.view()

    def finish(self, job_id: JobId) -> SimulatedRun:
        """Return what the job holds."""
        running = self.running.pop(job_id)
        del self._views[job_id]
        requests = {role.role: role.request for role in running.job.gang.roles}
        for placement in running.placements:
            self._give(job_id, requests[placement.role], placement)
        return running

    def _give(self, job_id: JobId, request: ResourceRequest, placement: Placement) -> None:
        node = self.nodes[placement.node]
        free = _moved(node.free, request, placement, 1)
        if request.gpu_milli and placement.gpu_model is not None:
            holder = (job_id, placement.role, placement.index)
            free = self._shared.give(node.id, free, placement.gpu_model, holder)
        self.nodes[node.id] = replace(node, free=free)

    def _take(self, job_id: JobId, gang: Gang, request: ResourceRequest, placement: Placement) -> None:
        node = self.nodes.get(placement.node)
        replica = f"{placement.role}-{placement.index} on {placement.node}"
        if node is None or not node.is_schedulable:
            raise WrongPlan(f"{replica}: the node takes no work")
        if any(node.labels.get(key) != value for key, value in gang.node_selector):
            raise WrongPlan(f"{replica}: the node does not match the selector")
        if request.uses_gpu != (placement.gpu_model is not None):
            raise WrongPlan(f"{replica}: a GPU model is told if and only if GPUs are asked for")
        if (
            placement.gpu_model
            and request.gpu_models
            and not accepted_models(request.gpu_models, (placement.gpu_model,))
        ):
            raise WrongPlan(f"{replica}: {placement.gpu_model} is not among the accepted models")
        free = _moved(node.free, request, placement, -1)
        if request.gpu_milli and placement.gpu_model is not None:
            holder = (job_id, placement.role, placement.index)
            free = self._shared.take(node.id, free, placement.gpu_model, request.gpu_milli, holder)
        if min(free.cpu_milli, free.memory_bytes, *free.gpus.values(), 0) < 0:
            raise WrongPlan(f"{replica}: the node is over-committed")
        self.nodes[node.id] = replace(node, free=free)

    def _check_topology(self, gang: Gang, job_id: JobId, placements: Iterable[Placement]) -> None:
        if not gang.topology_required or gang.topology is None:
            return
        names: set[str] = set()
        for node in {placement.node for placement in placements}:
            label = self.nodes[node].labels.get(f"topology/{gang.topology}")
            names.add(f"node {node}" if gang.topology == "node" or not label else label)
        if len(names) > 1:
            raise WrongPlan(f"{job_id}: all replicas inside one {gang.topology} were required")

    def _check_servers(self, gang: Gang, job_id: JobId, placements: Iterable[Placement]) -> None:
        servers = [placement.node for placement in placements if placement.role == "ps"]
        others = {placement.node for placement in placements if placement.role != "ps"}
        if gang.servers == "apart" and not others.isdisjoint(servers):
            raise WrongPlan(f"{job_id}: a parameter server shares a node with another replica, though it must be apart")
        if gang.spread_servers and len(set(servers)) < len(servers):
            raise WrongPlan(f"{job_id}: two parameter servers share a node, though they must be spread")


def _moved(free: Amounts, request: ResourceRequest, placement: Placement, sign: int) -> Amounts:
    gpus: Mapping[str, int] = free.gpus
    if placement.gpu_model is not None:
        gpus = {**gpus, placement.gpu_model: gpus.get(placement.gpu_model, 0) + sign * request.gpu_count}
    cpu, memory = free.cpu_milli + sign * request.cpu_milli, free.memory_bytes + sign * request.memory_bytes
    return Amounts(cpu, memory, gpus, free.shares)
