"""All tables. One schema for PostgreSQL and SQLite; ``migrations/`` holds its history.

Times are UTC. ``generation`` columns are compared and set by every write that moves a state. JSON columns hold
values that are only read whole; whatever is filtered or joined on has a column of its own.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, ClassVar

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    DateTime,
    Dialect,
    Float,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Text,
    TypeDecorator,
    UniqueConstraint,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

NAMING = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}


class UtcDateTime(TypeDecorator[datetime]):
    """Aware UTC datetimes on every database; SQLite keeps none itself. A naive value is a bug and refused."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002 (the base's signature)
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError("naive datetime")
        return value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


# None is stored as NULL, not as the JSON value null, so that IS NULL finds it.
Json = JSON(none_as_null=True).with_variant(JSONB(none_as_null=True), "postgresql")
# SQLite numbers rows by itself only in a column declared INTEGER.
BigId = BigInteger().with_variant(Integer(), "sqlite")


class Base(DeclarativeBase):
    metadata = MetaData(naming_convention=NAMING)
    type_annotation_map: ClassVar[dict[Any, Any]] = {
        datetime: UtcDateTime,
        dict[str, Any]: Json,
        list[Any]: Json,
        str: String,
    }


class User(Base):
    __tablename__ = "users"
    id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    is_admin: Mapped[bool] = mapped_column(Boolean, default=False)
    created_at: Mapped[datetime]
    disabled_at: Mapped[datetime | None]


class Token(Base):
    """A bearer token. Only its SHA-256 is kept. ``opened_by``: of a browser's session, the id of the token that was shown
    for it; the session is revoked with that.
    """

    __tablename__ = "tokens"
    id: Mapped[str] = mapped_column(primary_key=True)
    user_id: Mapped[str] = mapped_column(ForeignKey("users.id"), index=True)
    name: Mapped[str]
    digest: Mapped[str] = mapped_column(unique=True)
    scopes: Mapped[list[Any]]  # of "read", "write", "admin"
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]
    last_used_at: Mapped[datetime | None]
    opened_by: Mapped[str | None] = mapped_column(index=True)


class LoginCode(Base):
    """A one-time code that the embedded mode prints; exchanged once for a session token."""

    __tablename__ = "login_codes"
    digest: Mapped[str] = mapped_column(primary_key=True)
    user_id: Mapped[str] = mapped_column(ForeignKey("users.id"))
    expires_at: Mapped[datetime]
    used_at: Mapped[datetime | None]


class Project(Base):
    __tablename__ = "projects"
    id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    description: Mapped[str] = mapped_column(Text, default="")
    weight: Mapped[float] = mapped_column(Float, default=1.0)
    quota: Mapped[dict[str, Any]] = mapped_column(default=dict)  # core.domain.quota tells its form
    max_priority: Mapped[int | None] = mapped_column(Integer)  # the largest that its jobs may have
    created_at: Mapped[datetime]
    deleted_at: Mapped[datetime | None]


class Membership(Base):
    __tablename__ = "memberships"
    project_id: Mapped[str] = mapped_column(ForeignKey("projects.id"), primary_key=True)
    user_id: Mapped[str] = mapped_column(ForeignKey("users.id"), primary_key=True, index=True)
    role: Mapped[str]  # viewer | member | admin


class Secret(Base):
    """A project secret, encrypted with the platform's key."""

    __tablename__ = "secrets"
    project_id: Mapped[str] = mapped_column(ForeignKey("projects.id"), primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True)
    sealed: Mapped[bytes] = mapped_column(LargeBinary)
    updated_at: Mapped[datetime]


class Volume(Base):
    """Storage an admin registered. ``config``: how containers mount it; ``root``: where the control plane sees it."""

    __tablename__ = "volumes"
    id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    kind: Mapped[str]  # local | nfs | pvc | csi
    root: Mapped[str | None] = mapped_column(Text)
    config: Mapped[dict[str, Any]] = mapped_column(default=dict)
    is_read_only: Mapped[bool] = mapped_column(Boolean, default=False)
    created_at: Mapped[datetime]


