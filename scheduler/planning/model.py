"""The planner's values: a snapshot goes in, a plan with reasons comes out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from math import inf
from typing import Any, Final

from trainmaster.wire.jobs import INFEASIBLE_CODES

from core.domain.ids import JobId, NodeId
from core.domain.jobs.speed_curve import UNMEASURED, SpeedCurve
from core.domain.sharing.policy import Policy
from core.domain.sharing.quota import Quota as Quota  # noqa: PLC0414 (the planner speaks of it, too)
from core.domain.sharing.resources import Amounts, Gang

OVER_BUDGET: Final = -1  # a priority below all that users can set


@dataclass(frozen=True, slots=True)
class NodeSnapshot:
    """A node and its free amounts: allocatable minus what runs or is about to run.

    ``labels`` carries ``topology/rack`` and ``topology/zone`` where known.
    """

    id: NodeId
    labels: Mapping[str, str]
    allocatable: Amounts
    free: Amounts
    is_schedulable: bool = True
    why_not: str = ""  # a phrase, such as "is cordoned", when not schedulable
    is_draining: bool = False  # jobs on it are to continue on other nodes
    is_quarantined: bool = False  # quarantine is the only obstacle, until ``opens_at`` if that is known
    opens_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Estimate:
    """Expected remaining run time of a job in seconds, if it runs without interruption.

    Half of all such jobs take at most ``likely_s`` (median), nine in ten at most ``late_s``, one in ten at most
    ``early_s``. ``source``: origin of the estimate, for people ("14 finished jobs named sweep", "its own progress").
    """

    likely_s: float
    early_s: float
    late_s: float
    source: str = ""


@dataclass(frozen=True, slots=True)
class QueuedGang:
    """A waiting job. ``max_run_time_s`` is only an upper bound; ``None`` if the user stated none.

    ``attained_gpu_s``: attained service, the GPU-seconds of its earlier attempts (seconds for a gang without GPUs).
    ``estimate``: remaining run time; ``None`` if unknown. ``waits_since``: when it lost its resources, if that is not
    ``queued_at``, which a preempted job keeps. ``room_since``: since when victims are stopped or shrunk for it in its
    present wait (they carry its id as ``for_job``); it then precedes other jobs of its priority. ``is_preemptible``:
    as of a running job. ``overrun_s``: how much longer than ``max_run_time_s`` it may hold its resources until it is
    stopped. ``earlier_s``: run time of its earlier attempts in seconds. ``speed``: by replicas of its elastic role.
    ``is_resumable``: as of a running job.
    """

    job_id: JobId
    name: str
    project: str
    user: str
    priority: int  # 0 to 100, larger first
    queued_at: datetime
    gang: Gang
    shape: str  # gang.shape(), computed once
    max_run_time_s: float | None = None
    attained_gpu_s: float = 0.0
    estimate: Estimate | None = None
    waits_since: datetime | None = None
    room_since: datetime | None = None
    is_preemptible: bool = True
    overrun_s: float = 0.0
    earlier_s: float = 0.0
    speed: SpeedCurve = UNMEASURED
    is_resumable: bool = True

    @property
    def max_hold_s(self) -> float:
        """Longest time in seconds that it holds its resources once started; infinite if unknown."""
        return inf if self.max_run_time_s is None else self.max_run_time_s + self.overrun_s

    def running(self, placements: Sequence[Placement], **others: Any) -> RunningGang:
        """The job once it runs at ``placements``. ``others``: further fields of the running gang."""
        return RunningGang(
            job_id=self.job_id,
            name=self.name,
            project=self.project,
            priority=self.priority,
            gang=self.gang,
            nodes=tuple((placement.role, placement.node) for placement in placements),
            gpu_models=tuple(placement.gpu_model for placement in placements),
            indices=tuple(placement.index for placement in placements),
            user=self.user,
            queued_at=self.queued_at,
            attained_gpu_s=self.attained_gpu_s,
            estimate=self.estimate,
            earlier_s=self.earlier_s,
            speed=self.speed,
            is_resumable=self.is_resumable,
            **others,
        )


@dataclass(frozen=True, slots=True)
class RunningGang:
    """A job that holds resources. ``nodes``: one (role, node) per replica, in rank order.

    ``gpu_models``: the model that each replica got, in the same order; if empty, it is derived from the request and
    the node, which is a guess on nodes with two models.

    ``started_at``: start of the present attempt; ``None``: not yet running. ``attained_gpu_s``: attained service, the
    present attempt included. ``lost_gpu_s``: GPU-seconds of work since the last checkpoint, which a preemption would
    lose. ``is_preemptible``: its user allows preemption and the executor supports it. ``is_stopping``: its resources
    are expected back at ``expected_end``; ``stopping_for``: the preemptor. ``queued_at``: when the job was queued.
    ``indices``: index of each replica within its role, in the order of ``nodes``; if empty, 0, 1, 2 … per role.
    ``is_part``: replicas that leave an elastic gang which itself runs on: resources without a job of their own.
    ``earlier_s``: run time of earlier attempts in seconds, without the present one. ``is_endless``: it serves an
    endpoint until that is removed. ``speed``: by replicas of its elastic role. ``is_resumable``: it has checkpoints, so
    a stop costs a restart and not its work; turns stop no other job. ``size_changed_at``: when an elastic gang last
    got or gave replicas in the present attempt.
    """

    job_id: JobId
    name: str
    project: str
    priority: int
    gang: Gang
    nodes: tuple[tuple[str, NodeId], ...]
    expected_end: datetime | None = None  # latest time at which its resources are free, if max_run_time is stated
    gpu_models: tuple[str | None, ...] = ()
    user: str = ""
    queued_at: datetime | None = None
    started_at: datetime | None = None
    attained_gpu_s: float = 0.0
    lost_gpu_s: float = 0.0
    estimate: Estimate | None = None
    is_preemptible: bool = True
    is_stopping: bool = False
    stopping_for: JobId | None = None
    indices: tuple[int, ...] = ()
    is_part: bool = False
    earlier_s: float = 0.0
    is_endless: bool = False
    speed: SpeedCurve = UNMEASURED
    is_resumable: bool = True
    size_changed_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class GrowingGang:
    """An elastic job that runs below its maximum. ``indices``: indices of the missing replicas.

    ``placed``: node and GPU model of each running replica of the elastic role. ``speed``: by replicas of that role.
    """

    job_id: JobId
    priority: int
    queued_at: datetime
    gang: Gang
    indices: tuple[int, ...]
    placed: tuple[tuple[NodeId, str | None], ...] = ()
    speed: SpeedCurve = UNMEASURED


@dataclass(frozen=True, slots=True)
class Account:
    """A project in the planner's view. ``weight``: its weight in fair sharing. ``is_over_budget``: it has spent its
    budget, and its waiting jobs have the priority ``OVER_BUDGET`` for that.

    ``usage``: decayed mean of its past dominant share (0 to 1 of the cluster; half-life
    ``Policy.usage_half_life_s``). ``user_usage``: the same per user. ``user_weights``: weight per user, 1 if not
    listed.
    """

    project: str
    weight: float = 1.0
    quota: Quota = field(default_factory=Quota)
    usage: float = 0.0
    user_usage: Mapping[str, float] = field(default_factory=dict)
    user_weights: Mapping[str, float] = field(default_factory=dict)
    is_over_budget: bool = False


@dataclass(frozen=True, slots=True)
class Booking:
    """Nodes reserved by an administrator for one project from ``begins_at`` to ``ends_at``."""

    id: str
    name: str
    project: str
    nodes: frozenset[NodeId]
    begins_at: datetime
    ends_at: datetime


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything a plan depends on. The order of the tuples does not matter. ``growing``: a subset of the running jobs.

    ``accounts``: a project without an account has weight 1, no quota and no past usage.
    ``finished_run_times``: number of finished jobs with a run time in each of
    :data:`.queue.policy_key.RUN_TIME_BUCKETS`; empty: none has finished. ``moves_replicas``: between elastic gangs;
    forecasts leave them where they are.
    """

    now: datetime
    nodes: tuple[NodeSnapshot, ...]
    queued: tuple[QueuedGang, ...]
    running: tuple[RunningGang, ...] = ()
    growing: tuple[GrowingGang, ...] = ()
    accounts: tuple[Account, ...] = ()
    bookings: tuple[Booking, ...] = ()
    policy: Policy = field(default_factory=Policy)
    finished_run_times: tuple[int, ...] = ()
    moves_replicas: bool = True


