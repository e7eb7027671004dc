"""Endpoints, deployed models, and the jobs that serve them."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import ForeignKey, Index, Integer, Text, text
from sqlalchemy.orm import Mapped, mapped_column

from core.db.tables.base import Base


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

    ``state``: see ``core.domain.serving.states``. ``target_revision``: the revision to serve, ``stable_revision``: the
    last fully
    ready one. ``traffic``: its share of the endpoint's requests, in per cent. ``split_when_ready``: name -> share for
    all deployed
    models of the endpoint, applied once this one is ready.
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
    at
    ``failed_at``. ``stable_at``: when all desired replicas were ready for the first time. ``failure_reason``: why it
    was rolled
    back.
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