class Archive(Base):
    """A code archive (.tar.gz), named by its content. ``received_bytes`` < ``size_bytes`` while it is uploaded."""

    __tablename__ = "archives"
    digest: Mapped[str] = mapped_column(primary_key=True)  # "sha256:<hex>"
    size_bytes: Mapped[int] = mapped_column(BigInteger)
    received_bytes: Mapped[int] = mapped_column(BigInteger, default=0)
    is_complete: Mapped[bool] = mapped_column(Boolean, default=False)
    user_id: Mapped[str] = mapped_column(ForeignKey("users.id"))
    created_at: Mapped[datetime]
    used_at: Mapped[datetime]


class Job(Base):
    """One request. ``state`` moves by ``core.domain.lifecycle`` alone.

    ``wanted`` is what the user asked for since: run | pause | cancel | delete; the control loop makes it true.
    ``not_before`` delays the next attempt (back-off). ``wait_reason`` is this job's own reason; where it is null the
    reason of its ``shape`` counts (see ``WaitReason``).
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
    wanted: Mapped[str] = mapped_column(default="run")
    generation: Mapped[int] = mapped_column(Integer, default=1)
    priority: Mapped[int] = mapped_column(Integer)
    max_run_time_s: Mapped[float | None] = mapped_column(Float)
    wait_reason: Mapped[dict[str, Any] | None]
    attempt_count: Mapped[int] = mapped_column(Integer, default=0)
    restart_count: Mapped[int] = mapped_column(Integer, default=0)  # those that count against max_restarts
    not_before: Mapped[datetime | None]
    exit: Mapped[dict[str, Any] | None]  # classification of the end, with its sentence
    room_since: Mapped[datetime | None]  # since when others are, or were, stopped for it while it waits
    output_volume: Mapped[str]
    output_path: Mapped[str] = mapped_column(Text)
    resume_from: Mapped[str | None] = mapped_column(Text)
    resume_choice: Mapped[dict[str, Any] | None]  # {"path", "at"}: the checkpoint that a user chose to go on from
    # Of its attempts that have ended: seconds in which it ran, and GPU-seconds that its replicas had (of a gang without
    # GPUs, its seconds).
    run_s: Mapped[float] = mapped_column(Float, default=0.0, server_default="0")
    attained_gpu_s: Mapped[float] = mapped_column(Float, default=0.0, server_default="0")
    # {"code", "sentence", "for_job", "at"}: while it waits, why it was made to give its place
    preempted: Mapped[dict[str, Any] | None]
    preempt_count: Mapped[int] = mapped_column(Integer, default=0, server_default="0")
    waits_since: Mapped[datetime | None]  # since when it has been without resources, where that is later than queued_at
    cloned_from: Mapped[str | None]
    created_at: Mapped[datetime]
    queued_at: Mapped[datetime]
    started_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]
    deleted_at: Mapped[datetime | None]
    updated_at: Mapped[datetime]
    __table_args__ = (
        Index("ix_jobs_project_id_created_at", "project_id", "created_at", "id"),
        Index("ix_jobs_created_at", "created_at", "id"),
        Index("ix_jobs_state_priority", "state", "priority", "queued_at"),
        Index("ix_jobs_name", "name"),
        Index("ix_jobs_finished_at", "finished_at"),
    )


class JobLabel(Base):
    """Labels by which jobs are listed; the roles of a job stand here too, under the key ``.role``."""

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


class WaitReason(Base):
    """Why jobs of one shape wait. Equal gangs wait for equal reasons, so a tick writes a few rows, not thousands."""

    __tablename__ = "wait_reasons"
    shape: Mapped[str] = mapped_column(primary_key=True)
    code: Mapped[str]
    sentence: Mapped[str] = mapped_column(Text)
    numbers: Mapped[dict[str, Any]]
    updated_at: Mapped[datetime]


class Question(Base):
    """What somebody asks the planner: put by the API, answered by the control loop, gone once the answer is read.

    ``kind``: what is asked; ``ask``: its arguments (``core.db.repositories.questions``). ``answer``: null until there is one.
    ``expires_at``: nobody waits for an answer any longer then.
    """

    __tablename__ = "questions"
    id: Mapped[str] = mapped_column(primary_key=True)
    user_id: Mapped[str] = mapped_column(ForeignKey("users.id"))
    asked_at: Mapped[datetime] = mapped_column(index=True)
    kind: Mapped[str] = mapped_column(default="forecast", server_default="forecast")
    ask: Mapped[dict[str, Any]]
    answer: Mapped[dict[str, Any] | None]
    expires_at: Mapped[datetime] = mapped_column(index=True)


class PolicyRow(Base):
    """The planner's settings: one row, ``name`` "policy", or none while nobody has changed them.

    ``settings``: those that were set (``core.domain.policy``). ``generation`` grows with each change.
    """

    __tablename__ = "policy"
    name: Mapped[str] = mapped_column(primary_key=True)
    settings: Mapped[dict[str, Any]]
    generation: Mapped[int] = mapped_column(Integer)
    updated_at: Mapped[datetime]
    updated_by: Mapped[str]


class BookingRow(Base):
    """Nodes that one project alone may use for a while. ``nodes``: their names."""

    __tablename__ = "bookings"
    id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str]
    project_id: Mapped[str] = mapped_column(ForeignKey("projects.id"), index=True)
    nodes: Mapped[list[Any]]
    begins_at: Mapped[datetime]
    ends_at: Mapped[datetime] = mapped_column(index=True)
    created_by: Mapped[str]
    created_at: Mapped[datetime]


class Usage(Base):
    """What a project, or a user of it, has had of the cluster lately: ``value`` is the decayed mean of the dominant share as
    of ``at``, and since then ``share`` is held. So time that passes needs no write, and none is counted twice.
    ``user_id``: empty for the project as a whole.
    """

    __tablename__ = "usage"
    project_id: Mapped[str] = mapped_column(ForeignKey("projects.id"), primary_key=True)
    user_id: Mapped[str] = mapped_column(primary_key=True)
    value: Mapped[float] = mapped_column(Float)
    share: Mapped[float] = mapped_column(Float)
    at: Mapped[datetime]


class Outlook(Base):
    """Where a waiting job stands in the line, and when it is expected to start: probably at ``likely``, between ``earliest``
    and ``latest``. Written for the first jobs in the line, now and then. ``code``: what is known of it, ``sentence``: in
    words that go on after "it starts" (``scheduler.planning.outlook``). ``nodes``: where, if all goes as is likely.
    """

    __tablename__ = "outlooks"
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    position: Mapped[int] = mapped_column(Integer, index=True)  # from 1
    earliest: Mapped[datetime | None]
    likely: Mapped[datetime | None]
    latest: Mapped[datetime | None]
    code: Mapped[str] = mapped_column(default="expected", server_default="expected")
    sentence: Mapped[str] = mapped_column(Text, default="", server_default="")
    nodes: Mapped[list[Any]] = mapped_column(default=list)
    at: Mapped[datetime]


class PlanRecord(Base):
    """What the planner saw and planned at one tick, so that it can be asked again.

    ``data``: compressed JSON, whole or what differs from the record ``after_id``. ``base_id``: the whole record that it goes
    back to, itself where it is whole; they are deleted together.
    """

    __tablename__ = "plan_records"
    id: Mapped[str] = mapped_column(primary_key=True)
    at: Mapped[datetime] = mapped_column(index=True)
    base_id: Mapped[str] = mapped_column(index=True)
    after_id: Mapped[str | None]
    size_bytes: Mapped[int] = mapped_column(BigInteger)
    data: Mapped[bytes] = mapped_column(LargeBinary)


class Attempt(Base):
    """One launch of the whole gang. ``ends``: why it ended; ``is_counted``: counts against max_restarts.

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
    world: Mapped[int] = mapped_column(Integer, default=1)  # counts the layouts that it has had
    world_reason: Mapped[str] = mapped_column(Text, default="")  # why the newest one is another than that before
    resume_from: Mapped[str | None] = mapped_column(Text)
    stop: Mapped[dict[str, Any] | None]
    end: Mapped[dict[str, Any] | None]
    is_counted: Mapped[bool] = mapped_column(Boolean, default=False)
    created_at: Mapped[datetime]
    started_at: Mapped[datetime | None]
    decided_at: Mapped[datetime | None]  # when the deciders were done; evaluators have their grace from here
    ended_at: Mapped[datetime | None]
    swept_at: Mapped[datetime | None]  # when the executor forgot it
    __table_args__ = (UniqueConstraint("job_id", "number"), Index("ix_attempts_state", "state"))


