"""Changes of endpoints and their desired deployments; the control loop realises them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import select, update
from trainmaster.wire.serving import (
    BatchPredictRequest,
    DeployRequest,
    EndpointCreate,
    RollbackRequest,
    ServingSpec,
)

from api.app.unit_of_work import AppContext, UnitOfWork
from api.auth import Caller, ProjectMembership
from api.endpoints.access import EndpointAccess
from api.endpoints.checks import check_model_files, demand_own_output, own_image
from api.jobs.service import Submission, canonical, check_in_transaction, check_submission, request_field
from core.db.repositories import serving
from core.db.tables import Deployment, DeploymentRevision, Endpoint
from core.domain.errors import Conflict, InvalidRequest, InvalidSpec, NotFound, TrainmasterError
from core.domain.serving.jobs import batch_job, holder_of, read_port, replica_job
from core.domain.serving.rollout import DeploymentEvent, DeploymentState, advance_deployment
from core.ids import new_id
from core.registry.versions import hold, ready
from core.storage.volumes import split_location
from core.wakeups import TOPIC_ENDPOINT
from core.worker_packages import SERVING, demand_package, own_server

_MAX_DEPLOYMENTS: Final = 20  # of one endpoint
_DIGITS: Final = 10  # no version number is as long
# Fields of the replica's job spec and the field of the deploy request that they come from.
_FIELDS: Final = {"input": "model", "roles.worker.resources": "resources", "mounts.0": "input"}


@dataclass(frozen=True, slots=True)
class DeploymentDraft:
    """A checked revision. ``submission``: of one replica's job."""

    spec: ServingSpec
    submission: Submission


def create(work: UnitOfWork, caller: Caller, member: ProjectMembership, body: EndpointCreate) -> Endpoint:
    """Raises ``Conflict``: the project already has an endpoint of this name."""
    row = Endpoint(
        id=new_id("endpoint"), project_id=member.project_id, user_id=caller.user_id, name=body.name,
        description=body.description, created_at=work.now, updated_at=work.now,
    )  # fmt: skip
    work.add_unique(
        row, f"Project {member.project!r} already has an endpoint {body.name!r}; deploy to it, or choose another name."
    )
    record_event(work, caller, row, "endpoint.created")
    return row


def check_deploy(context: AppContext, access: EndpointAccess, body: DeployRequest) -> DeploymentDraft:
    """Check, without an open transaction, that a replica of the model can run here for this caller.

    Raises:
        InvalidSpec: all mistakes, each with its field.
        InvalidRequest: a rolling update that could never progress.
    """
    with context.read() as work:
        row, member = access.load(work.session)
        name = row.name
    if body.max_surge == 0 and body.max_unavailable == 0:
        raise InvalidRequest(
            "max_surge and max_unavailable are both 0, so no update could begin; set one of them to 1.",
            field="max_surge",
        )
    place = _find_model(context, member, body.model)
    is_process = context.settings.executor == "process"
    if is_process and body.port is not None:
        raise InvalidRequest(
            "port: plain processes share one address, and each gets its port in AIP_HTTP_PORT; remove `port`.",
            field="port",
        )
    own_port = body.env.get("AIP_HTTP_PORT")
    if own_port is not None and read_port(own_port) is None:
        raise InvalidRequest(
            f"env.AIP_HTTP_PORT: {own_port[:20]!r} is not a port from 1 to 65535.", field="env.AIP_HTTP_PORT"
        )
    given = body.model_dump(exclude={"deployment", "replicas", "traffic", "reason", "model"})
    has_own = body.image is None and body.command is None
    if has_own and is_process:
        demand_package(SERVING)
    spec = ServingSpec(
        **given,
        model=place.location,
        model_file=place.file,
        model_name=place.name,
        version_id=place.version_id,
        server_image=own_image(context, place.location, place.file, body.framework) if has_own else None,
    )
    raw = replica_job(
        spec,
        project=member.project,
        endpoint=name,
        deployment=body.deployment,
        revision=1,
        own_server=own_server() if is_process else None,
    )
    draft = DeploymentDraft(spec, _checked(context, access.caller, raw))
    # Arguments of the server, or another folder in the environment, could change how the model is loaded.
    if has_own and not body.args and "AIP_STORAGE_URI" not in body.env:
        _demand_readable(context, place, body)
    return draft


