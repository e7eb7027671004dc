"""The planner's values: a snapshot goes in, a plan with reasons comes out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from math import inf
from typing import Any

from core.domain.ids import JobId, NodeId
from core.domain.sharing.policy import Policy
from core.domain.sharing.quota import Quota as Quota  # noqa: PLC0414 (the planner speaks of it, too)
from core.domain.sharing.resources import Amounts, Gang


@dataclass(frozen=True, slots=True)
class NodeSnapshot:
    """A node and what is free on it (allocatable minus all that runs or is about to).

    ``labels`` carries ``topology/rack`` and ``topology/zone`` where known.
    """

    id: NodeId
    labels: Mapping[str, str]
    allocatable: Amounts
    free: Amounts
    is_schedulable: bool = True
    why_not: str = ""  # a phrase, such as "is cordoned", when not schedulable
    is_draining: bool = False  # what runs there is to go on elsewhere
    is_quarantined: bool = False  # only that keeps work away from it, until ``opens_at`` if that is known
    opens_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Estimate:
    """How much longer a job is expected to run, in seconds, if it runs without a break: half of all do not take longer
    than ``likely_s``, nine in ten not longer than ``late_s``, one in ten not longer than ``early_s``.

    ``source``: where that comes from, for people ("14 finished jobs named sweep", "its own progress").
    """

    likely_s: float
    early_s: float
    late_s: float
    source: str = ""


@dataclass(frozen=True, slots=True)
class QueuedGang:
    """A waiting job. ``max_run_time_s`` is only an upper bound; ``None`` if the user stated none.

    ``attained_gpu_s``: GPU-seconds that its earlier attempts had (seconds of a gang without GPUs). ``estimate``: how long it
    would still run; ``None``: nobody knows. ``waits_since``: when it was last without resources, if that is not
    ``queued_at``, which a job keeps when it is preempted. ``room_since``: since when others are, or were, stopped or made
    smaller for it (they have its id as ``for_job``) in the time that it waits now; it comes before others of its priority.
    ``is_preemptible``: as of a job that runs. ``overrun_s``: for how much longer than ``max_run_time_s`` it may hold its place
    when its time is over, until it is gone. ``earlier_s``: seconds that its earlier attempts ran.
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

    @property
    def max_hold_s(self) -> float:
        """For how long at most it holds its place once it has started; infinite if nobody knows."""
        return inf if self.max_run_time_s is None else self.max_run_time_s + self.overrun_s


@dataclass(frozen=True, slots=True)
class RunningGang:
    """A job that holds resources. ``nodes``: one (role, node) per replica, in rank order.

    ``gpu_models``: the model each replica got, in the same order; empty: worked out from the request and the node,
    which is only a guess where a node has two models.

    ``started_at``: of its present attempt; ``None``: not yet running. ``attained_gpu_s``: with what the present attempt has
    had so far. ``lost_gpu_s``: GPU-seconds of work since its last checkpoint, which a preemption would lose.
    ``is_preemptible``: its user allows it, and the executor can. ``is_stopping``: it is being ended already, and its
    resources are expected back at ``expected_end``; ``stopping_for``: for which job. ``queued_at``: as of the job when it
    waited. ``indices``: of each replica inside its role, in the order of ``nodes``; empty: 0, 1, 2 … in each role.
    ``is_part``: replicas that leave an elastic gang, which runs on: resources, and no job of their own. ``earlier_s``: seconds
    that its earlier attempts ran, without the present one. ``is_endless``: it serves until it is not wanted any more.
    """

    job_id: JobId
    name: str
    project: str
    priority: int
    gang: Gang
    nodes: tuple[tuple[str, NodeId], ...]
    expected_end: datetime | None = None  # when its place is free at the latest, if max_run_time is stated
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


@dataclass(frozen=True, slots=True)
class GrowingGang:
    """An elastic job that runs with fewer replicas than it may have. ``indices``: numbers of those that it lacks.

    ``placed``: node and GPU model of each replica of the elastic role that it has.
    """

    job_id: JobId
    priority: int
    queued_at: datetime
    gang: Gang
    indices: tuple[int, ...]
    placed: tuple[tuple[NodeId, str | None], ...] = ()


