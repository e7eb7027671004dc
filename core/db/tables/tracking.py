"""What MLflow's, TensorBoard's and Vertex AI's clients keep here."""

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


class VertexResource(Base):
    """What a client of Vertex AI told of a job that it submitted; everything else is as the platform knows the job.

    ``collection``: customJobs | trainingPipelines. ``location``: one of Google's regions, as it was told. ``body``: the
    resource as it was sent, without what only the server says.
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
    __table_args__ = (
        Index("ix_vertex_resources_project_id_created_at", "project_id", "collection", "created_at", "id"),
    )
