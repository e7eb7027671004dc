"""API models of jobs, attempts, replicas, events, checkpoints, logs and files, and of differences of code."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final, Literal

from pydantic import Field, computed_field

from trainmaster.spec import JobSpec
from trainmaster.wire.base import WireModel, WireRequest

JobState = Literal[
    "queued", "starting", "running", "paused", "cancelling", "succeeded", "failed", "cancelled", "expired"
]
TERMINAL_STATES: frozenset[str] = frozenset({"succeeded", "failed", "cancelled", "expired"})
# Codes of jobs that cannot start, whatever other jobs end.
INFEASIBLE_CODES: Final = frozenset({"never_fits", "no_matching_node", "too_large"})


class WaitReasonView(WireModel):
    """Why a job waits: the planner's explanation with its numbers."""

    code: str
    sentence: str
    numbers: dict[str, Any] = Field(default_factory=dict)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def is_infeasible(self) -> bool:
        """Whether the job can never start without other nodes, settings or spec, whatever other jobs end."""
        return self.code in INFEASIBLE_CODES or bool(self.numbers.get("is_never"))


class ExitView(WireModel):
    """How a job, attempt or replica ended. ``kind``: user_error, out_of_memory, transient, hardware, capacity,
    platform, deadline, cancelled, success.
    """

    kind: str
    sentence: str
    exit_code: int | None = None
    role: str | None = None
    index: int | None = None


class ReplicaView(WireModel):
    role: str
    index: int
    rank: int | None  # `null` for ps and other replicas without a rank
    state: str
    generation: int
    node: str
    gpus: list[str] = Field(default_factory=list)
    gpu_part: float | None = None  # fraction of a shared GPU; none: whole GPUs
    address: str | None = None  # host:port of the framework
    exit: ExitView | None = None
    detail: str = ""
    facts: dict[str, Any] = Field(default_factory=dict)
    started_at: datetime | None = None
    ended_at: datetime | None = None
    heartbeat_at: datetime | None = None
    progress: dict[str, Any] = Field(default_factory=dict)


class AttemptView(WireModel):
    id: str
    number: int
    state: str
    executor: str
    world: int = 1  # of an elastic gang: number of its worlds (layouts) so far
    world_reason: str = ""  # why the newest world replaced the previous one
    resume_from: str | None = None
    end: ExitView | None = None
    is_counted: bool = False
    created_at: datetime
    started_at: datetime | None = None
    ended_at: datetime | None = None
    replicas: list[ReplicaView] = Field(default_factory=list)


class CheckpointView(WireModel):
    """``path``: a file, a folder, or the prefix of TensorFlow's files, relative to the job's output.

    ``metrics``: at its step. ``problem``: why it is not complete. ``is_pinned``: a user protected it from deletion.
    ``is_in_use``: a job that has not ended goes on from it.
    """

    path: str
    step: int | None = None
    metrics: dict[str, Any] = Field(default_factory=dict)
    size_bytes: int | None = None
    attempt_number: int | None = None
    created_at: datetime
    format: str = ""
    is_dir: bool = False
    is_complete: bool = True
    problem: str = ""
    is_pinned: bool = False
    is_in_use: bool = False


class JobView(WireModel):
    """A job as shown in lists."""

    id: str
    name: str
    project: str
    user: str
    state: JobState
    wanted: str
    priority: int
    labels: dict[str, str] = Field(default_factory=dict)
    roles: dict[str, int] = Field(default_factory=dict)  # role -> replicas
    most_replicas: dict[str, int] = Field(default_factory=dict)  # maximum of elastic roles; `roles` has the minimum
    gpu_count: float = 0  # of all replicas together
    attempt_count: int = 0
    restart_count: int = 0
    wait_reason: WaitReasonView | None = None  # only while it waits
    exit: ExitView | None = None
    progress: dict[str, Any] = Field(default_factory=dict)
    created_at: datetime
    queued_at: datetime
    started_at: datetime | None = None
    finished_at: datetime | None = None
    ran_s: float = 0.0  # total running time of the ended attempts
    running_since: datetime | None = None  # start of the running attempt
    output: str = ""  # volume/path
    cloned_from: str | None = None
    pinned_by: str | None = None  # the user who exempted it from retention
    expired: dict[str, datetime] = Field(default_factory=dict)  # when retention deleted its outputs, logs, …
    generation: int = 1


