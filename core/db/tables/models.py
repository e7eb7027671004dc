"""The model registry; and endpoints, deployed models, and the jobs that serve them."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, Boolean, ForeignKey, Index, Integer, Text, UniqueConstraint, text
from sqlalchemy.orm import Mapped, mapped_column

from core.db.tables.base import Base, BigId


class Model(Base):
    """A named model of a project. ``version_count``: the highest version number, including deleted models of the same
    name: a number is never reused for other content.
    """

    __tablename__ = "models"
    id: Mapped[str] = mapped_column(primary_key=True)
    project_id: Mapped[str] = mapped_column(ForeignKey("projects.id"))
    user_id: Mapped[str] = mapped_column(ForeignKey("users.id"))
    name: Mapped[str]
    description: Mapped[str] = mapped_column(Text, default="")
    labels: Mapped[dict[str, Any]] = mapped_column(default=dict)
    is_protected: Mapped[bool] = mapped_column(Boolean, default=False)
    version_count: Mapped[int] = mapped_column(Integer, default=0)
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]
    deleted_at: Mapped[datetime | None]
    __table_args__ = (
        # A deleted model's name can be reused.
        Index(
            "uq_models_project_id_name",
            "project_id",
            "name",
            unique=True,
            sqlite_where=text("deleted_at IS NULL"),
            postgresql_where=text("deleted_at IS NULL"),
        ),
    )


class ModelVersion(Base):
    """Content that is immutable once ready. ``state`` changes only by ``core.domain.model_versions``.

    ``job_id``: the job whose output it was registered from; null: uploaded. ``source``: {"kind", "job", "path"}, as
    ``trainmaster.wire.models.ModelSource``; for an upload {"kind", "volume", "base", "path"}, as
    ``core.registry.sources.UploadedSource``. ``volume`` and ``path``: location of the copy. ``registration``:
    {"aliases", "user"}, applied when ready, except (``keeps_better``) aliases that point to a better best trial.
    ``copy_attempts``: number of tries since a file was last copied completely.
    """

    __tablename__ = "model_versions"
    id: Mapped[str] = mapped_column(primary_key=True)
    model_id: Mapped[str] = mapped_column(ForeignKey("models.id"))
    project_id: Mapped[str] = mapped_column(ForeignKey("projects.id"))
    user_id: Mapped[str] = mapped_column(ForeignKey("users.id"))
    number: Mapped[int] = mapped_column(Integer)
    state: Mapped[str]
    reason: Mapped[str] = mapped_column(Text, default="")
    stage: Mapped[str] = mapped_column(default="none")
    is_protected: Mapped[bool] = mapped_column(Boolean, default=False)
    description: Mapped[str] = mapped_column(Text, default="")
    labels: Mapped[dict[str, Any]] = mapped_column(default=dict)
    format: Mapped[str] = mapped_column(default="")
    job_id: Mapped[str | None] = mapped_column(ForeignKey("jobs.id"), index=True)
    source: Mapped[dict[str, Any]]
    lineage: Mapped[dict[str, Any] | None]
    registration: Mapped[dict[str, Any]] = mapped_column(default=dict)
    volume: Mapped[str]
    path: Mapped[str] = mapped_column(Text)
    digest: Mapped[str | None]
    size_bytes: Mapped[int | None] = mapped_column(BigInteger)
    file_count: Mapped[int | None] = mapped_column(Integer)
    done_bytes: Mapped[int] = mapped_column(BigInteger, default=0)
    copy_attempts: Mapped[int] = mapped_column(Integer, default=0)
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]
    ready_at: Mapped[datetime | None]
    deleted_at: Mapped[datetime | None]
    __table_args__ = (
        UniqueConstraint("model_id", "number"),
        Index("ix_model_versions_state", "state", "created_at"),
    )


class ModelFile(Base):
    """A file of a version. ``source``: its path below the job's output, or an upload's base. ``sha256``: null until
    copied.
    """

    __tablename__ = "model_files"
    version_id: Mapped[str] = mapped_column(ForeignKey("model_versions.id"), primary_key=True)
    path: Mapped[str] = mapped_column(Text, primary_key=True)
    source: Mapped[str] = mapped_column(Text)
    size_bytes: Mapped[int] = mapped_column(BigInteger)
    mtime_ns: Mapped[int] = mapped_column(BigInteger)
    sha256: Mapped[str | None]


class ModelAlias(Base):
    """A name that points to one ready version of its model."""

    __tablename__ = "model_aliases"
    model_id: Mapped[str] = mapped_column(ForeignKey("models.id"), primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True)
    version_id: Mapped[str] = mapped_column(ForeignKey("model_versions.id"), index=True)
    updated_at: Mapped[datetime]


class ModelHold(Base):
    """A holder of a version, such as ``endpoint ep-1``, which prevents its deletion."""

    __tablename__ = "model_holds"
    version_id: Mapped[str] = mapped_column(ForeignKey("model_versions.id"), primary_key=True)
    holder: Mapped[str] = mapped_column(primary_key=True)
    created_at: Mapped[datetime]


class ModelChange(Base):
    """One line of a model's history, as ``trainmaster.wire.models.ModelChange``."""

    __tablename__ = "model_changes"
    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    model_id: Mapped[str] = mapped_column(ForeignKey("models.id"))
    at: Mapped[datetime]
    user: Mapped[str]
    kind: Mapped[str]
    version: Mapped[int | None] = mapped_column(Integer)
    name: Mapped[str] = mapped_column(default="")
    before: Mapped[str | None]
    after: Mapped[str | None]
    reason: Mapped[str] = mapped_column(Text, default="")
    __table_args__ = (Index("ix_model_changes_model_id", "model_id", "id"),)


