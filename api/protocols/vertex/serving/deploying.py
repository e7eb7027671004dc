"""``endpoints.deployModel`` and ``undeployModel``: operations that the control loop carries out.

An operation is named after the deployed model's id. It needs no row: the deployment has its progress.
"""

from __future__ import annotations

import re
from typing import Any, Final

from sqlalchemy.orm import Session
from trainmaster.spec.fields import NAME_PATTERN
from trainmaster.wire.serving import DeployRequest

from api.app.unit_of_work import AppContext
from api.endpoints import service
from api.protocols.kit.errors import NotServed, parse_request
from api.protocols.kit.json_values import slug
from api.protocols.kit.vertex_table import table_of
from api.protocols.vertex.long_running import (
    CANCELLED,
    FAILED_PRECONDITION,
    error_status,
    operation_metadata,
    operation_not_found,
    operation_view,
    pack_any,
)
from api.protocols.vertex.names import Parent, VertexCall
from api.protocols.vertex.proto import Message
from api.protocols.vertex.serving import endpoints, models
from api.protocols.vertex.serving.containers import (
    ModelContainer,
    ReplicaResources,
    ServerChoice,
    read_container,
    read_dedicated,
    server_of,
)
from api.protocols.vertex.serving.endpoints import COLLECTION, read_split
from api.protocols.vertex.training.jobs import check_placement
from core.db.repositories import serving
from core.db.tables import Deployment, Endpoint, ModelVersion, VertexEndpoint
from core.domain.errors import Conflict
from core.domain.serving.rollout import DeploymentState

DEPLOY: Final = "deploy"
UNDEPLOY: Final = "undeploy"
NEW_MODEL: Final = "0"  # in a traffic split: the model that is being deployed
_SERVED: Final = {
    "id",
    "model",
    "modelVersionId",
    "displayName",
    "dedicatedResources",
    "createTime",
    "disableContainerLogging",
    "disableExplanations",
    "status",
}
_ABSENT: Final = {
    "automaticResources": "automatic resources are (give machine_type, or min_replica_count)",
    "sharedResources": "shared pools of resources are",
    "explanationSpec": "explanations are",
    "serviceAccount": "service accounts are",
    "enableAccessLogging": "access logs are",
    "privateEndpoints": "private endpoints are",
    "fasterDeploymentConfig": "fast deployment is",
    "rolloutOptions": "options of a rollout are",
    "systemLabels": "labels of the system are",
    "speculativeDecodingSpec": "speculative decoding is",
    "checkpointId": "checkpoints of a model are",
    "gdcConnectedModel": "Google Distributed Cloud is",
    "fullFineTunedResources": "tuned models of Google's are",
}
_DISPLAY_NAME: Final = 128
_ID: Final = 63
_TRIES: Final = 20
# Formats that Google's pre-built containers load and our server does not.
_UNREAD: Final = {"torchserve": "an archive of TorchServe (.mar)"}


def deploy(call: VertexCall, resource_id: str, raw: Any) -> dict[str, Any]:
    """An operation, done when all replicas are ready.

    Raises:
        InvalidRequest, NotServed, InvalidSpec: an invalid request.
        NotFound, Forbidden, NoCapacity, Conflict
    """
    message = Message(raw, "deploy_model_request")
    message.refuse_unknown_fields({"endpoint", "deployedModel", "trafficSplit"})
    model_message = message.required("deployedModel")
    model_message.refuse_unknown_fields(_SERVED, absent=_ABSENT)
    table = table_of(call.context)
    resources = read_dedicated(model_message, table, call.parent.location)
    with call.context.read() as work:
        endpoint, _ = endpoints.find(work.session, call, resource_id, "member", verb="endpoints.deploy")
        model, version = models.find_named(work.session, call, model_message, "model")
        display_name = model_message.text("displayName", _DISPLAY_NAME) or models.display_name_of(model, version)
        name = _free_id(work.session, endpoint, model_message, slug(display_name))
    container = read_container(Message(version.registration.get(models.KEY, {}), "model"))
    server = server_of(container, table, is_plain=call.context.settings.executor == "process")
    _demand_readable(version, server)
    access = endpoints.access_to(call, endpoint, "member")
    request = _request(call.context, endpoint, name, f"{model.name}@{version.number}", server, resources)
    draft = service.check_deploy(call.context, access, request)
    check_placement(call, draft.submission)
    with call.context.write() as work:
        row, _ = access.load(work.session, is_changing=True)
        split = _split(work.session, message, row, name)
        for failed in serving.live_deployments(work.session, [row.id]):
            if failed.state == DeploymentState.FAILED:  # in Vertex AI it is gone once its operation has failed
                service.undeploy(work, access, failed.name)
        others = any(deployment.traffic for deployment in serving.live_deployments(work.session, [row.id]))
        first_request = request.model_copy(update={"traffic": 0 if others else split.get(name, 0)})
        deployed = service.deploy(
            work, access, first_request, draft, split_when_ready=split if others and split else None
        )
        about = work.session.get(VertexEndpoint, row.id) or endpoints.add_metadata(work, call.parent, row)
        shown = {"displayName": display_name, "dedicatedResources": model_message.raw("dedicatedResources")}
        about.deployed = {**about.deployed, name: {key: value for key, value in shown.items() if value}}
        work.session.flush()
        return progress(work.session, call.parent, row, deployed, DEPLOY)