@dataclass(frozen=True, slots=True)
class Account:
    """A project as the planner sees it. ``weight``: its share against the others'.

    ``usage``: the mean of its dominant share (0 to 1 of the cluster) over the past, in which what was lately counts more
    (``Policy.usage_half_life_s``); ``user_usage``: the same of each of its users, ``user_weights``: theirs, 1 if unnamed.
    """

    project: str
    weight: float = 1.0
    quota: Quota = field(default_factory=Quota)
    usage: float = 0.0
    user_usage: Mapping[str, float] = field(default_factory=dict)
    user_weights: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Booking:
    """Nodes that one project alone may use from ``begins_at`` to ``ends_at``. An administrator made it."""

    id: str
    name: str
    project: str
    nodes: frozenset[NodeId]
    begins_at: datetime
    ends_at: datetime


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything a plan depends on. The order of the tuples does not matter. ``growing``: some of those that run.

    ``accounts``: a project that is not among them has weight 1, no quota and no past.
    """

    now: datetime
    nodes: tuple[NodeSnapshot, ...]
    queued: tuple[QueuedGang, ...]
    running: tuple[RunningGang, ...] = ()
    growing: tuple[GrowingGang, ...] = ()
    accounts: tuple[Account, ...] = ()
    bookings: tuple[Booking, ...] = ()
    policy: Policy = field(default_factory=Policy)


class ReasonCode(StrEnum):
    """Why a job waits."""

    NO_NODES = "no_nodes"  # there is no node at all, or none is ready
    NEVER_FITS = "never_fits"  # no node, empty, could hold a member: asks for more than any has
    NO_MATCHING_NODE = "no_matching_node"  # node selector or GPU model matches no node
    TOO_LARGE = "too_large"  # each member fits somewhere, the gang fits not even the empty cluster
    NO_ROOM = "no_room"  # fits when something ends
    TOPOLOGY = "topology"  # enough is free, but not inside one domain
    RESERVED = "reserved"  # would fit, but would delay a job that is before it
    BACKOFF = "backoff"  # starts again in a moment after a failed attempt
    QUOTA = "quota"  # its project, or its user in it, has as much as they may
    GPU_HEADROOM = "kept_for_gpus"  # would fit, but takes what jobs with GPUs need beside the free GPUs of a node
    BOOKED = "booked"  # would fit, but an administrator reserved these nodes for another project
    PREEMPTING = "preempting"  # others are being stopped to make room for it


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a job waits: one sentence for people, the numbers behind it for programs."""

    code: ReasonCode
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
    """Start this job now. ``placements``: every replica, in rank order; of an elastic role, as many as there is place for."""

    job_id: JobId
    placements: tuple[Placement, ...]


@dataclass(frozen=True, slots=True)
class Grow:
    """Add these replicas to this elastic job, which runs."""

    job_id: JobId
    placements: tuple[Placement, ...]


class PreemptCode(StrEnum):
    """By what right a job is made to give its place."""

    PRIORITY = "priority"  # a job of larger priority needs it
    GUARANTEE = "guarantee"  # its project borrowed it from one that wants what is guaranteed to it
    FAIR_SHARE = "fair_share"  # its project has more than its share, the other one less
    TIME_SLICE = "time_slice"  # its turn is over, others of equal priority come first or have had fewer
    BOOKING = "booking"  # the node is reserved for another project from now on
    DRAIN = "drain"  # the administrator empties its node
    MOVE = "move"  # it goes on elsewhere, so that a large gang finds room


@dataclass(frozen=True, slots=True)
class Preempt:
    """End this job's attempt; the job goes back to the queue and on from its last checkpoint. ``for_job``: who gets the place."""

    job_id: JobId
    for_job: JobId | None
    code: PreemptCode
    sentence: str


@dataclass(frozen=True, slots=True)
class Shrink:
    """Take these replicas (by index) of its elastic role from a job that runs on with the others."""

    job_id: JobId
    role: str
    indices: tuple[int, ...]
    for_job: JobId | None
    sentence: str


@dataclass(frozen=True, slots=True)
class Migration:
    """A proposal: were ``job_id`` ended and started again at ``placements``, ``for_job`` could start. Not applied by itself."""

    job_id: JobId
    for_job: JobId
    placements: tuple[Placement, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do now, in order, and why everybody else waits. ``waits`` has every queued job that is not started.

    ``order``: every queued job as the planner takes them, the first first; empty in :func:`.planner.plan_to_apply`.
    """

    starts: tuple[Start, ...] = ()
    waits: Mapping[JobId, Reason] = field(default_factory=dict)
    grows: tuple[Grow, ...] = ()
    preempts: tuple[Preempt, ...] = ()
    shrinks: tuple[Shrink, ...] = ()
    moves: tuple[Migration, ...] = ()
    order: tuple[JobId, ...] = ()
