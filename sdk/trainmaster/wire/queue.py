"""API models of the queue, the running jobs and the fair shares."""

from __future__ import annotations

from datetime import datetime

from pydantic import Field

from trainmaster.wire.base import Page, WireModel
from trainmaster.wire.forecasts import ExpectedStartView
from trainmaster.wire.jobs import WaitReasonView


class WaitingJobView(WireModel):
    """A waiting job. Of jobs that the caller may not see, only position and requested resources are shown."""

    position: int | None = None  # 1 is next; `null`: it can never start on the present cluster
    job_id: str | None = None
    name: str | None = None
    project: str | None = None
    user: str | None = None
    priority: int
    priority_class: str | None = None
    roles: dict[str, int] = Field(default_factory=dict)
    gpus: float = 0  # of the whole gang, with fractions of GPUs
    cpus: float = 0  # of the whole gang, like the memory
    memory_bytes: int = 0
    gpu_models: list[str] = Field(default_factory=list)  # accepted by any role; empty: any
    queued_at: datetime
    reason: WaitReasonView | None = None
    start: ExpectedStartView | None = None  # `null`: not computed


class QueuePage(Page[WaitingJobView]):
    """One page of the waiting jobs in queue order. ``waiting``: total number, of all projects.

    ``planned_at``: time of the last scheduling tick.
    """

    waiting: int
    planned_at: datetime | None = None


class RunningJobView(WireModel):
    """A running job. ``ends_at``: latest end (by `max_run_time`); ``likely_end_at``: expected end.

    Of jobs that the caller may not see, only resources and ends are shown.
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
    gpu_models: dict[str, float] = Field(default_factory=dict)  # model -> number of allocated GPUs
    replicas: int = 0
    started_at: datetime | None = None
    ends_at: datetime | None = None
    likely_end_at: datetime | None = None


class UserShareView(WireModel):
    """A user's part of a project's share, with the numbers of ``ShareView``."""

    user: str
    allocated: float
    usage: float
    running: int
    waiting: int


class ShareView(WireModel):
    """A project's dominant share of the cluster, from 0 to 1: the largest of its shares of CPU, memory and GPU models.

    ``allocated``: present share. ``wanted``: including its waiting jobs, at most 1. ``entitlement``: its fair share by
    weight among the projects with demand. ``usage``: exponentially decayed average of the past. ``project`` is `null`
    for all projects together that the caller may not see.
    """

    project: str | None
    weight: float
    allocated: float
    wanted: float
    entitlement: float
    usage: float | None = None
    gpus: dict[str, float] = Field(default_factory=dict)  # model -> allocated GPUs
    cpus: float = 0  # allocated, like the memory
    memory_bytes: int = 0
    running: int  # jobs
    waiting: int
    users: list[UserShareView] = Field(default_factory=list)


class SharesView(WireModel):
    """The projects' shares, and the total resources of the schedulable nodes (``gpus``: by model)."""

    projects: list[ShareView]
    gpus: dict[str, float] = Field(default_factory=dict)
    cpu_milli: int = 0
    memory_bytes: int = 0