class WaitReasonCode(StrEnum):
    NO_NODES = "no_nodes"  # the cluster has no node, or none is ready
    NEVER_FITS = "never_fits"  # no node could hold a member even if empty: the request exceeds every node
    NO_MATCHING_NODE = "no_matching_node"  # node selector or GPU model matches no node
    TOO_LARGE = "too_large"  # each member fits on a node, but the gang does not fit even the empty cluster
    NO_ROOM = "no_room"  # fits once other jobs end
    TOPOLOGY = "topology"  # enough is free, but not inside one topology domain
    RESERVED = "reserved"  # would fit, but would delay a job ahead in the queue
    BACKOFF = "backoff"  # starts again in a moment after a failed attempt
    QUOTA = "quota"  # its project, or its user within the project, is at its quota
    # Would fit, but needs the CPU or memory headroom of a node's free GPUs. The value is in databases and clients.
    GPU_HEADROOM = "kept_for_gpus"
    BOOKED = "booked"  # would fit, but an administrator reserved the nodes for another project
    PREEMPTING = "preempting"  # victims are being stopped for it


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a job waits: one sentence for people, the numbers behind it for programs."""

    code: WaitReasonCode
    sentence: str
    numbers: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Placement:
    """A node and a GPU model (``None`` without GPUs) for one replica."""

    role: str
    index: int
    node: NodeId
    gpu_model: str | None = None


@dataclass(frozen=True, slots=True)
class Start:
    """Start this job now. ``placements``: every replica in rank order; for an elastic role, as many as have room."""

    job_id: JobId
    placements: tuple[Placement, ...]


@dataclass(frozen=True, slots=True)
class Grow:
    """Add these replicas to a running elastic job."""

    job_id: JobId
    placements: tuple[Placement, ...]


class PreemptCode(StrEnum):
    """The rule that justifies a preemption."""

    PRIORITY = "priority"  # a job of larger priority needs the resources
    GUARANTEE = "guarantee"  # the victim's project borrowed the resources from a project that reclaims its guarantee
    FAIR_SHARE = "fair_share"  # the victim's project is above its fair share, the preemptor's below
    # the victim's time slice is over, and jobs of equal priority come first or have had fewer turns
    TIME_SLICE = "time_slice"
    BOOKING = "booking"  # the node is now reserved for another project
    DRAIN = "drain"  # an administrator drains the node
    MOVE = "move"  # the victim migrates so that a large gang finds room


@dataclass(frozen=True, slots=True)
class Preempt:
    """Stop this job's attempt; the job returns to the queue and resumes from its last checkpoint. ``for_job``: the
    preemptor.
    """

    job_id: JobId
    for_job: JobId | None
    code: PreemptCode
    sentence: str


@dataclass(frozen=True, slots=True)
class Shrink:
    """Remove these replicas (by index) of the elastic role from a job that runs on with the others."""

    job_id: JobId
    role: str
    indices: tuple[int, ...]
    for_job: JobId | None
    sentence: str


@dataclass(frozen=True, slots=True)
class Migration:
    """A proposal: if ``job_id`` stopped and restarted at ``placements``, ``for_job`` could start. Not applied by
    itself.
    """

    job_id: JobId
    for_job: JobId
    placements: tuple[Placement, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do now, in order, and why all other jobs wait. ``waits`` has every queued job that does not start.

    ``order``: every queued job in planning order; empty in :func:`.planner.plan_to_apply`.
    """

    starts: tuple[Start, ...] = ()
    waits: Mapping[JobId, Reason] = field(default_factory=dict)
    grows: tuple[Grow, ...] = ()
    preempts: tuple[Preempt, ...] = ()
    shrinks: tuple[Shrink, ...] = ()
    moves: tuple[Migration, ...] = ()
    order: tuple[JobId, ...] = ()

    def positions(self) -> dict[JobId, int]:
        """The queue position of each waiting job: 1 is next. Jobs that can never run have none."""
        waiting = (job_id for job_id in self.order if job_id in self.waits and not self.is_infeasible(job_id))
        return {job_id: position for position, job_id in enumerate(waiting, 1)}

    def is_infeasible(self, job_id: JobId) -> bool:
        """Whether no end of another job can help: only other nodes, settings or another spec."""
        reason = self.waits.get(job_id)
        return reason is not None and (reason.code in INFEASIBLE_CODES or bool(reason.numbers.get("is_never")))
