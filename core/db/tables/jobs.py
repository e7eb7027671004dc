"""Jobs, attempts, replicas, checkpoints and events."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Float,
    ForeignKey,
    Index,
    Integer,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.orm import Mapped, mapped_column

from core.db.tables.base import Base, BigId


class Job(Base):
    """One submitted job. ``state`` changes only by ``core.domain.jobs.lifecycle``.

    ``desired_state``: what the user has asked for since (run | pause | cancel); the control loop reconciles towards it.
    ``not_before`` delays the next attempt (backoff). ``wait_reason``: this job's own reason; if null, the reason of its
    ``shape`` applies (see ``WaitReason``).
    """

    __tablename__ = "jobs"
    id: Mapped[str] = mapped_column(primary_key=True)
    project_id: Mapped[str] = mapped_column(ForeignKey("projects.id"))
    user_id: Mapped[str] = mapped_column(ForeignKey("users.id"))
    name: Mapped[str]
    spec: Mapped[dict[str, Any]]
    gang: Mapped[dict[str, Any]]
    shape: Mapped[str]
    # GPUs of the whole gang, in thousandths.
    gpu_milli: Mapped[int] = mapped_column(Integer, default=0, server_default="0")
    state: Mapped[str]
    desired_state: Mapped[str] = mapped_column(default="run")
    generation: Mapped[int] = mapped_column(Integer, default=1)
    priority: Mapped[int] = mapped_column(Integer)
    max_run_time_s: Mapped[float | None] = mapped_column(Float)
    wait_reason: Mapped[dict[str, Any] | None]
    attempt_count: Mapped[int] = mapped_column(Integer, default=0)
    restart_count: Mapped[int] = mapped_column(Integer, default=0)  # restarts that count against max_restarts
    not_before: Mapped[datetime | None]
    exit: Mapped[dict[str, Any] | None]  # classification of the exit, with its sentence
    preempting_since: Mapped[datetime | None]  # since when others are, or were, preempted for it while it waits
    output_volume: Mapped[str]
    output_path: Mapped[str] = mapped_column(Text)
    resume_from: Mapped[str | None] = mapped_column(Text)
    resume_choice: Mapped[dict[str, Any] | None]  # the checkpoint that a user chose to resume from
    # Of its ended attempts: run time in seconds, and attained service in GPU-seconds of all replicas (of a gang without
    # GPUs, its seconds).
    run_s: Mapped[float] = mapped_column(Float, default=0.0, server_default="0")
    attained_gpu_s: Mapped[float] = mapped_column(Float, default=0.0, server_default="0")
    # while it waits, why it was preempted
    preemption: Mapped[dict[str, Any] | None]
    preempt_count: Mapped[int] = mapped_column(Integer, default=0, server_default="0")
    waiting_since: Mapped[datetime | None]  # since when it has been without resources, if later than queued_at
    cloned_from: Mapped[str | None]
    # its study, if it is a trial
    trial: Mapped[dict[str, Any] | None]
    created_at: Mapped[datetime]
    queued_at: Mapped[datetime]
    started_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]
    deleted_at: Mapped[datetime | None]
    pinned_by: Mapped[str | None]  # the user who exempted it from retention
    # When retention deleted which of its data: {kind: time}, see core.domain.sharing.retention.
    expired: Mapped[dict[str, Any] | None]
    updated_at: Mapped[datetime]
    __table_args__ = (
        Index("ix_jobs_project_id_created_at", "project_id", "created_at", "id"),
        Index("ix_jobs_created_at", "created_at", "id"),
        Index("ix_jobs_state_priority", "state", "priority", "queued_at"),
        Index("ix_jobs_name", "name"),
        Index("ix_jobs_finished_at", "finished_at"),
    )


class JobLabel(Base):
    """Labels by which jobs are listed; the roles of a job are stored here too, under the key ``.role``."""

    __tablename__ = "job_labels"
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    key: Mapped[str] = mapped_column(primary_key=True)
    value: Mapped[str] = mapped_column(primary_key=True)
    __table_args__ = (Index("ix_job_labels_key_value", "key", "value", "job_id"),)


class IdempotencyKey(Base):
    __tablename__ = "idempotency_keys"
    user_id: Mapped[str] = mapped_column(ForeignKey("users.id"), primary_key=True)
    key: Mapped[str] = mapped_column(primary_key=True)
    request_digest: Mapped[str]
    job_id: Mapped[str]
    created_at: Mapped[datetime] = mapped_column(index=True)


class Attempt(Base):
    """One launch of the whole gang. ``end``: why it ended; ``counts_as_restart``: counts against max_restarts.

    ``stop``: null, or why the platform is stopping it (``{"cause": …, "sentence": …, "at": …}``).
    """

    __tablename__ = "attempts"
    id: Mapped[str] = mapped_column(primary_key=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"))
    number: Mapped[int] = mapped_column(Integer)
    state: Mapped[str]
    generation: Mapped[int] = mapped_column(Integer, default=1)
    executor: Mapped[str]
    layout: Mapped[list[Any] | None]
    world: Mapped[int] = mapped_column(Integer, default=1)  # number of the current layout
    world_reason: Mapped[str] = mapped_column(Text, default="")  # why the layout changed last
    resume_from: Mapped[str | None] = mapped_column(Text)
    stop: Mapped[dict[str, Any] | None]
    end: Mapped[dict[str, Any] | None]
    counts_as_restart: Mapped[bool] = mapped_column(Boolean, default=False)
    platform_version: Mapped[str | None]  # of the platform that started it, and hence of its runtime
    created_at: Mapped[datetime]
    started_at: Mapped[datetime | None]
    decided_at: Mapped[datetime | None]  # when the deciding roles finished; the evaluators' grace starts here
    ended_at: Mapped[datetime | None]
    swept_at: Mapped[datetime | None]  # when the executor's objects were removed
    __table_args__ = (
        UniqueConstraint("job_id", "number"),
        Index("ix_attempts_state", "state"),
        Index("ix_attempts_ended_at", "ended_at"),
    )


class Replica(Base):
    """A member of an attempt's gang, and the resources it holds on its node until it ends."""

    __tablename__ = "replicas"
    id: Mapped[str] = mapped_column(primary_key=True)
    attempt_id: Mapped[str] = mapped_column(ForeignKey("attempts.id"))
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), index=True)
    role: Mapped[str]
    index: Mapped[int] = mapped_column("replica_index", Integer)
    rank: Mapped[int] = mapped_column(Integer)  # position in the layout
    generation: Mapped[int] = mapped_column(Integer, default=1)
    state: Mapped[str]
    node: Mapped[str]
    gpus: Mapped[list[Any]]
    gpu_model: Mapped[str | None]
    # Thousandths of its one device; 0: whole devices, or none.
    gpu_milli: Mapped[int] = mapped_column(Integer, default=0, server_default="0")
    cpu_milli: Mapped[int] = mapped_column(Integer)
    memory_bytes: Mapped[int] = mapped_column(BigInteger)
    exit: Mapped[dict[str, Any] | None]
    detail: Mapped[str] = mapped_column(Text, default="")
    facts: Mapped[dict[str, Any]] = mapped_column(default=dict)
    placed_at: Mapped[datetime | None]  # later than its attempt was, if it joined an elastic gang
    started_at: Mapped[datetime | None]
    ended_at: Mapped[datetime | None]
    heartbeat_at: Mapped[datetime | None]
    report_seq: Mapped[int] = mapped_column(BigInteger, default=0)
    progress: Mapped[dict[str, Any]] = mapped_column(default=dict)  # step, steps, epoch, metrics (last values)
    # why this running replica is being removed from its elastic gang
    removal: Mapped[dict[str, Any] | None]
    __table_args__ = (
        UniqueConstraint("attempt_id", "role", "replica_index"),
        Index("ix_replicas_state_node", "state", "node"),
    )


