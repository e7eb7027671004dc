"""The queue on the wire: who waits in which order and why, who runs until when, and who has which share."""

from __future__ import annotations

from datetime import datetime

from pydantic import Field

from trainmaster.wire.base import Page, WireModel
from trainmaster.wire.forecasts import ExpectedStartView
from trainmaster.wire.jobs import WaitReasonView


class WaitingJobView(WireModel):
    """A job that waits. Of jobs that the caller may not see only their place and what they ask for is told."""

    position: int | None = None  # 1 is next; `null`: none, as no end of another job lets it ever start
    job_id: str | None = None
    name: str | None = None
    project: str | None = None
    user: str | None = None
    priority: int
    priority_class: str | None = None
    roles: dict[str, int] = Field(default_factory=dict)
    gpus: float = 0  # of the whole gang; parts of one GPU count as such
    cpus: float = 0  # of the whole gang, and so the memory
    memory_bytes: int = 0
    gpu_models: list[str] = Field(default_factory=list)  # that any role accepts; empty: any
    queued_at: datetime
    reason: WaitReasonView | None = None
    start: ExpectedStartView | None = None  # when it is expected to; `null`: not worked out


class QueuePage(Page[WaitingJobView]):
    """One page of the waiting jobs in the planner's order. ``waiting``: how many there are in all, of everybody.

    ``planned_at``: when the planner last looked.
    """

    waiting: int
    planned_at: datetime | None = None


class RunningJobView(WireModel):
    """A job that holds resources. ``ends_at``: by when it surely ends (its `max_run_time`); ``likely_end_at``: when that is
    expected. Of jobs that the caller may not see it is told only that they hold something until then.
    """

    job_id: str | None = None
    name: str | None = None
    project: str | None = None
    user: str | None = None
    state: str
    priority: int
    gpus: float = 0
    cpus: float = 0
    memory_bytes: int = 0
    gpu_models: dict[str, float] = Field(default_factory=dict)  # model -> how many it holds
    replicas: int = 0
    started_at: datetime | None = None
    ends_at: datetime | None = None
    likely_end_at: datetime | None = None


class UserShareView(WireModel):
    """A user's part of a project's share; the numbers mean what they mean of a project."""

    user: str
    allocated: float
    usage: float
    running: int
    waiting: int


class ShareView(WireModel):
    """A project's share of the cluster, from 0 to 1: of what it has most of, be it CPU, memory or a GPU model.

    ``held``: now. ``wanted``: with all that its waiting jobs ask for, at most 1. ``entitlement``: what is due to it by its
    weight among those who want something. ``usage``: the mean over the past, in which what was lately counts more.
    ``project`` is `null` for all projects together that the caller may not see.
    """

    project: str | None
    weight: float
    allocated: float
    wanted: float
    entitlement: float
    usage: float | None = None
    gpus: dict[str, float] = Field(default_factory=dict)  # model -> GPUs held
    cpus: float = 0  # held, and so the memory
    memory_bytes: int = 0
    running: int  # jobs
    waiting: int
    users: list[UserShareView] = Field(default_factory=list)


class SharesView(WireModel):
    """Who has which share. ``gpus``: how many of each model the nodes have that are open."""

    projects: list[ShareView]
    gpus: dict[str, float] = Field(default_factory=dict)
    cpu_milli: int = 0
    memory_bytes: int = 0