class Replica(Base):
    """A member of an attempt's gang and what it holds on its node until it ends."""

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
    # Thousandths of its one device; 0: it has its devices whole, or none.
    gpu_milli: Mapped[int] = mapped_column(Integer, default=0, server_default="0")
    cpu_milli: Mapped[int] = mapped_column(Integer)
    memory_bytes: Mapped[int] = mapped_column(BigInteger)
    exit: Mapped[dict[str, Any] | None]
    detail: Mapped[str] = mapped_column(Text, default="")
    facts: Mapped[dict[str, Any]] = mapped_column(default=dict)
    started_at: Mapped[datetime | None]
    ended_at: Mapped[datetime | None]
    heartbeat_at: Mapped[datetime | None]
    report_seq: Mapped[int] = mapped_column(BigInteger, default=0)
    progress: Mapped[dict[str, Any]] = mapped_column(default=dict)  # step, steps, epoch, metrics (last values)
    # {"sentence", "for_job"}: why an elastic gang is to go on without it, which still runs
    leaves: Mapped[dict[str, Any] | None]
    __table_args__ = (
        UniqueConstraint("attempt_id", "role", "replica_index"),
        Index("ix_replicas_state_node", "state", "node"),
    )


class Checkpoint(Base):
    """A complete checkpoint that a job told of. ``path`` is relative to the job's output."""

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


