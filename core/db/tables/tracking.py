"""Data of the clients of MLflow, TensorBoard, Vertex AI and Ray."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import (
    Boolean,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    Text,
    UniqueConstraint,
)
from sqlalchemy.orm import Mapped, mapped_column

from core.db.tables.base import Base


class MlflowRun(Base):
    """What a script logged to a run by MLflow's protocol; its metrics are stored with all others.

    A replica's run is created with its first log call. ``replica``: its name, such as ``worker-0``; empty for a run
    that a script created itself, whose metrics are stored as if its id were a role of the job. ``status`` and
    ``ended_at`` apply to the latter alone: a replica's run follows its attempt.
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
    """A model logged by a run; its files are under the job's output. ``metrics``: the last value of each."""

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


class MlflowRegisteredModel(Base):
    """A name under which a project's jobs register models."""

    __tablename__ = "mlflow_registered_models"
    project_id: Mapped[str] = mapped_column(ForeignKey("projects.id"), primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True)
    description: Mapped[str] = mapped_column(Text, default="")
    tags: Mapped[dict[str, Any]] = mapped_column(default=dict)
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]


class MlflowModelVersion(Base):
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
        ForeignKeyConstraint(
            ["project_id", "name"], ["mlflow_registered_models.project_id", "mlflow_registered_models.name"]
        ),
    )


class TensorBoardLink(Base):
    """Access to certain jobs in TensorBoard by a link, of which only the SHA-256 is stored.

    ``token_id``: the token that requested it; the link is valid while that token is.
    """

    __tablename__ = "tensorboard_links"
    digest: Mapped[str] = mapped_column(primary_key=True)
    user_id: Mapped[str] = mapped_column(ForeignKey("users.id"))
    token_id: Mapped[str] = mapped_column(ForeignKey("tokens.id"))
    job_ids: Mapped[list[Any]]
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime] = mapped_column(index=True)


class VertexResource(Base):
    """What a client of Vertex AI set on a job that it submitted; the rest follows from the job.

    ``collection``: customJobs | trainingPipelines. ``location``: one of Google's regions, as the client named it.
    ``body``: the
    resource as sent, without output-only fields. ``deletion_requested_at``: since when polls of the operation continue
    the
    deletion.
    """

    __tablename__ = "vertex_resources"
    collection: Mapped[str] = mapped_column(primary_key=True)
    id: Mapped[str] = mapped_column(primary_key=True)
    project_id: Mapped[str] = mapped_column(ForeignKey("projects.id"))
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), index=True)
    location: Mapped[str]
    display_name: Mapped[str] = mapped_column(Text)
    labels: Mapped[dict[str, Any]] = mapped_column(default=dict)
    body: Mapped[dict[str, Any]] = mapped_column(default=dict)
    created_at: Mapped[datetime]
    deletion_requested_at: Mapped[datetime | None]
    __table_args__ = (
        Index("ix_vertex_resources_project_id_created_at", "project_id", "collection", "created_at", "id"),
    )


class VertexEndpoint(Base):
    """What a client of Vertex AI set on an endpoint; the rest follows from the endpoint.

    ``location``: one of Google's regions, as the client named it. ``deployed``: deployed model's name -> what was set
    on it.
    """

    __tablename__ = "vertex_endpoints"
    endpoint_id: Mapped[str] = mapped_column(ForeignKey("endpoints.id"), primary_key=True)
    location: Mapped[str]
    display_name: Mapped[str] = mapped_column(Text)
    labels: Mapped[dict[str, Any]] = mapped_column(default=dict)
    deployed: Mapped[dict[str, Any]] = mapped_column(default=dict)


class VertexRecord(Base):
    """A resource that only its clients define: a context, an artifact, an execution; a TensorBoard, one of its
    experiments, runs or time series.

    ``collection``: its path below the location, such as ``metadataStores/default/contexts``; followed by ``name`` it is
    the prefix
    of its child collections. ``body``: the fields in camelCase as returned, without those that have a column.
    ``job_id``: the job
    that created it. The points of a run's time series are stored like all metrics, under its ``id``.
    """

    __tablename__ = "vertex_records"
    id: Mapped[str] = mapped_column(primary_key=True)
    project_id: Mapped[str] = mapped_column(ForeignKey("projects.id"))
    location: Mapped[str]
    collection: Mapped[str]
    name: Mapped[str]
    display_name: Mapped[str] = mapped_column(Text, default="")
    schema_title: Mapped[str] = mapped_column(default="")
    body: Mapped[dict[str, Any]] = mapped_column(default=dict)
    job_id: Mapped[str | None] = mapped_column(ForeignKey("jobs.id"), index=True)
    generation: Mapped[int] = mapped_column(Integer, default=1)
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]
    __table_args__ = (
        UniqueConstraint("project_id", "location", "collection", "name"),
        Index("ix_vertex_records_project_id_created_at", "project_id", "location", "collection", "created_at", "id"),
    )


class VertexLink(Base):
    """A record belongs to another. ``kind``: child (a context of a context), member (an artifact or an execution of a
    context), input or output (an artifact of an execution).
    """

    __tablename__ = "vertex_links"
    parent_id: Mapped[str] = mapped_column(ForeignKey("vertex_records.id", ondelete="CASCADE"), primary_key=True)
    child_id: Mapped[str] = mapped_column(
        ForeignKey("vertex_records.id", ondelete="CASCADE"), primary_key=True, index=True
    )
    kind: Mapped[str] = mapped_column(primary_key=True)
    created_at: Mapped[datetime]


class VertexTableRow(Base):
    """The mapping of Google's machine types, accelerators, images and names: one row, ``name`` "vertex", or none before
    an administrator stores a table.

    ``entries``: ``[section, name, value]`` each; a list, because their order matters, which JSONB objects lose.
    ``generation`` grows with each change.
    """

    __tablename__ = "vertex_table"
    name: Mapped[str] = mapped_column(primary_key=True)
    entries: Mapped[list[Any]]
    generation: Mapped[int] = mapped_column(Integer)
    updated_at: Mapped[datetime]
    updated_by: Mapped[str]


class RayJob(Base):
    """What a client of Ray set on a job that it submitted; the rest follows from the job.

    ``body``: the request, without omitted fields.
    """

    __tablename__ = "ray_jobs"
    project_id: Mapped[str] = mapped_column(ForeignKey("projects.id"), primary_key=True)
    submission_id: Mapped[str] = mapped_column(primary_key=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), index=True)
    body: Mapped[dict[str, Any]] = mapped_column(default=dict)
    created_at: Mapped[datetime]
    __table_args__ = (Index("ix_ray_jobs_project_id_created_at", "project_id", "created_at", "submission_id"),)


class RayPackage(Base):
    """A package uploaded by a client of Ray, and the code archive made of it.

    The name is the client's own digest of the content, which is not verified: so each user has packages of their own.
    """

    __tablename__ = "ray_packages"
    user_id: Mapped[str] = mapped_column(ForeignKey("users.id"), primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True)
    digest: Mapped[str]
    created_at: Mapped[datetime]