def deploy(
    work: UnitOfWork,
    access: EndpointAccess,
    body: DeployRequest,
    draft: DeploymentDraft,
    *,
    split_when_ready: dict[str, int] | None = None,
) -> Deployment:
    """Create a deployed model, or a new revision of an existing one.

    ``split_when_ready``: the traffic split of all deployed models once the new one is ready; it stays as it is before.
    """
    endpoint, _ = access.load(work.session, is_changing=True)
    with _errors_of_request():
        check_in_transaction(work, draft.submission)
    others = list(serving.live_deployments(work.session, [endpoint.id]))
    found = next((deployed for deployed in others if deployed.name == body.deployment), None)
    if found is not None and found.state == DeploymentState.UNDEPLOYING:
        raise Conflict(f"Deployed model {body.deployment!r} is being undeployed; wait until it has ended.")
    if found is None:
        if len(others) >= _MAX_DEPLOYMENTS:
            raise Conflict(f"An endpoint has at most {_MAX_DEPLOYMENTS} deployed models; undeploy one first.")
        free = 100 - sum(deployed.traffic for deployed in others)
        traffic = free if body.traffic is None else body.traffic
        _demand_free_traffic(others, None, traffic)
        found = Deployment(
            id=new_id("deployment"), endpoint_id=endpoint.id, name=body.deployment, state=DeploymentState.ACTIVE.value,
            generation=1, replicas=body.replicas or 1, traffic=traffic, target_revision=1, stable_revision=None,
            created_at=work.now, updated_at=work.now, split_when_ready=split_when_ready,
        )  # fmt: skip
        work.session.add(found)
        work.session.flush()
        number = 1
    else:
        if body.traffic is not None:
            _demand_free_traffic(others, found, body.traffic)
        number = serving.newest_revision(work.session, found.id) + 1
    if draft.spec.version_id is not None:
        hold(work.session, draft.spec.version_id, holder_of(endpoint.name, found.name), work.now)
    work.session.add(
        DeploymentRevision(
            deployment_id=found.id, number=number, spec=draft.spec.model_dump(mode="json"),
            user_id=access.caller.user_id, reason=body.reason, created_at=work.now, failures=0, failure_reason="",
        )
    )  # fmt: skip
    work.session.flush()
    if number > 1:
        _forget_failures(work, found)
        _change(
            work, found, target_revision=number, state=_after(found, DeploymentEvent.UPDATE),
            replicas=body.replicas or found.replicas, traffic=found.traffic if body.traffic is None else body.traffic,
        )  # fmt: skip
    record_event(
        work, access.caller, endpoint, "deployment.deployed", body.reason, deployment=found.name, revision=number
    )
    work.notify(TOPIC_ENDPOINT, endpoint.id)
    return found


def scale(work: UnitOfWork, access: EndpointAccess, name: str, replicas: int) -> Endpoint:
    endpoint, _ = access.load(work.session, is_changing=True)
    row = access.deployment(work.session, endpoint, name)
    _demand_active(row)
    _change(work, row, replicas=replicas)
    record_event(work, access.caller, endpoint, "deployment.scaled", f"{replicas} replicas.", deployment=name)
    work.notify(TOPIC_ENDPOINT, endpoint.id)
    return endpoint


def roll_back(work: UnitOfWork, access: EndpointAccess, name: str, body: RollbackRequest) -> Endpoint:
    """Roll back to an earlier revision.

    Raises:
        Conflict: there is no earlier revision, or it is the current one.
    """
    endpoint, _ = access.load(work.session, is_changing=True)
    row = access.deployment(work.session, endpoint, name)
    if row.state == DeploymentState.UNDEPLOYING:
        raise Conflict(f"Deployed model {name!r} is being undeployed; deploy it again when that has ended.")
    query = select(DeploymentRevision).where(DeploymentRevision.deployment_id == row.id)
    if body.revision is None:
        served = query.where(DeploymentRevision.number < row.target_revision, DeploymentRevision.stable_at.is_not(None))
        revision = work.session.scalars(served.order_by(DeploymentRevision.number.desc()).limit(1)).one_or_none()
        if revision is None:
            raise Conflict(
                f"No revision before {row.target_revision} of {name!r} has ever been stable; name one with `revision`."
            )
    else:
        revision = work.session.scalars(query.where(DeploymentRevision.number == body.revision)).one_or_none()
        if revision is None:
            newest = serving.newest_revision(work.session, row.id)
            raise InvalidRequest(f"{name!r} has no revision {body.revision}; it has 1 to {newest}.", field="revision")
    if revision.number == row.target_revision and row.state == DeploymentState.ACTIVE:
        raise Conflict(f"Revision {revision.number} of {name!r} is already the current one.")
    spec = ServingSpec.model_validate(revision.spec)
    if spec.version_id is not None:
        _demand_version(work, spec, revision.number, holder_of(endpoint.name, row.name))
    _forget_failures(work, row)
    revision.failures, revision.failure_reason = 0, ""
    work.session.flush()
    _change(work, row, target_revision=revision.number, state=_after(row, DeploymentEvent.UPDATE))
    reason = body.reason or f"Rolled back to revision {revision.number}."
    record_event(
        work, access.caller, endpoint, "deployment.rolled_back", reason, deployment=name, revision=revision.number
    )
    work.notify(TOPIC_ENDPOINT, endpoint.id)
    return endpoint