class MlflowRun(Base):
    """What a script told of a run by MLflow's protocol; its metrics are kept with all others.

    The run of a replica is written with the first thing that it logs. ``replica``: whose it is, such as ``worker-0``;
    empty for a run that a script made itself, whose metrics are kept as if its id were a role of the job. ``status`` and
    ``ended_at`` count for those alone: a replica's run is as the platform knows its attempt.
    """

    __tablename__ = "mlflow_runs"
    id: Mapped[str] = mapped_column(primary_key=True)
    project_id: Mapped[str] = mapped_column(ForeignKey("projects.id"))
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), index=True)
    attempt_id: Mapped[str] = mapped_column(ForeignKey("attempts.id"), index=True)
    replica: Mapped[str]
    name: Mapped[str]
    status: Mapped[str]  # of MLflow's: RUNNING | SCHEDULED | FINISHED | FAILED | KILLED
    is_deleted: Mapped[bool] = mapped_column(Boolean, default=False)
    params: Mapped[dict[str, Any]] = mapped_column(default=dict)
    tags: Mapped[dict[str, Any]] = mapped_column(default=dict)
    inputs: Mapped[dict[str, Any]] = mapped_column(default=dict)  # datasets, models: as MLflow writes them
    outputs: Mapped[list[Any]] = mapped_column(default=list)  # models
    started_at: Mapped[datetime]
    ended_at: Mapped[datetime | None]
    __table_args__ = (Index("ix_mlflow_runs_project_id_started_at", "project_id", "started_at", "id"),)


class MlflowModel(Base):
    """A model that a run logged; its files are under the job's output. ``metrics``: the last value of each."""

    __tablename__ = "mlflow_models"
    id: Mapped[str] = mapped_column(primary_key=True)
    project_id: Mapped[str] = mapped_column(ForeignKey("projects.id"))
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), index=True)
    run_id: Mapped[str]
    name: Mapped[str]
    kind: Mapped[str]
    status: Mapped[str]  # LOGGED_MODEL_PENDING | LOGGED_MODEL_READY | LOGGED_MODEL_UPLOAD_FAILED
    params: Mapped[dict[str, Any]] = mapped_column(default=dict)
    tags: Mapped[dict[str, Any]] = mapped_column(default=dict)
    metrics: Mapped[list[Any]] = mapped_column(default=list)
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]
    __table_args__ = (Index("ix_mlflow_models_project_id_created_at", "project_id", "created_at", "id"),)


class MlflowRegistered(Base):
    """A name under which a project's jobs register models."""

    __tablename__ = "mlflow_registered"
    project_id: Mapped[str] = mapped_column(ForeignKey("projects.id"), primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True)
    description: Mapped[str] = mapped_column(Text, default="")
    tags: Mapped[dict[str, Any]] = mapped_column(default=dict)
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]


