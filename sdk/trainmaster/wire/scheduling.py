"""API models of the queue, the running jobs and the fair shares; of quotas, reservations and the policy."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final, Literal

from pydantic import Field

from trainmaster.spec.fields import LabelKey, LabelValue, Name
from trainmaster.spec.model import MAX_ENTRIES
from trainmaster.wire.base import AmountText, Finite, Page, Weight, WireModel, WireRequest
from trainmaster.wire.forecasts import ExpectedStartView
from trainmaster.wire.jobs import WaitReasonView

_MOST_NAMES: Final = 64


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


class ForecastAccuracyView(WireModel):
    """How good the last expected starts were, compared with the real starts.

    ``forecasts``: number of those compared, at most 200: of each wait the first, and the one that was valid in the
    middle of it. ``inside``: how many intervals (``early_at`` to ``late_at``) contained the real start; intervals are
    made so that ``target`` of them do.
    """

    forecasts: int
    inside: int
    median_error_s: float
    target: float = 0.9
    sentence: str


class QueuePage(Page[WaitingJobView]):
    """One page of the waiting jobs in queue order. ``waiting``: total number, of all projects.

    ``planned_at``: time of the last scheduling tick. ``accuracy``: of the expected starts; `null` before the first
    job has started after a wait.
    """

    waiting: int
    planned_at: datetime | None = None
    accuracy: ForecastAccuracyView | None = None


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


class QuotaLineView(WireModel):
    """One resource of a quota. ``what``: `jobs` (running jobs), `cpu` (CPUs), `memory` (bytes), `gpus` (of all models),
    `gpus/<model>`, or `storage` (bytes; see ``StorageView``). ``capacity``: total of the schedulable nodes.
    """

    what: str
    used: float = 0
    limit: float | None = None
    guaranteed: float | None = None
    user_limit: float | None = None  # of each user
    capacity: float | None = None


class QuotaUserView(WireModel):
    """A user of the project: present usage, individual limits, and guarantees inside the project."""

    user: str
    used: dict[str, float] = Field(default_factory=dict)
    limit: dict[str, float] = Field(default_factory=dict)
    guaranteed: dict[str, float] = Field(default_factory=dict)
    weight: float = 1.0


class StorageView(WireModel):
    """A project's use of storage, in bytes: as last measured, and what was uploaded since. ``parts``: measured, of
    `outputs` (with logs and checkpoints), `archives` (code), `uploads` (unfinished), `models` and `metrics`.
    ``measured_at``: `null` before the first measurement. ``unreadable_folders`` are not counted.
    """

    used: int = 0
    limit: int | None = None
    percent: float | None = None
    parts: dict[str, int] = Field(default_factory=dict)
    measured_at: datetime | None = None
    unreadable_folders: int = 0


class QuotaView(WireModel):
    """A project's quota. ``max_priority``: maximum priority of its jobs. ``warnings``: about valid but probably
    unintended settings, and storage that is nearly full.
    """

    project: str
    weight: float
    max_priority: int | None = None
    lines: list[QuotaLineView] = Field(default_factory=list)
    users: list[QuotaUserView] = Field(default_factory=list)
    storage: StorageView = Field(default_factory=StorageView)
    warnings: list[str] = Field(default_factory=list)


class QuotaUpdate(WireRequest):
    """Changes of a quota: `null` removes a limit, omitted fields stay unchanged. Keys: see ``QuotaLineView.what``."""

    limit: dict[str, AmountText] = Field(default_factory=dict, max_length=_MOST_NAMES)
    guaranteed: dict[str, AmountText] = Field(default_factory=dict, max_length=_MOST_NAMES)
    user_limit: dict[str, AmountText] = Field(
        default_factory=dict, max_length=_MOST_NAMES, description="Limits for each user of the project."
    )
    users: dict[str, dict[str, AmountText] | None] = Field(
        default_factory=dict,
        max_length=1000,
        description="Limits of single users instead of `user_limit`; `null` for a user removes all.",
    )
    user_guaranteed: dict[str, dict[str, AmountText] | None] = Field(
        default_factory=dict,
        max_length=1000,
        description="Guarantees of single users against other users of the project; `null` for a user removes all.",
    )
    user_weights: dict[str, Weight | None] = Field(
        default_factory=dict, max_length=1000, description="Weights of users inside the project; default: 1."
    )
    weight: Weight | None = Field(default=None, description="Weight of the project's fair share.")
    max_priority: int | str | None = Field(default=None, description="0 to 100, or low, normal, high, urgent.")


class ReservationView(WireModel):
    """A reservation. ``name`` and ``project`` are `null` if the caller may not see the project."""

    id: str
    name: str | None = None
    project: str | None = None
    nodes: list[str]
    begins_at: datetime
    ends_at: datetime
    is_active: bool  # now
    warnings: list[str] = Field(default_factory=list)


class ReservationCreate(WireRequest):
    """Reserve nodes by name, or by ``node_selector``: all with these labels, or the ``count`` least used of them."""

    name: Name
    project: str = Field(max_length=100)
    nodes: list[str] = Field(default_factory=list, max_length=10_000)
    node_selector: dict[LabelKey, LabelValue] = Field(default_factory=dict, max_length=MAX_ENTRIES)
    count: int | None = Field(default=None, ge=1, le=10_000)
    begins_at: datetime | None = Field(default=None, description="Default: now. Without an offset: UTC.")
    ends_at: datetime


class SettingView(WireModel):
    """One setting. ``value``: times in seconds, `null` for off. ``text``: the value as written by users, such as `10m`.

    ``meaning``: a description in one sentence.
    """

    name: str
    kind: Literal["choice", "switch", "duration", "durations", "number"]
    value: Any
    text: str
    default_text: str
    choices: list[str] = Field(default_factory=list)
    can_be_off: bool = False
    meaning: str


class PolicyView(WireModel):
    """All settings. ``warnings``: about valid but probably unintended settings."""

    settings: list[SettingView]
    updated_at: datetime | None = None
    updated_by: str | None = None
    warnings: list[str] = Field(default_factory=list)


class PolicyUpdate(WireRequest):
    """``settings``: new values by name: a choice, `true` or `false`, a number, a time in seconds or like `10m`, `null`
    or `off` if the setting can be off, or `default`.
    """

    settings: dict[str, Finite] = Field(min_length=1, max_length=64)