class Endpoint(Base):
    """An address in a project under which models answer. Names are unique among the project's undeleted endpoints.

    ``deleting_at``: since when it is being shut down; then it is deleted.
    """

    __tablename__ = "endpoints"
    id: Mapped[str] = mapped_column(primary_key=True)
    project_id: Mapped[str] = mapped_column(ForeignKey("projects.id"))
    user_id: Mapped[str] = mapped_column(ForeignKey("users.id"))
    name: Mapped[str]
    description: Mapped[str] = mapped_column(Text, default="")
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]
    deleting_at: Mapped[datetime | None]
    deleted_at: Mapped[datetime | None]
    __table_args__ = (
        Index(
            "uq_endpoints_project_id_name",
            "project_id",
            "name",
            unique=True,
            sqlite_where=text("deleted_at IS NULL"),
            postgresql_where=text("deleted_at IS NULL"),
        ),
        Index("ix_endpoints_created_at", "created_at", "id"),
    )


class Deployment(Base):
    """A deployed model. Every write compares ``generation``.

    ``state``: see ``core.domain.serving.rollout``. ``target_revision``: the revision to serve, ``stable_revision``: the
    last fully ready one. ``traffic``: its share of the endpoint's requests, in per cent. ``split_when_ready``: name ->
    share for all deployed models of the endpoint, applied once this one is ready.
    """

    __tablename__ = "deployments"
    id: Mapped[str] = mapped_column(primary_key=True)
    endpoint_id: Mapped[str] = mapped_column(ForeignKey("endpoints.id"))
    name: Mapped[str]
    state: Mapped[str]
    generation: Mapped[int] = mapped_column(Integer, default=1)
    replicas: Mapped[int] = mapped_column(Integer)
    traffic: Mapped[int] = mapped_column(Integer)
    split_when_ready: Mapped[dict[str, Any] | None]
    target_revision: Mapped[int] = mapped_column(Integer)
    stable_revision: Mapped[int | None] = mapped_column(Integer)
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]
    ended_at: Mapped[datetime | None]
    __table_args__ = (Index("ix_deployments_endpoint_id", "endpoint_id", "name"),)


class DeploymentRevision(Base):
    """A configuration of a deployed model; immutable except for the last four columns.

    ``spec``: a canonical ``trainmaster.wire.serving.ServingSpec``. ``failures``: consecutive failed replicas, the last
    at ``failed_at``. ``stable_at``: when all desired replicas were ready for the first time. ``failure_reason``: why it
    was rolled back.
    """

    __tablename__ = "deployment_revisions"
    deployment_id: Mapped[str] = mapped_column(ForeignKey("deployments.id"), primary_key=True)
    number: Mapped[int] = mapped_column(Integer, primary_key=True)
    spec: Mapped[dict[str, Any]]
    user_id: Mapped[str] = mapped_column(ForeignKey("users.id"))
    reason: Mapped[str] = mapped_column(Text, default="")
    created_at: Mapped[datetime]
    failures: Mapped[int] = mapped_column(Integer, default=0)
    failed_at: Mapped[datetime | None]
    stable_at: Mapped[datetime | None]
    failure_reason: Mapped[str] = mapped_column(Text, default="")


class ServingReplica(Base):
    """A job that serves a revision. Written together with the job.

    ``address``: host:port, where the API reaches it. ``running_since``: since when its job has been running without a
    break.
    ``message``: of its last health probe, or why it ended.
    """

    __tablename__ = "serving_replicas"
    id: Mapped[str] = mapped_column(primary_key=True)
    deployment_id: Mapped[str] = mapped_column(ForeignKey("deployments.id"))
    revision: Mapped[int] = mapped_column(Integer)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), unique=True)
    state: Mapped[str]
    address: Mapped[str] = mapped_column(default="")
    failed_probes: Mapped[int] = mapped_column(Integer, default=0)
    message: Mapped[str] = mapped_column(Text, default="")
    created_at: Mapped[datetime]
    running_since: Mapped[datetime | None]
    ready_at: Mapped[datetime | None]
    draining_at: Mapped[datetime | None]
    ended_at: Mapped[datetime | None]
    __table_args__ = (Index("ix_serving_replicas_deployment_id_state", "deployment_id", "state"),)