class MlflowVersion(Base):
    """A registered model's version, numbered from 1."""

    __tablename__ = "mlflow_versions"
    project_id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True)
    version: Mapped[int] = mapped_column(Integer, primary_key=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"))
    run_id: Mapped[str]
    model_id: Mapped[str]
    source: Mapped[str] = mapped_column(Text)
    description: Mapped[str] = mapped_column(Text, default="")
    tags: Mapped[dict[str, Any]] = mapped_column(default=dict)
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]
    __table_args__ = (
        ForeignKeyConstraint(["project_id", "name"], ["mlflow_registered.project_id", "mlflow_registered.name"]),
    )


class TensorBoardLink(Base):
    """Who may look at which jobs in TensorBoard by an address of its own. Only the SHA-256 of the address is kept.

    ``token_id``: the token that asked for it; the address is good while that one is.
    """

    __tablename__ = "tensorboard_links"
    digest: Mapped[str] = mapped_column(primary_key=True)
    user_id: Mapped[str] = mapped_column(ForeignKey("users.id"))
    token_id: Mapped[str] = mapped_column(ForeignKey("tokens.id"))
    job_ids: Mapped[list[Any]]
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime] = mapped_column(index=True)


class KeptCheckpoint(Base):
    """A checkpoint that no retention deletes. ``path`` is relative to the job's output."""

    __tablename__ = "kept_checkpoints"
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    path: Mapped[str] = mapped_column(Text, primary_key=True)
    user: Mapped[str]
    created_at: Mapped[datetime]


class Retention(Base):
    """Which checkpoints of a job stay: a ``core.domain.retention.Rule`` as JSON."""

    __tablename__ = "retentions"
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    rule: Mapped[dict[str, Any]]
    user: Mapped[str]
    updated_at: Mapped[datetime]


class Event(Base):
    """One line of a thing's history. ``actor``: ``user:<name>``, ``scheduler``, ``executor``, ``runtime:<role>-<index>``."""

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
    __table_args__ = (Index("ix_events_job_id", "job_id", "id"), Index("ix_events_project_id", "project_id", "id"))


class Node(Base):
    """A machine. The cordon and ``admin_labels`` are the admin's, the rest is written from what the executor sees.

    ``labels``: what the executor reports; :func:`core.db.repositories.nodes.labels_of` tells which labels hold.
    """

    __tablename__ = "nodes"
    name: Mapped[str] = mapped_column(primary_key=True)
    executor: Mapped[str]
    labels: Mapped[dict[str, Any]]
    admin_labels: Mapped[dict[str, Any]] = mapped_column(default=dict)
    allocatable: Mapped[dict[str, Any]]
    gpus: Mapped[list[Any]]  # [{"id","model","memory_bytes"}]
    is_ready: Mapped[bool] = mapped_column(Boolean)
    condition: Mapped[str] = mapped_column(Text, default="")
    is_cordoned: Mapped[bool] = mapped_column(Boolean, default=False)
    cordon_reason: Mapped[str] = mapped_column(Text, default="")
    seen_at: Mapped[datetime]


class Lease(Base):
    """Who may write now. ``token`` grows with every change of hands; writes compare it (fencing)."""

    __tablename__ = "leases"
    name: Mapped[str] = mapped_column(primary_key=True)
    holder: Mapped[str]
    token: Mapped[int] = mapped_column(BigInteger)
    expires_at: Mapped[datetime]


class Identity(Base):
    """One row, ``name`` "database": the random id by which engines tell this database's objects from another's.

    A copy of the database has it, too: see :mod:`core.db.identity`.
    """

    __tablename__ = "identity"
    name: Mapped[str] = mapped_column(primary_key=True)
    id: Mapped[str]


class Stranger(Base):
    """An attempt that the executor holds and this database does not know. ``database_id``: whose it is, as the engine
    says; empty where it does not say. ``is_foreign``: another database's, so that it is left alone.
    """

    __tablename__ = "strangers"
    attempt_id: Mapped[str] = mapped_column(primary_key=True)
    database_id: Mapped[str]
    is_foreign: Mapped[bool] = mapped_column(Boolean)
    since: Mapped[datetime]