def undeploy(call: VertexCall, resource_id: str, raw: Any) -> dict[str, Any]:
    """An operation, done when the replicas have ended. Its traffic goes to the other models, or by ``trafficSplit``."""
    message = Message(raw, "undeploy_model_request")
    message.refuse_unknown_fields({"endpoint", "deployedModelId", "trafficSplit"})
    name = message.text("deployedModelId", _ID)
    if not name:
        raise message.missing("deployedModelId")
    with call.context.write() as work:
        row, _ = endpoints.find(work.session, call, resource_id, "member", verb="endpoints.undeploy")
        access = endpoints.access_to(call, row, "member")
        access.load(work.session, is_changing=True)
        access.deployment(work.session, row, name)
        if message.has("trafficSplit"):
            others = {deployment.name for deployment in endpoints.active_deployments(work.session, row)} - {name}
            service.set_traffic(work, access, read_split(message, others))
        service.undeploy(work, access, name)
        deployed = access.deployment(work.session, row, name)
        return progress(work.session, call.parent, row, deployed, UNDEPLOY)


def cancel_deployment(call: VertexCall, resource_id: str, deployment_id: str) -> None:
    """Undeploy a model that is not ready yet; a ready one stays. Raises ``NotFound`` or ``Forbidden``."""
    with call.context.write() as work:
        endpoint, _ = endpoints.find(work.session, call, resource_id, "member", verb="endpoints.deploy")
        access = endpoints.access_to(call, endpoint, "member")
        access.load(work.session, is_changing=True)
        row = work.session.get(Deployment, deployment_id, populate_existing=True)
        if row is None or row.endpoint_id != endpoint.id or row.state != DeploymentState.ACTIVE:
            return
        if serving.revisions_of(work.session, row.id, numbers=[1], limit=1)[0].stable_at is None:
            service.undeploy(work, access, row.name)


def poll_deployment(call: VertexCall, resource_id: str, kind: str, deployment_id: str) -> dict[str, Any]:
    """The current state of an operation. Raises ``NotFound`` if it was never started."""
    with call.context.read() as work:
        member = call.member_of(work.session, "viewer", verb="endpoints.get")
        endpoint = work.session.get(Endpoint, resource_id)
        row = work.session.get(Deployment, deployment_id)
        if (
            endpoint is None
            or endpoint.project_id != member.project_id
            or row is None
            or row.endpoint_id != resource_id
        ):
            raise operation_not_found(call.parent.name_of(COLLECTION, resource_id), f"{kind}-{deployment_id}")
        return progress(work.session, call.parent, endpoint, row, kind)


def progress(session: Session, parent: Parent, endpoint: Endpoint, row: Deployment, kind: str) -> dict[str, Any]:
    """The operation that deploys or undeploys ``row``, in its current state."""
    word = "DeployModel" if kind == DEPLOY else "UndeployModel"
    return operation_view(
        parent.name_of(COLLECTION, endpoint.id, "operations", f"{kind}-{row.id}"),
        metadata=operation_metadata(word, row),
        **_outcome(session, parent, endpoint, row, kind),
    )


