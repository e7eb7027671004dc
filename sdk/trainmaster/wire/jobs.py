"""Jobs, attempts, replicas, events, checkpoints, logs and files on the wire."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final, Literal

from pydantic import Field

from trainmaster.spec import JobSpec
from trainmaster.wire.base import WireModel, WireRequest

JobState = Literal[
    "queued", "starting", "running", "paused", "cancelling", "succeeded", "failed", "cancelled", "expired"
]
TERMINAL_STATES: frozenset[str] = frozenset({"succeeded", "failed", "cancelled", "expired"})


_IMPOSSIBLE: Final = frozenset({"never_fits", "no_matching_node", "too_large"})


class WaitReasonView(WireModel):
    """Why a job waits: the planner's own words and the numbers behind them."""

    code: str
    sentence: str
    numbers: dict[str, Any] = Field(default_factory=dict)

    @property
    def is_impossible(self) -> bool:
        """Whether no end of another job can help: only other nodes, other settings or another spec."""
        return self.code in _IMPOSSIBLE or bool(self.numbers.get("is_never"))


class ExitView(WireModel):
    """How something ended. ``kind``: user_error, out_of_memory, transient, hardware, capacity, platform,
    deadline, cancelled, success.
    """

    kind: str
    sentence: str
    exit_code: int | None = None
    role: str | None = None
    index: int | None = None


class ReplicaView(WireModel):
    role: str
    index: int
    rank: int | None  # its place among those with ranks; `null` for a ps and others without one
    state: str
    generation: int
    node: str
    gpus: list[str] = Field(default_factory=list)
    gpu_part: float | None = None  # of its one device, which others may share; none: it has them whole
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
    world: int = 1  # of an elastic gang: how many layouts it has had
    world_reason: str = ""  # why the newest one is another than that before
    resume_from: str | None = None
    end: ExitView | None = None
    is_counted: bool = False
    created_at: datetime
    started_at: datetime | None = None
    ended_at: datetime | None = None
    replicas: list[ReplicaView] = Field(default_factory=list)


class CheckpointView(WireModel):
    """``path``: a file, a folder, or the prefix of TensorFlow's files, relative to the job's output.

    ``metrics``: at its step. ``problem``: why it is not complete. ``is_pinned``: a user protected it from deletion. ``is_in_use``: a job
    that has not ended goes on from it.
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
    """A job as lists show it."""

    id: str
    name: str
    project: str
    user: str
    state: JobState
    wanted: str
    priority: int
    labels: dict[str, str] = Field(default_factory=dict)
    roles: dict[str, int] = Field(default_factory=dict)  # role -> replicas
    most_replicas: dict[str, int] = Field(default_factory=dict)  # of elastic roles: `roles` says how few may run
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
    ran_s: float = 0.0  # of all attempts that are over, without the waits and pauses between them
    running_since: datetime | None = None  # start of the attempt that runs now
    output: str = ""  # volume/path
    cloned_from: str | None = None
    generation: int = 1


class TrialOf(WireModel):
    """Which trial a job is: of the study with this id and name, its number, and the point that it tries."""

    study_id: str
    study: str
    number: int
    parameters: dict[str, Any] = Field(default_factory=dict)


class JobDetail(JobView):
    """One job with its spec, its queue position and its newest attempt. ``trial``: of a study's trial alone."""

    spec: JobSpec
    queue_position: int | None = None  # 1 is next; `null`: it does not wait, or can never start
    attempt: AttemptView | None = None
    trial: TrialOf | None = None


class SubmitRequest(WireRequest):
    """``spec`` as the user wrote it, shorthands included, or ``spec_text`` as YAML."""

    spec: dict[str, Any] | None = None
    spec_text: str | None = Field(default=None, max_length=1_048_576)
    dry_run: bool = False


class CloneRequest(WireRequest):
    """``changes`` is laid over the spec, key by key (JSON merge patch, RFC 7396)."""

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
        description="Go on from this one of its checkpoints, not the newest.",
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
    """``offset`` is the byte after the line in its file: give it back to go on from there.

    ``rank``: of the process that wrote it; ``None`` for the platform's own lines in a file that several processes share,
    and for replicas without ranks. ``local_rank``: that process' number in its replica, where several share the file.
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
    """A file or folder of a job's output. A link is told as what it leads to, with ``is_link``."""

    path: str
    is_dir: bool
    is_link: bool = False
    size_bytes: int
    modified_at: datetime


class TensorBoardAsk(WireRequest):
    jobs: list[str] = Field(min_length=1, max_length=50, description="Ids or names of jobs to show side by side.")


class TensorBoardLinkView(WireModel):
    """``path`` is below the server's address and is the right to look: no token is asked for."""

    path: str
    jobs: list[str]
    expires_at: datetime


class ArchiveView(WireModel):
    digest: str
    size_bytes: int
    received_bytes: int
    is_complete: bool
