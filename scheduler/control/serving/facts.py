"""What one reconcile pass knows of an endpoint, as values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy.orm import Session
from trainmaster.wire.serving import ServingSpec

from core.db.engine import UntypedRow
from core.db.repositories import serving
from core.db.tables import Deployment, DeploymentRevision, Endpoint, Project, ServingReplica
from core.domain.jobs.states import DesiredState, JobState
from core.domain.serving.jobs import container_port
from core.domain.serving.rollout import DeployedModel, DeploymentState, Revision, ServingReplicaStatus, ServingState


@dataclass(frozen=True, slots=True)
class DeploymentFacts:
    """``addresses``: host:port of each serving replica whose job runs. ``jobs``: the job of each. ``written``: the
    columns of its row.
    """

    id: str
    name: str
    generation: int
    split_when_ready: Mapping[str, int] | None
    deployed: DeployedModel
    specs: Mapping[int, ServingSpec]
    user_ids: Mapping[int, str]  # the user who deployed each revision
    addresses: Mapping[str, str]
    jobs: Mapping[str, str]
    written: Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class EndpointFacts:
    id: str
    name: str
    project_id: str
    project: str
    is_deleting: bool
    deployments: tuple[DeploymentFacts, ...]

    @property
    def is_settled(self) -> bool:
        """Whether everything is as wanted, so that an occasional reconcile is enough."""
        return not self.is_deleting and all(_is_settled(deployment.deployed) for deployment in self.deployments)


def load_endpoint(session: Session, endpoint_id: str, now: datetime) -> EndpointFacts | None:
    """``None``: there is none of this id, or it was deleted."""
    found = session.get(Endpoint, endpoint_id, populate_existing=True)
    if found is None or found.deleted_at is not None:
        return None
    deployments = serving.live_deployments(session, [endpoint_id])
    rows = serving.serving_rows(session, [deployment.id for deployment in deployments])
    running = [row.ServingReplica.job_id for row in rows if row.job_state == JobState.RUNNING]
    places = serving.hosts_and_ports(session, running)
    return EndpointFacts(
        id=found.id,
        name=found.name,
        project_id=found.project_id,
        project=session.get_one(Project, found.project_id).name,
        is_deleting=found.deleting_at is not None,
        deployments=tuple(
            _deployment(
                session, item, [row for row in rows if row.ServingReplica.deployment_id == item.id], places, now
            )
            for item in deployments
        ),
    )


def _deployment(
    session: Session,
    row: Deployment,
    servers: Sequence[UntypedRow],
    places: Mapping[str, tuple[str, int]],
    now: datetime,
) -> DeploymentFacts:
    numbers = {row.target_revision, *(server.ServingReplica.revision for server in servers)}
    if row.stable_revision is not None:
        numbers.add(row.stable_revision)
    revisions = serving.revisions_of(session, row.id, numbers=numbers, limit=len(numbers))
    specs = {revision.number: ServingSpec.model_validate(revision.spec) for revision in revisions}
    addresses = {}
    for server in servers:
        if server.ServingReplica.job_id in places:
            host, port = places[server.ServingReplica.job_id]
            # The server of an image listens where the job's environment says, the same in each replica.
            own = specs[server.ServingReplica.revision]
            addresses[server.ServingReplica.id] = _address(host, port, own)
    return DeploymentFacts(
        id=row.id,
        name=row.name,
        generation=row.generation,
        split_when_ready=row.split_when_ready,
        deployed=DeployedModel(
            state=DeploymentState(row.state),
            replicas=row.replicas,
            target_revision=row.target_revision,
            stable_revision=row.stable_revision,
            revisions=tuple(_revision(revision, specs[revision.number]) for revision in revisions),
            servers=tuple(_server(server, addresses, now) for server in servers),
        ),
        specs=specs,
        user_ids={revision.number: revision.user_id for revision in revisions},
        addresses=addresses,
        jobs={server.ServingReplica.id: server.ServingReplica.job_id for server in servers},
        written={
            server.ServingReplica.id: columns_of(server.ServingReplica, server.ServingReplica.address)
            for server in servers
        },
    )


def columns_of(server: ServingReplicaStatus | ServingReplica, address: str) -> dict[str, Any]:
    """The columns of a serving replica that a pass may change."""
    return {
        "address": address,
        "state": ServingState(server.state).value,
        "failed_probes": server.failed_probes,
        "message": server.message,
        "running_since": server.running_since,
        "ready_at": server.ready_at,
        "draining_at": server.draining_at,
    }


def _address(host: str, port: int, spec: ServingSpec) -> str:
    is_container = spec.image is not None or spec.server_image is not None
    number = container_port(spec) if is_container else port
    return f"[{host}]:{number}" if ":" in host else f"{host}:{number}"


def _revision(row: DeploymentRevision, spec: ServingSpec) -> Revision:
    return Revision(
        number=row.number,
        ready_timeout=timedelta(seconds=spec.ready_timeout_s),
        drain=timedelta(seconds=spec.drain_s),
        max_surge=spec.max_surge,
        max_unavailable=spec.max_unavailable,
        stable_at=row.stable_at,
        failures=row.failures,
        failed_at=row.failed_at,
        failure_reason=row.failure_reason,
    )


def _server(row: UntypedRow, addresses: Mapping[str, str], now: datetime) -> ServingReplicaStatus:
    replica, state = row.ServingReplica, JobState(row.job_state)
    runs = state is JobState.RUNNING and replica.id in addresses
    # A new address is a new process: the job was restarted meanwhile.
    is_same = runs and replica.address in ("", addresses[replica.id])
    words = replica.message
    if state.is_terminal:
        sentence = str((row.job_exit or {}).get("sentence", "")) or f"Its job {state.value}."
        # The reason why the platform stopped it says more than its job's exit.
        words = words if replica.state == ServingState.DRAINING and words else sentence
    elif state is JobState.QUEUED:
        reason = row.job_wait_reason or {}
        words = str(reason.get("sentence") or row.shape_sentence or "Its job waits for a place.")
    elif not runs and replica.state != ServingState.DRAINING:
        words = "Its job is being started."
    was = ServingState(replica.state)
    return ServingReplicaStatus(
        id=replica.id,
        revision=replica.revision,
        state=ServingState.STARTING if runs and not is_same and was is ServingState.READY else was,
        created_at=replica.created_at,
        running_since=None if not runs else replica.running_since if is_same and replica.running_since else now,
        is_over=state.is_terminal,
        is_cancelled=row.job_desired_state == DesiredState.CANCEL,
        failed_probes=replica.failed_probes,
        ready_at=replica.ready_at if is_same or not runs else None,
        draining_at=replica.draining_at,
        message=words,
    )


def _is_settled(deployed: DeployedModel) -> bool:
    ready = [server for server in deployed.servers if server.state is ServingState.READY]
    return (
        deployed.state in (DeploymentState.ACTIVE, DeploymentState.FAILED)
        and len(ready) == len(deployed.servers)
        and (deployed.state is DeploymentState.FAILED or len(ready) == deployed.replicas)
        and all(server.revision == deployed.target_revision and not server.failed_probes for server in ready)
    )