def _demand_version(work: UnitOfWork, spec: ServingSpec, number: int, holder: str) -> None:
    """Raises ``Conflict``: the model version of the revision was deleted from the registry."""
    try:
        hold(work.session, str(spec.version_id), holder, work.now)
    except NotFound:
        raise Conflict(
            f"Revision {number} cannot serve again: its model {spec.model_name} was deleted from the registry. Deploy "
            "another version, or name another revision with `revision`.",
            field="revision",
        ) from None


def _forget_failures(work: UnitOfWork, row: Deployment) -> None:
    """A user chose a new target, so earlier failures are no longer shown as current; their reasons stay."""
    work.session.execute(
        update(DeploymentRevision)
        .where(DeploymentRevision.deployment_id == row.id, DeploymentRevision.failed_at.is_not(None))
        .values(failed_at=None)
    )


def set_traffic(work: UnitOfWork, access: EndpointAccess, wanted: dict[str, int]) -> Endpoint:
    endpoint, _ = access.load(work.session, is_changing=True)
    rows = {
        deployed.name: access.deployment(work.session, endpoint, deployed.name)
        for deployed in serving.live_deployments(work.session, [endpoint.id])
    }
    for name, part in wanted.items():
        if name not in rows:
            raise InvalidRequest(f"traffic.{name}: no model of this name is deployed.", field=f"traffic.{name}")
        if part and rows[name].state == DeploymentState.UNDEPLOYING:
            raise Conflict(
                f"traffic.{name}: it is being undeployed; give its share to the others.", field=f"traffic.{name}"
            )
        if not 0 <= part <= 100:
            raise InvalidRequest(f"traffic.{name}: {part} is not a percentage from 0 to 100.", field=f"traffic.{name}")
    if sum(wanted.values()) != 100:
        raise InvalidRequest(f"traffic: the shares add up to {sum(wanted.values())} %; make it 100 %.", field="traffic")
    for name, row in rows.items():
        # The last request counts: a split planned for later is cancelled.
        if row.traffic != wanted.get(name, 0) or row.split_when_ready is not None:
            _change(work, row, traffic=wanted.get(name, 0), split_when_ready=None)
    words = ", ".join(f"{name} {part} %" for name, part in wanted.items())
    record_event(work, access.caller, endpoint, "endpoint.traffic_set", words)
    return endpoint


def undeploy(work: UnitOfWork, access: EndpointAccess, name: str) -> Endpoint:
    """Its replicas drain and end. Its traffic goes to the other deployed models in proportion to their shares."""
    endpoint, _ = access.load(work.session, is_changing=True)
    row = access.deployment(work.session, endpoint, name)
    if row.state != DeploymentState.UNDEPLOYING:
        _undeploy(work, access.caller, endpoint, row)
        work.notify(TOPIC_ENDPOINT, endpoint.id)
    return endpoint


def delete(work: UnitOfWork, access: EndpointAccess) -> None:
    """Undeploy all models; the endpoint is deleted when that has ended. Idempotent."""
    endpoint, _ = access.load(work.session)
    if endpoint.deleting_at is not None:
        return
    endpoint, _ = access.load(work.session, is_changing=True)
    for row in serving.live_deployments(work.session, [endpoint.id]):
        if row.state != DeploymentState.UNDEPLOYING:
            _undeploy(work, access.caller, endpoint, access.deployment(work.session, endpoint, row.name))
    endpoint.deleting_at = endpoint.updated_at = work.now
    work.session.flush()
    record_event(work, access.caller, endpoint, "endpoint.delete_requested")
    work.notify(TOPIC_ENDPOINT, endpoint.id)


def check_batch(
    context: AppContext, caller: Caller, member: ProjectMembership, body: BatchPredictRequest
) -> Submission:
    """Check, without an open transaction, that the job of a batch prediction can run here for this caller.

    Raises:
        Conflict: the output has predictions of another model, or with other options.
    """
    model = _find_model(context, member, body.model)
    instances, instances_file = _folder_of(context, body.input, field="input")
    is_process = context.settings.executor == "process"
    if is_process and body.image is None:
        demand_package(SERVING)
    raw = batch_job(
        body,
        project=member.project,
        model=model.location,
        model_file=model.file,
        instances=instances,
        instances_file=instances_file,
        image=body.image or own_image(context, model.location, model.file, body.framework),
        own_server=own_server() if is_process else None,
        model_name=model.name,
        model_digest=model.digest,
    )
    submission = _checked(context, caller, raw)
    if body.image is None and "AIP_STORAGE_URI" not in body.env:
        _demand_readable(context, model, body)
    demand_own_output(context, submission.output, body, model.name, model.digest)
    return submission


