"""Endpoints and what is deployed to them as the wire shows them."""

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

from core.db.repositories import serving
from core.db.rows import AnyRow
from core.db.tables import Deployment, DeploymentRevision, Endpoint, Project, User
from core.domain.jobs.states import JobState
from core.domain.serving.states import DeploymentState, ServingState

_ENDED_SHOWN: Final = 20


def endpoint_views(session: Session, rows: Sequence[Endpoint]) -> list[EndpointView]:
    deployments = serving.live_deployments(session, [row.id for row in rows])
    servers = serving.serving_rows(session, [one.id for one in deployments])
    return [
        EndpointView(
            **_own_fields(session, row),
            deployments=[
                DeploymentView(**_deployment(session, one, _of(servers, one)))
                for one in deployments
                if one.endpoint_id == row.id
            ],
        )
        for row in rows
    ]


def endpoint_detail(session: Session, row: Endpoint) -> EndpointDetail:
    deployments = serving.live_deployments(session, [row.id])
    servers = serving.serving_rows(session, [one.id for one in deployments])
    return EndpointDetail(
        **_own_fields(session, row), deployments=[_detail(session, one, _of(servers, one)) for one in deployments]
    )


def not_ready_words(session: Session, endpoint_id: str, deployment: str | None) -> str:
    """Why nobody can answer, for who asked: what is deployed, and what its replicas wait for."""
    deployments = serving.live_deployments(session, [endpoint_id])
    asked = [one for one in deployments if deployment in (None, one.name)]
    if not asked:
        return (
            "nothing is deployed to it" if deployment is None or not deployments
            else f"it has no deployed model {deployment!r}, but {', '.join(one.name for one in deployments)}"
        )  # fmt: skip
    servers = serving.serving_rows(session, [one.id for one in asked])
    told = []
    for one in asked:
        if deployment is None and one.traffic == 0 and len(asked) > 1:
            continue
        fields = _deployment(session, one, _of(servers, one))
        told.append(f"{one.name} is {fields['state']}" + (f": {fields['note']}" if fields["note"] else ""))
    return "; ".join(told) or "none of its deployed models gets any traffic"


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


def _of(servers: Sequence[AnyRow], deployment: Deployment) -> list[AnyRow]:
    return [one for one in servers if one.ServingReplica.deployment_id == deployment.id]


def _detail(session: Session, row: Deployment, servers: Sequence[AnyRow]) -> DeploymentDetail:
    revisions = serving.revisions_of(session, row.id)
    users = {user.id: user.name for user in session.scalars(
        select(User).where(User.id.in_({one.user_id for one in revisions}))
    )}  # fmt: skip
    ended = serving.ended_replicas(session, row.id, limit=_ENDED_SHOWN)
    return DeploymentDetail(
        **_deployment(session, row, servers),
        revision_list=[_revision(one, users[one.user_id]) for one in revisions],
        replica_list=[_replica(one) for one in (*servers, *ended)],
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


def _replica(row: AnyRow) -> ServingReplicaView:
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


def change_view(row: AnyRow) -> EndpointChange:
    data = row.data
    return EndpointChange(
        at=row.at, what=row.kind, actor=row.actor, deployment=data.get("deployment"), revision=data.get("revision"),
        reason=row.reason,
    )  # fmt: skip


def _words(row: AnyRow) -> str:
    """What the planner says of a job that waits is newer than what was written down of it."""
    words = str(row.ServingReplica.message)
    if row.job_state != JobState.QUEUED:
        return words
    return str((row.job_wait_reason or {}).get("sentence") or row.shape_sentence or words)


def _deployment(session: Session, row: Deployment, servers: Sequence[AnyRow]) -> dict[str, Any]:
    revisions = serving.revisions_of(session, row.id, limit=1)
    if all(one.number != row.target_revision for one in revisions):
        revisions = [*revisions, *serving.revisions_of(session, row.id, numbers=[row.target_revision])]
    wanted = next(one for one in revisions if one.number == row.target_revision)
    ready = sum(one.ServingReplica.state == ServingState.READY for one in servers)
    state = _state(row, servers)
    note = ""
    if state == "failed":
        note = wanted.failure_reason
    elif state == "ready":
        # The newest that was given up, until somebody has another one serve.
        given_up = [
            (one.failed_at, one.failure_reason)
            for one in serving.revisions_of(session, row.id)
            if one.failure_reason and one.failed_at is not None
        ]
        note = max(given_up)[1] if given_up else ""
    elif state != "ended":
        starting = [_words(one) for one in servers if one.ServingReplica.state == ServingState.STARTING]
        if not starting and ready < row.replicas:
            starting = [one.ServingReplica.message for one in serving.ended_replicas(session, row.id, limit=1)]
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


def _state(row: Deployment, servers: Sequence[AnyRow]) -> WireState:
    match DeploymentState(row.state):
        case DeploymentState.FAILED:
            return "failed"
        case DeploymentState.UNDEPLOYING:
            return "undeploying"
        case DeploymentState.ENDED:
            return "ended"
        case DeploymentState.ACTIVE:
            pass
    up = [one.ServingReplica for one in servers if ServingState(one.ServingReplica.state).is_up]
    if row.stable_revision != row.target_revision or any(one.revision != row.target_revision for one in up):
        return "deploying" if row.replicas else "ready"
    return "ready" if sum(one.state == ServingState.READY for one in up) >= row.replicas else "degraded"
