"""The planner's values: a snapshot goes in, a plan with reasons comes out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from core.domain.ids import JobId, NodeId
from core.domain.resources import Amounts, Gang


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node and what is free on it (allocatable minus all that runs or is about to).

    ``labels`` carries ``topology/rack`` and ``topology/zone`` where known.
    """

    id: NodeId
    labels: Mapping[str, str]
    allocatable: Amounts
    free: Amounts
    is_schedulable: bool = True
    why_not: str = ""  # a phrase, such as "is cordoned", when not schedulable


@dataclass(frozen=True, slots=True)
class QueuedGang:
    """A waiting job. ``max_run_time_s`` is only an upper bound; ``None`` if the user stated none."""

    job_id: JobId
    name: str
    project: str
    user: str
    priority: int  # 0 to 100, larger first
    queued_at: datetime
    gang: Gang
    shape: str  # gang.shape(), computed once
    max_run_time_s: float | None = None


@dataclass(frozen=True, slots=True)
class RunningGang:
    """A job that holds resources. ``nodes``: one (role, node) per replica, in rank order.

    ``gpu_models``: the model each replica got, in the same order; empty: worked out from the request and the node,
    which is only a guess where a node has two models.
    """

    job_id: JobId
    name: str
    project: str
    priority: int
    gang: Gang
    nodes: tuple[tuple[str, NodeId], ...]
    expected_end: datetime | None = None  # start + max_run_time, if stated
    gpu_models: tuple[str | None, ...] = ()


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
class Snapshot:
    """Everything a plan depends on. The order of the tuples does not matter. ``growing``: some of those that run."""

    now: datetime
    nodes: tuple[NodeView, ...]
    queued: tuple[QueuedGang, ...]
    running: tuple[RunningGang, ...] = ()
    growing: tuple[GrowingGang, ...] = ()


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


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do now, in order, and why everybody else waits. ``waits`` has every queued job that is not started."""

    starts: tuple[Start, ...] = ()
    waits: Mapping[JobId, Reason] = field(default_factory=dict)
    grows: tuple[Grow, ...] = ()