class MetricStream(Base):
    """What one replica reports in one attempt; its row is locked while something is added.

    ``owner_id`` is a job's id, or that of what else keeps metrics under ids of its own. ``writers``: the last batch of
    each sender, so that none counts twice. ``pending_points``: those in segments; ``compactions`` grows with each time
    they moved into chunks, so that a reader knows whether it saw everything once.
    """

    __tablename__ = "metric_streams"
    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    owner_id: Mapped[str]
    attempt: Mapped[int] = mapped_column(Integer)
    role: Mapped[str]
    index: Mapped[int] = mapped_column("replica_index", Integer)
    series_count: Mapped[int] = mapped_column(Integer, default=0)
    points: Mapped[int] = mapped_column(BigInteger, default=0)
    pending_points: Mapped[int] = mapped_column(Integer, default=0)
    pending_segments: Mapped[int] = mapped_column(Integer, default=0)
    compactions: Mapped[int] = mapped_column(BigInteger, default=0)
    objects: Mapped[int] = mapped_column(BigInteger, default=0)  # written so far
    object_bytes: Mapped[int] = mapped_column(BigInteger, default=0)  # kept now
    writers: Mapped[dict[str, Any]] = mapped_column(default=dict)
    updated_at: Mapped[datetime]
    __table_args__ = (UniqueConstraint("owner_id", "attempt", "role", "replica_index"),)


class MetricSeries(Base):
    """A series. ``count`` and all that follows: of its points in chunks, those in segments are not counted yet.

    ``last_value``, ``low`` and ``high`` are null for NaN, which SQLite cannot keep, and where there is none.
    """

    __tablename__ = "metric_series"
    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    stream_id: Mapped[int] = mapped_column(ForeignKey("metric_streams.id", ondelete="CASCADE"))
    name: Mapped[str]
    kind: Mapped[str]  # scalar | histogram | image | text
    count: Mapped[int] = mapped_column(BigInteger, default=0)
    last_step: Mapped[int | None] = mapped_column(BigInteger)
    last_time: Mapped[int | None] = mapped_column(BigInteger)  # milliseconds since 1970
    last_value: Mapped[float | None] = mapped_column(Float)
    low: Mapped[float | None] = mapped_column(Float)
    high: Mapped[float | None] = mapped_column(Float)
    __table_args__ = (UniqueConstraint("stream_id", "name", "kind"),)


class MetricSegment(Base):
    """Points of many series as they came in one batch, until they move into the chunks of their series."""

    __tablename__ = "metric_segments"
    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    stream_id: Mapped[int] = mapped_column(ForeignKey("metric_streams.id", ondelete="CASCADE"), index=True)
    data: Mapped[bytes] = mapped_column(LargeBinary)


class MetricChunk(Base):
    """Points of one series, 4,096 each but for the last. ``fine`` and ``coarse``: digests of every 64 and 512 points,
    empty while the chunk is not full.
    """

    __tablename__ = "metric_chunks"
    series_id: Mapped[int] = mapped_column(ForeignKey("metric_series.id", ondelete="CASCADE"), primary_key=True)
    number: Mapped[int] = mapped_column(Integer, primary_key=True)  # from 0
    count: Mapped[int] = mapped_column(Integer)
    step_min: Mapped[int] = mapped_column(BigInteger)
    step_max: Mapped[int] = mapped_column(BigInteger)
    time_min: Mapped[int] = mapped_column(BigInteger)
    time_max: Mapped[int] = mapped_column(BigInteger)
    data: Mapped[bytes] = mapped_column(LargeBinary)
    fine: Mapped[bytes] = mapped_column(LargeBinary)
    coarse: Mapped[bytes] = mapped_column(LargeBinary)


class MetricObject(Base):
    """A histogram (JSON), an image or a text of a series."""

    __tablename__ = "metric_objects"
    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    series_id: Mapped[int] = mapped_column(ForeignKey("metric_series.id", ondelete="CASCADE"))
    step: Mapped[int] = mapped_column(BigInteger)
    time: Mapped[int] = mapped_column(BigInteger)  # milliseconds since 1970
    media_type: Mapped[str]
    data: Mapped[bytes] = mapped_column(LargeBinary)
    __table_args__ = (Index("ix_metric_objects_series_id", "series_id", "id"),)
