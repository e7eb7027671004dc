"""Endpoints and their deployed models. Every write of a deployment compares its generation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import exists, func, or_, select, update
from sqlalchemy.orm import Session

from core.db.engine import UntypedRow
from core.db.repositories.planning import reason_columns, with_reasons
from core.db.tables import Attempt, Deployment, DeploymentRevision, Endpoint, Job, Replica, ServingReplica
from core.domain.errors import StaleWrite
from core.domain.jobs.layout import Layout
from core.domain.serving.jobs import holder_of
from core.domain.serving.rollout import DeploymentState, ServingState


@dataclass(frozen=True, slots=True)
class ServingTarget:
    """A ready replica as the proxy sees it."""

    replica_id: str
    deployment: str
    revision: int
    traffic: int
    address: str
    predict_route: str
    timeout_s: float


def live_endpoints(session: Session, *, limit: int = 10_000) -> Sequence[str]:
    """Ids of endpoints to reconcile: with a deployment that has not ended, or being deleted."""
    has_any = exists().where(Deployment.endpoint_id == Endpoint.id, Deployment.ended_at.is_(None))
    query = select(Endpoint.id).where(Endpoint.deleted_at.is_(None), or_(has_any, Endpoint.deleting_at.is_not(None)))
    return session.scalars(query.order_by(Endpoint.created_at, Endpoint.id).limit(limit)).all()


def change_deployment(session: Session, deployment_id: str, generation: int, now: datetime, **values: Any) -> int:
    """Optimistic update; returns the next generation.

    Raises:
        StaleWrite: the deployment has changed since ``generation`` was read.
    """
    hit = session.execute(
        update(Deployment)
        .where(Deployment.id == deployment_id, Deployment.generation == generation, Deployment.ended_at.is_(None))
        .values(**values, generation=generation + 1, updated_at=now)
        .execution_options(synchronize_session=False)
    )
    if hit.rowcount != 1:  # type: ignore[attr-defined]
        raise StaleWrite("the deployment has changed since it was read")
    return generation + 1


def live_deployments(session: Session, endpoint_ids: Iterable[str]) -> Sequence[Deployment]:
    """Deployments that have not ended, by endpoint and name."""
    query = select(Deployment).where(Deployment.endpoint_id.in_(list(endpoint_ids)), Deployment.ended_at.is_(None))
    return session.scalars(
        query.order_by(Deployment.endpoint_id, Deployment.name).execution_options(populate_existing=True)
    ).all()


def revisions_of(
    session: Session, deployment_id: str, *, numbers: Iterable[int] | None = None, limit: int = 100
) -> Sequence[DeploymentRevision]:
    """Newest first. ``numbers``: only these."""
    query = select(DeploymentRevision).where(DeploymentRevision.deployment_id == deployment_id)
    if numbers is not None:
        query = query.where(DeploymentRevision.number.in_(list(numbers)))
    query = query.order_by(DeploymentRevision.number.desc()).limit(limit)
    return session.scalars(query.execution_options(populate_existing=True)).all()


def deployed_versions(session: Session, deployment_id: str) -> set[str]:
    """Ids of the model versions that any revision of the deployment uses."""
    specs = session.scalars(
        select(DeploymentRevision.spec)
        .where(DeploymentRevision.deployment_id == deployment_id)
        .order_by(DeploymentRevision.number)
    )
    return {str(spec["version_id"]) for spec in specs if spec.get("version_id")}


def servers_of_versions(session: Session, version_ids: Iterable[str]) -> dict[str, list[str]]:
    """By model version: the deployed models whose active or pending revision uses it."""
    found: dict[str, list[str]] = {version_id: [] for version_id in version_ids}
    version = DeploymentRevision.spec["version_id"].as_string()
    query = (
        select(version, Endpoint.name, Deployment.name)
        .join(Deployment, Deployment.id == DeploymentRevision.deployment_id)
        .join(Endpoint, Endpoint.id == Deployment.endpoint_id)
        .where(
            Deployment.ended_at.is_(None),
            DeploymentRevision.number.in_([Deployment.target_revision, Deployment.stable_revision]),
            version.in_(found),
        )
        .distinct()
        .order_by(Endpoint.name, Deployment.name)
    )
    for version_id, endpoint, deployment in session.execute(query):
        found[version_id].append(holder_of(endpoint, deployment))
    return found


def newest_revision(session: Session, deployment_id: str) -> int:
    query = select(func.max(DeploymentRevision.number)).where(DeploymentRevision.deployment_id == deployment_id)
    return int(session.execute(query).scalar_one() or 0)


def serving_rows(session: Session, deployment_ids: Sequence[str]) -> Sequence[UntypedRow]:
    """Serving replicas that have not ended, oldest first, each with its job's state and wait reason."""
    query = with_reasons(
        select(
            ServingReplica, Job.state.label("job_state"), Job.desired_state.label("job_desired_state"),
            Job.exit.label("job_exit"), Job.wait_reason.label("job_wait_reason"), *reason_columns(),
        )
        .join(Job, Job.id == ServingReplica.job_id)
    ).where(
        ServingReplica.deployment_id.in_(deployment_ids), ServingReplica.state != ServingState.ENDED.value
    )  # fmt: skip
    query = query.order_by(ServingReplica.created_at, ServingReplica.id).execution_options(populate_existing=True)
    return session.execute(query).all()


