"""What MLflow's, TensorBoard's, Vertex AI's and Ray's clients keep here."""

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
)
from sqlalchemy.orm import Mapped, mapped_column

from core.db.tables.base import Base


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


class VertexResource(Base):
    """What a client of Vertex AI told of a job that it submitted; everything else is as the platform knows the job.

    ``collection``: customJobs | trainingPipelines. ``location``: one of Google's regions, as it was told. ``body``: the
    resource as it was sent, without what only the server says. ``deletion_asked_at``: since when who looks at the
    operation goes on with the deletion.
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
    """What a client of Vertex AI told of an endpoint; everything else is as the platform knows it.

    ``location``: one of Google's regions, as it was told. ``deployed``: by name of a deployed model, what was told of that.
    """

    __tablename__ = "vertex_endpoints"
    endpoint_id: Mapped[str] = mapped_column(ForeignKey("endpoints.id"), primary_key=True)
    location: Mapped[str]
    display_name: Mapped[str] = mapped_column(Text)
    labels: Mapped[dict[str, Any]] = mapped_column(default=dict)
    deployed: Mapped[dict[str, Any]] = mapped_column(default=dict)


class VertexTableRow(Base):
    """What machine types, accelerators, images and names of Google's are here: one row, ``name`` "vertex", or none while no
    administrator has stored a table.

    ``entries``: ``[section, name, value]`` each, a list because their order counts, which JSON objects lose in PostgreSQL.
    ``generation`` grows with each change.
    """

    __tablename__ = "vertex_table"
    name: Mapped[str] = mapped_column(primary_key=True)
    entries: Mapped[list[Any]]
    generation: Mapped[int] = mapped_column(Integer)
    updated_at: Mapped[datetime]
    updated_by: Mapped[str]


class RayJob(Base):
    """What a client of Ray told of a job that it submitted; everything else is as the platform knows the job.

    ``body``: the request, without what it left out.
    """

    __tablename__ = "ray_jobs"
    project_id: Mapped[str] = mapped_column(ForeignKey("projects.id"), primary_key=True)
    submission_id: Mapped[str] = mapped_column(primary_key=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), index=True)
    body: Mapped[dict[str, Any]] = mapped_column(default=dict)
    created_at: Mapped[datetime]
    __table_args__ = (Index("ix_ray_jobs_project_id_created_at", "project_id", "created_at", "submission_id"),)


class RayPackage(Base):
    """A package that a client of Ray uploaded, and the code archive that was made of it.

    The name is the client's own digest of what is in it, which nobody proves: so each user has packages of their own.
    """

    __tablename__ = "ray_packages"
    user_id: Mapped[str] = mapped_column(ForeignKey("users.id"), primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True)
    digest: Mapped[str]
    created_at: Mapped[datetime]