def record_event(work: UnitOfWork, caller: Caller, row: Endpoint, kind: str, reason: str = "", **data: Any) -> None:
    data = {"endpoint": row.id, "name": row.name, **data}
    work.record_event(kind, caller.actor, project_id=row.project_id, reason=reason, data=data)


def _undeploy(work: UnitOfWork, caller: Caller, endpoint: Endpoint, row: Deployment) -> None:
    _change(work, row, state=_after(row, DeploymentEvent.UNDEPLOY), traffic=0)
    record_event(work, caller, endpoint, "deployment.undeploy_requested", deployment=row.name)


def _after(row: Deployment, event: DeploymentEvent) -> str:
    return advance_deployment(DeploymentState(row.state), event).value


def _change(work: UnitOfWork, row: Deployment, **values: Any) -> None:
    serving.change_deployment(work.session, row.id, row.generation, work.now, **values)
    work.session.refresh(row)


def _demand_active(row: Deployment) -> None:
    if row.state == DeploymentState.UNDEPLOYING:
        raise Conflict(f"Deployed model {row.name!r} is being undeployed.")
    if row.state == DeploymentState.FAILED:
        raise Conflict(f"Deployed model {row.name!r} has failed: deploy another revision, or roll back.")


def _demand_free_traffic(others: list[Deployment], own: Deployment | None, traffic: int) -> None:
    taken = sum(other.traffic for other in others if other is not own)
    if taken + traffic > 100:
        raise InvalidRequest(
            f"traffic: {traffic} % is more than the {100 - taken} % that the other models leave; set all shares at "
            "once with `trainmaster endpoint traffic`.",
            field="traffic",
        )


@dataclass(frozen=True, slots=True)
class _ModelLocation:
    """Where a model is: volume/path of its folder, and the file in it if the model is one file.

    ``digest``: of the files of a registry version.
    """

    location: str
    file: str
    name: str
    version_id: str | None = None
    digest: str = ""


def _find_model(context: AppContext, member: ProjectMembership, model: str) -> _ModelLocation:
    """Resolve ``name@version`` or ``name@alias`` of the project's registry, or volume/path.

    Raises:
        NotFound, Conflict: the registry has no such version, or it is not ready.
    """
    name, at, ref = model.partition("@")
    if not at or "/" in model:
        location, file = _folder_of(context, model, field="model")
        return _ModelLocation(location, file, model)
    with context.read() as work:
        found = ready(work.session, member.project_id, name, _version(ref))
    return _ModelLocation(f"{found.volume}/{found.path}", "", f"{name}@{found.version}", found.id, found.digest)


def _version(ref: str) -> int | str:
    """A number, or else an alias."""
    return int(ref) if ref.isascii() and ref.isdecimal() and len(ref) < _DIGITS else ref


def _folder_of(context: AppContext, location: str, *, field: str) -> tuple[str, str]:
    """volume/path of the folder, and the name of the file in it if the location is a file.

    Access and existence are checked with the paths of the job.
    """
    volume, path = split_location(location, field=field)
    tree = context.tree_of(volume)
    try:
        if tree is None or not path or tree.stat(path).is_dir:
            return location, ""
    except TrainmasterError:
        return location, ""
    folder, _, name = path.rpartition("/")
    return f"{volume}/{folder}" if folder else volume, name


def _demand_readable(context: AppContext, place: _ModelLocation, body: DeployRequest | BatchPredictRequest) -> None:
    """Raises ``InvalidRequest``: the platform's own server would refuse the model's files at once."""
    label = place.location if place.version_id is None else place.name
    check_model_files(
        context, place.location, place.file, label=label, framework=body.framework, trusts_code=body.trust_code
    )


def _checked(context: AppContext, caller: Caller, raw: dict[str, Any]) -> Submission:
    with _errors_of_request():
        return check_submission(context, caller, canonical(raw))


@contextmanager
def _errors_of_request() -> Iterator[None]:
    """Errors about the job spec are reported in terms of the request's fields."""
    try:
        yield
    except InvalidSpec as error:
        errors: list[dict[str, str | None]] = [
            {**item, "path": request_field(item.get("path"), _FIELDS)} for item in error.errors
        ]
        first = errors[0] if errors else {"path": request_field(error.field, _FIELDS), "message": error.sentence}
        raise InvalidSpec(
            f"{first['path']}: {str(first['message']).rstrip('.')}.", field=first["path"], errors=errors
        ) from error