def _outcome(session: Session, parent: Parent, endpoint: Endpoint, row: Deployment, kind: str) -> dict[str, Any]:
    """``response`` or ``error`` of the operation; empty while it is running."""
    if kind == UNDEPLOY:
        return {} if row.ended_at is None else {"response": pack_any("UndeployModelResponse")}
    first = serving.revisions_of(session, row.id, numbers=[1], limit=1)[0]
    if first.stable_at is not None:
        about = session.get(VertexEndpoint, endpoint.id)
        deployed = endpoints.view_of_deployed(session, parent, row, about)
        return {"response": pack_any("DeployModelResponse", deployedModel=deployed)}
    match DeploymentState(row.state):
        case DeploymentState.FAILED:
            message = f"Model server never became ready. {first.failure_reason}"
            return {"error": error_status(FAILED_PRECONDITION, message)}
        case DeploymentState.UNDEPLOYING | DeploymentState.ENDED:
            return {"error": error_status(CANCELLED, "The model was undeployed before it was ready.")}
        case DeploymentState.ACTIVE:
            return {}


# --- what is deployed ------------------------------------------------------------------------------------------------


def _free_id(session: Session, endpoint: Endpoint, model_message: Message, preferred: str) -> str:
    """The client's id, or one derived from the display name, numbered if that is taken."""
    taken = {deployment.name for deployment in serving.live_deployments(session, [endpoint.id])}
    own = model_message.text("id", _ID)
    if own and (not re.fullmatch(NAME_PATTERN[1:-1], own) or own == NEW_MODEL):
        raise model_message.fault("id", f"'{own}' is none: lower-case letters, digits and dashes, and not 0.")
    if own in taken:
        raise Conflict(f"Endpoint {endpoint.name!r} has a deployed model {own!r} already; undeploy it first.")
    if own:
        return own
    first = f"model-{preferred}"[:_ID] if preferred == NEW_MODEL else preferred
    numbered = (f"{first[: _ID - 3].rstrip('-')}-{number}" for number in range(2, _TRIES + 3))
    return next(name for name in (first, *numbered) if name not in taken)


def _demand_readable(version: ModelVersion, server: ServerChoice) -> None:
    what = _UNREAD.get(version.format)
    if server.image is None and server.container is None and what is not None:
        raise NotServed(
            f"deployed_model.model: its files are {what}, which is not served by this platform's own server; upload a "
            "TorchScript program, or a container of your own."
        )


def _request(
    context: AppContext, endpoint: Endpoint, name: str, model: str, server: ServerChoice, resources: ReplicaResources
) -> DeployRequest:
    fields: dict[str, Any] = {
        "deployment": name,
        "model": model,
        "framework": server.framework,
        "trust_code": server.is_trusted,
        "resources": dict(resources.requested),
        "node_selector": resources.node_selector,
        "replicas": resources.replicas,
        "priority": resources.priority,
        "traffic": 0,
        "reason": "By a client of Vertex AI.",
    }
    if server.container is not None:
        fields |= _own(context, endpoint, name, server.container)
        fields["image"] = server.image
        if server.container.shm_mib:
            fields["resources"]["shm"] = f"{server.container.shm_mib}Mi"
    return parse_request(DeployRequest, fields, "deployed_model")


def _own(context: AppContext, endpoint: Endpoint, name: str, container: ModelContainer) -> dict[str, Any]:
    """Fields of a custom container; its default routes are Vertex AI's."""
    default = f"/v1/endpoints/{endpoint.name}/deployedModels/{name}"
    requested: dict[str, Any] = {
        "args": list(container.args),
        "env": dict(container.env),
        "health_route": container.health_route or default,
        "predict_route": container.predict_route or f"{default}:predict",
    }
    if container.command:
        requested["command"] = list(container.command)
    if container.port and context.settings.executor != "process":
        requested["port"] = container.port
    if container.timeout_s is not None:
        requested["ready_timeout_s"] = container.timeout_s
    return requested


def _split(session: Session, message: Message, endpoint: Endpoint, name: str) -> dict[str, int]:
    """The traffic split once the model is ready; empty: unchanged, the model gets no traffic."""
    if not message.has("trafficSplit"):
        return {}
    deployed = {deployment.name for deployment in endpoints.active_deployments(session, endpoint)}
    split = read_split(message, {*deployed, NEW_MODEL})
    return {name if key == NEW_MODEL else key: part for key, part in split.items()}