class TrialOf(WireModel):
    """The trial that a job runs: its study, number and parameters."""

    study_id: str
    study: str
    number: int
    parameters: dict[str, Any] = Field(default_factory=dict)


class SpeedView(WireModel):
    """Mean speed of an elastic job with so many ``replicas`` of its elastic role, over ``measured_s`` seconds."""

    replicas: int
    steps_per_s: float
    measured_s: float


class JobDetail(JobView):
    """One job with its spec, queue position and newest attempt. ``trial``: for jobs of a study. ``speeds``: of an
    elastic job. ``growth_note``: why it does not grow, if its measured speeds say so. ``warnings``: of a job that has
    not ended, if its project's storage is nearly full.
    """

    spec: JobSpec
    queue_position: int | None = None  # 1 is next; `null`: not waiting, or can never start
    attempt: AttemptView | None = None
    trial: TrialOf | None = None
    speeds: list[SpeedView] = Field(default_factory=list)
    growth_note: str = ""
    warnings: list[str] = Field(default_factory=list)


class SubmitRequest(WireRequest):
    """``spec`` as users write it (shorthands allowed), or ``spec_text`` as YAML."""

    spec: dict[str, Any] | None = None
    spec_text: str | None = Field(default=None, max_length=1_048_576)
    dry_run: bool = False


class CloneRequest(WireRequest):
    """``changes``: JSON merge patch for the spec (RFC 7396)."""

    changes: dict[str, Any] = Field(default_factory=dict)
    resume: bool = False  # start from the newest checkpoint of the original
    checkpoint: str | None = Field(
        default=None, min_length=1, max_length=4096, description="Start from this checkpoint of the original instead."
    )


class ReasonRequest(WireRequest):
    reason: str = Field(default="", max_length=1000)


class ResumeRequest(ReasonRequest):
    checkpoint: str | None = Field(
        default=None,
        min_length=1,
        max_length=4096,
        description="Resume from this checkpoint instead of the newest.",
    )


class EventView(WireModel):
    id: int
    at: datetime
    job_id: str | None = None
    attempt_id: str | None = None
    kind: str
    actor: str
    reason: str = ""
    data: dict[str, Any] = Field(default_factory=dict)


class LogSource(WireModel):
    """One log file. ``name`` is ``<role>-<index>``."""

    attempt: int
    role: str
    index: int
    name: str
    size_bytes: int


class LogLine(WireModel):
    """A log line. ``offset``: byte offset after the line in its file, to continue from.

    ``rank``: of the process that wrote it; ``None`` for replicas without ranks, and for the platform's lines in a file
    shared by several processes. ``local_rank``: the process's number in its replica, if several share the file.
    """

    attempt: int
    role: str
    index: int
    offset: int
    at: datetime | None = None
    rank: int | None = None
    local_rank: int | None = None
    text: str


class FileEntry(WireModel):
    """A file or folder of a job's output. A link is shown as its target, with ``is_link``."""

    path: str
    is_dir: bool
    is_link: bool = False
    size_bytes: int
    modified_at: datetime


class TensorBoardRequest(WireRequest):
    jobs: list[str] = Field(min_length=1, max_length=50, description="Ids or names of jobs to show side by side.")


class TensorBoardLinkView(WireModel):
    """``path``: relative to the server's URL; it grants access without a token."""

    path: str
    jobs: list[str]
    expires_at: datetime


class ArchiveView(WireModel):
    digest: str
    size_bytes: int
    received_bytes: int
    is_complete: bool


class CodeFileDifference(WireModel):
    """A file that differs.

    A text is ``null`` if the file does not exist on that side, or for the reason in ``note``.
    """

    path: str
    change: Literal["added", "removed", "changed"]
    size_before: int | None = None
    size_after: int | None = None
    text_before: str | None = None
    text_after: str | None = None
    note: str = ""


class CodeDifference(WireModel):
    """Differences between two code archives. ``before``, ``after``: their digests; ``null`` for a job without code."""

    before: str | None = None
    after: str | None = None
    same_count: int = Field(description="Number of equal files.")
    differ_count: int
    items: list[CodeFileDifference] = Field(description="Different files by path; at most 500.")