class JobSpeed(Base):
    """Mean speed of an elastic job with so many ``replicas`` of its elastic role; ``measured_s``: seconds measured."""

    __tablename__ = "job_speeds"
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    replicas: Mapped[int] = mapped_column(Integer, primary_key=True)
    steps_per_s: Mapped[float] = mapped_column(Float)
    measured_s: Mapped[float] = mapped_column(Float)
    updated_at: Mapped[datetime] = mapped_column(index=True)


class Checkpoint(Base):
    """A complete checkpoint reported by a job. ``path`` is relative to the job's output."""

    __tablename__ = "checkpoints"
    id: Mapped[str] = mapped_column(primary_key=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"))
    attempt_id: Mapped[str] = mapped_column(ForeignKey("attempts.id"))
    path: Mapped[str] = mapped_column(Text)
    step: Mapped[int | None] = mapped_column(BigInteger)
    metrics: Mapped[dict[str, Any]] = mapped_column(default=dict)
    size_bytes: Mapped[int | None] = mapped_column(BigInteger)
    created_at: Mapped[datetime]
    __table_args__ = (UniqueConstraint("job_id", "path"),)


class PinnedCheckpoint(Base):
    """A checkpoint that no retention rule deletes. ``path`` is relative to the job's output."""

    __tablename__ = "pinned_checkpoints"
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    path: Mapped[str] = mapped_column(Text, primary_key=True)
    user: Mapped[str]
    created_at: Mapped[datetime]


class Retention(Base):
    """The retention rule of a job's checkpoints: a ``core.domain.jobs.retention.RetentionRule`` as JSON."""

    __tablename__ = "retentions"
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    rule: Mapped[dict[str, Any]]
    user: Mapped[str]
    updated_at: Mapped[datetime]


class Event(Base):
    """One event of the history. ``actor``: ``user:<name>``, ``scheduler``, ``executor``, ``runtime:<role>-<index>``."""

    __tablename__ = "events"
    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    at: Mapped[datetime]
    project_id: Mapped[str | None]
    job_id: Mapped[str | None]
    attempt_id: Mapped[str | None]
    kind: Mapped[str]  # noun.verb, such as job.queued
    actor: Mapped[str]
    reason: Mapped[str] = mapped_column(Text, default="")
    data: Mapped[dict[str, Any]] = mapped_column(default=dict)
    __table_args__ = (
        Index("ix_events_job_id", "job_id", "id"),
        Index("ix_events_project_id", "project_id", "id"),
        # Events without a job, such as of an endpoint: few among millions.
        Index(
            "ix_events_without_job", "project_id", "id",
            sqlite_where=text("job_id IS NULL"), postgresql_where=text("job_id IS NULL"),
        ),
    )  # fmt: skip