def ended_replicas(session: Session, deployment_id: str, *, limit: int) -> Sequence[UntypedRow]:
    """(ServingReplica, job_state) of the newest ended replicas."""
    query = (
        select(ServingReplica, Job.state.label("job_state"))
        .join(Job, Job.id == ServingReplica.job_id)
        .where(ServingReplica.deployment_id == deployment_id, ServingReplica.state == ServingState.ENDED.value)
        .order_by(ServingReplica.ended_at.desc(), ServingReplica.id.desc())
        .limit(limit)
    )
    return session.execute(query).all()


def hosts_and_ports(session: Session, job_ids: Sequence[str]) -> dict[str, tuple[str, int]]:
    """Address of the only replica of each job's live attempt: as its engine reports it, else from the layout."""
    query = (
        select(Attempt.job_id, Attempt.layout, Replica.facts)
        .join(Replica, Replica.attempt_id == Attempt.id)
        .where(Attempt.job_id.in_(job_ids), Attempt.ended_at.is_(None), Attempt.layout.is_not(None), Replica.rank == 0)
        .order_by(Attempt.number)
    )
    found: dict[str, tuple[str, int]] = {}
    for job_id, layout, facts in session.execute(query):
        (first, *_) = Layout.from_json(layout or []).replicas
        found[job_id] = (str((facts or {}).get("address") or first.host), first.ports.framework)
    return found


def targets_of(session: Session, endpoint_id: str) -> list[ServingTarget]:
    """The ready replicas of an endpoint, by deployment and age."""
    query = (
        select(
            ServingReplica.id, ServingReplica.revision, ServingReplica.address, Deployment.name, Deployment.traffic,
            DeploymentRevision.spec,
        )
        .join(Deployment, Deployment.id == ServingReplica.deployment_id)
        .join(
            DeploymentRevision,
            (DeploymentRevision.deployment_id == Deployment.id)
            & (DeploymentRevision.number == ServingReplica.revision),
        )
        .where(
            Deployment.endpoint_id == endpoint_id, Deployment.state == DeploymentState.ACTIVE.value,
            ServingReplica.state == ServingState.READY.value,
        )
        .order_by(Deployment.name, ServingReplica.created_at, ServingReplica.id)
    )  # fmt: skip
    return [
        ServingTarget(
            row.id, row.name, row.revision, row.traffic, row.address, row.spec["predict_route"], row.spec["timeout_s"]
        )
        for row in session.execute(query)
    ]
