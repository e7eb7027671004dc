"""REST views of endpoints and their deployed models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import select
from sqlalchemy.orm import Session
from trainmaster.wire.serving import (
    DeploymentDetail,
    DeploymentView,
    EndpointChange,
    EndpointDetail,
    EndpointView,
    RevisionView,
    ServingReplicaView,
    ServingSpec,
)
from trainmaster.wire.serving import DeploymentState as WireState

from core.db.engine import UntypedRow
from core.db.repositories import serving
from core.db.tables import Deployment, DeploymentRevision, Endpoint, Project, User
from core.domain.jobs.states import JobState
from core.domain.serving.rollout import DeploymentState, ServingState

_ENDED_SHOWN: Final = 20


def endpoint_views(session: Session, rows: Sequence[Endpoint]) -> list[EndpointView]:
    deployments = serving.live_deployments(session, [row.id for row in rows])
    servers = serving.serving_rows(session, [deployed.id for deployed in deployments])
    return [
        EndpointView(
            **_own_fields(session, row),
            deployments=[
                DeploymentView(**_deployment(session, deployed, _of(servers, deployed)))
                for deployed in deployments
                if deployed.endpoint_id == row.id
            ],
        )
        for row in rows
    ]


def endpoint_detail(session: Session, row: Endpoint) -> EndpointDetail:
    deployments = serving.live_deployments(session, [row.id])
    servers = serving.serving_rows(session, [deployed.id for deployed in deployments])
    return EndpointDetail(
        **_own_fields(session, row),
        deployments=[_detail(session, deployed, _of(servers, deployed)) for deployed in deployments],
    )


def not_ready_reason(session: Session, endpoint_id: str, deployment: str | None) -> str:
    """Why no replica is ready: the states of the deployed models, and what their replicas wait for."""
    deployments = serving.live_deployments(session, [endpoint_id])
    selected = [deployed for deployed in deployments if deployment in (None, deployed.name)]
    if not selected:
        return (
            "nothing is deployed to it" if deployment is None or not deployments
            else f"it has no deployed model {deployment!r}, but {', '.join(deployed.name for deployed in deployments)}"
        )  # fmt: skip
    servers = serving.serving_rows(session, [deployed.id for deployed in selected])
    reasons = []
    for deployed in selected:
        if deployment is None and deployed.traffic == 0 and len(selected) > 1:
            continue
        fields = _deployment(session, deployed, _of(servers, deployed))
        reasons.append(f"{deployed.name} is {fields['state']}" + (f": {fields['note']}" if fields["note"] else ""))
    return "; ".join(reasons) or "none of its deployed models gets any traffic"


def _own_fields(session: Session, row: Endpoint) -> dict[str, Any]:
    return {
        "id": row.id,
        "name": row.name,
        "project": session.get_one(Project, row.project_id).name,
        "user": session.get_one(User, row.user_id).name,
        "description": row.description,
        "created_at": row.created_at,
        "deleting_at": row.deleting_at,
    }


def _of(servers: Sequence[UntypedRow], deployment: Deployment) -> list[UntypedRow]:
    return [server for server in servers if server.ServingReplica.deployment_id == deployment.id]


def _detail(session: Session, row: Deployment, servers: Sequence[UntypedRow]) -> DeploymentDetail:
    revisions = serving.revisions_of(session, row.id)
    users = {user.id: user.name for user in session.scalars(
        select(User).where(User.id.in_({revision.user_id for revision in revisions}))
    )}  # fmt: skip
    ended = serving.ended_replicas(session, row.id, limit=_ENDED_SHOWN)
    return DeploymentDetail(
        **_deployment(session, row, servers),
        revision_list=[_revision(revision, users[revision.user_id]) for revision in revisions],
        replica_list=[_replica(replica) for replica in (*servers, *ended)],
    )


def _revision(row: DeploymentRevision, user: str) -> RevisionView:
    return RevisionView(
        number=row.number,
        spec=ServingSpec.model_validate(row.spec),
        user=user,
        reason=row.reason,
        failures=row.failures,
        verdict=row.failure_reason,
        created_at=row.created_at,
        stable_at=row.stable_at,
    )


def _replica(row: UntypedRow) -> ServingReplicaView:
    replica = row.ServingReplica
    return ServingReplicaView(
        id=replica.id,
        revision=replica.revision,
        state=replica.state,
        job=replica.job_id,
        job_state=row.job_state,
        words=_words(row),
        created_at=replica.created_at,
        ready_at=replica.ready_at,
        ended_at=replica.ended_at,
    )


def change_view(row: UntypedRow) -> EndpointChange:
    data = row.data
    return EndpointChange(
        at=row.at, what=row.kind, actor=row.actor, deployment=data.get("deployment"), revision=data.get("revision"),
        reason=row.reason,
    )  # fmt: skip


def _words(row: UntypedRow) -> str:
    """The message of a replica. For a queued job, the planner's reason is newer than the stored message."""
    words = str(row.ServingReplica.message)
    if row.job_state != JobState.QUEUED:
        return words
    return str((row.job_wait_reason or {}).get("sentence") or row.shape_sentence or words)


def _deployment(session: Session, row: Deployment, servers: Sequence[UntypedRow]) -> dict[str, Any]:
    revisions = serving.revisions_of(session, row.id, limit=1)
    if all(item.number != row.target_revision for item in revisions):
        revisions = [*revisions, *serving.revisions_of(session, row.id, numbers=[row.target_revision])]
    wanted = next(item for item in revisions if item.number == row.target_revision)
    ready = sum(item.ServingReplica.state == ServingState.READY for item in servers)
    state = _state(row, servers)
    note = ""
    if state == "failed":
        note = wanted.failure_reason
    elif state == "ready":
        # The last failed revision, until a user deploys or rolls back to another one.
        failures = [
            (revision.failed_at, revision.failure_reason)
            for revision in serving.revisions_of(session, row.id)
            if revision.failure_reason and revision.failed_at is not None
        ]
        note = max(failures)[1] if failures else ""
    elif state != "ended":
        starting = [_words(item) for item in servers if item.ServingReplica.state == ServingState.STARTING]
        if not starting and ready < row.replicas:
            starting = [item.ServingReplica.message for item in serving.ended_replicas(session, row.id, limit=1)]
        note = next((words for words in starting if words), "")
    spec = ServingSpec.model_validate(wanted.spec)
    return {
        "id": row.id,
        "name": row.name,
        "state": state,
        "note": note,
        "traffic": row.traffic,
        "replicas": row.replicas,
        "ready": ready,
        "wanted": row.target_revision,
        "stable": row.stable_revision,
        "model": spec.model_name or spec.model,
        "created_at": row.created_at,
    }


def _state(row: Deployment, servers: Sequence[UntypedRow]) -> WireState:
    match DeploymentState(row.state):
        case DeploymentState.FAILED:
            return "failed"
        case DeploymentState.UNDEPLOYING:
            return "undeploying"
        case DeploymentState.ENDED:
            return "ended"
        case DeploymentState.ACTIVE:
            pass
    up = [replica.ServingReplica for replica in servers if ServingState(replica.ServingReplica.state).is_up]
    if row.stable_revision != row.target_revision or any(replica.revision != row.target_revision for replica in up):
        return "deploying" if row.replicas else "ready"
    return "ready" if sum(replica.state == ServingState.READY for replica in up) >= row.replicas else "degraded"
