"""``projects.locations.endpoints`` over our own endpoints.

https://cloud.google.com/vertex-ai/docs/reference/rest/v1/projects.locations.endpoints

Endpoint ids are ours. Fields that only Vertex AI has (display name, labels, names of deployed models) are in a row of
their own; endpoints that were created otherwise are listed at every location.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

from sqlalchemy import or_, select
from sqlalchemy.orm import Session
from trainmaster.spec.fields import NAME_PATTERN
from trainmaster.wire.serving import EndpointCreate

from api.app.unit_of_work import UnitOfWork
from api.auth import Role
from api.endpoints import service
from api.endpoints.access import EndpointAccess
from api.protocols.kit.errors import NotServed
from api.protocols.kit.json_values import slug, timestamp
from api.protocols.vertex.long_running import deletion_view, operation_not_found, operation_view, pack_any
from api.protocols.vertex.names import ANY_LOCATION, Parent, VertexCall
from api.protocols.vertex.paging import Keyset, ListQuery, list_page
from api.protocols.vertex.proto import OUTPUT_ONLY, Message
from api.protocols.vertex.serving import models
from api.protocols.vertex.training import jobs
from core.db.engine import UntypedRow
from core.db.repositories import serving
from core.db.tables import Deployment, Endpoint, Model, ModelVersion, VertexEndpoint
from core.domain.errors import Conflict, InvalidRequest, NotFound
from core.domain.serving.rollout import DeploymentState

COLLECTION: Final = "endpoints"
_ABSENT: Final = {
    "network": "private endpoints (VPC networks) are",
    "enablePrivateServiceConnect": "private endpoints (Private Service Connect) are",
    "privateServiceConnectConfig": "private endpoints (Private Service Connect) are",
    "dedicatedEndpointEnabled": "dedicated endpoints are",
    "clientConnectionConfig": "time-outs of an endpoint are",
    "predictRequestResponseLoggingConfig": "logs of requests and responses are",
    "genAiAdvancedFeaturesConfig": "generative AI's features are",
    "privateModelServerEnabled": "private model servers are",
}
_OUTPUT: Final = OUTPUT_ONLY | {"modelDeploymentMonitoringJob", "dedicatedEndpointDns"}
_CHANGED: Final = ("displayName", "description", "labels", "trafficSplit")
_NEWEST: Final = Keyset(Endpoint.created_at, Endpoint.id)
_NAME: Final = 63
_CHANCE: Final = 6
_DESCRIPTION: Final = 1_000


def create(call: VertexCall, raw: Any, endpoint_id: str) -> dict[str, Any]:
    """Create an endpoint; the operation is done. ``endpoint_id``: chosen by the client; empty: generated."""
    call.demand_member("member", verb="endpoints.create")
    message = Message(raw, "endpoint")
    message.refuse_unknown_fields(
        {"displayName", "description", "labels", "deployedModels", "trafficSplit", *_OUTPUT}, absent=_ABSENT
    )
    for name in ("deployedModels", "trafficSplit"):
        if message.has(name):
            raise message.fault(name, "a new endpoint has none; deploy a model to it.")
    common = jobs.read_common(message)
    if endpoint_id and not re.fullmatch(NAME_PATTERN[1:-1], endpoint_id):
        raise InvalidRequest(
            f"endpoint_id: '{endpoint_id[:100]}' is none: at most 63 lower-case letters, digits and dashes, no dash "
            "at the ends.",
            field="endpoint_id",
        )
    with call.context.write() as work:
        member = call.member_of(work.session, "member", verb="endpoints.create")
        name = endpoint_id or _free_name(work.session, member.project_id, slug(common.display_name))
        body = EndpointCreate(name=name, description=message.text("description", _DESCRIPTION))
        row = service.create(work, call.caller, member, body)
        about = VertexEndpoint(
            endpoint_id=row.id,
            location=call.parent.location,
            display_name=common.display_name,
            labels=common.labels,
            deployed={},
        )
        work.session.add(about)
        work.session.flush()
        shown = view(work.session, call.parent, row, about)
        return operation_view(f"{shown['name']}/operations/create", response=pack_any("Endpoint", **shown))


def update(call: VertexCall, resource_id: str, raw: Any, update_mask: str) -> dict[str, Any]:
    """The updated endpoint. Without a mask all sent fields are set."""
    message = Message(raw, "endpoint")
    message.refuse_unknown_fields({*_CHANGED, "deployedModels", *_OUTPUT}, absent=_ABSENT)
    mask = Message.of_mask(update_mask)
    mask.refuse_unknown_fields(_CHANGED, absent=_ABSENT)
    named = {name for name in _CHANGED if name in mask}
    if not update_mask.strip(", "):
        named = {name for name in _CHANGED if message.has(name)}
    with call.context.write() as work:
        row, about = find(work.session, call, resource_id, "member", verb="endpoints.update")
        access = access_to(call, row, "member")
        access.load(work.session, is_changing=True)
        about = about or add_metadata(work, call.parent, row)
        if {"displayName", "labels"} & named:
            common = jobs.read_common(Message({"displayName": about.display_name, **raw}, "endpoint"))
            about.display_name = common.display_name if "displayName" in named else about.display_name
            about.labels = common.labels if "labels" in named else about.labels
        if "description" in named:
            row.description = message.text("description", _DESCRIPTION)
        if "trafficSplit" in named:
            service.set_traffic(
                work, access, read_split(message, {path.name for path in active_deployments(work.session, row)})
            )
        row.updated_at = work.now
        work.session.flush()
        return view(work.session, call.parent, row, about)


def read_split(message: Message, names: set[str]) -> dict[str, int]:
    """``trafficSplit``: parts by deployed model. Raises ``InvalidRequest``."""
    where, raw = message.at("trafficSplit"), message.raw("trafficSplit")
    if not isinstance(raw, dict) or not raw:
        raise InvalidRequest(f"{where}: the parts of deployed models, 100 together.", field=where)
    parts = Message({}, where)
    parts_by_name = {}
    for name, part in raw.items():
        if name not in names:
            raise InvalidRequest(
                f"{where}: there is no deployed model '{str(name)[:100]}'; there are "
                f"{', '.join(sorted(names)) or 'none'}.",
                field=where,
            )
        parts_by_name[name] = Message({"value": part}, f"{parts.path}[{name}]").whole("value")
    if any(part < 0 for part in parts_by_name.values()) or sum(parts_by_name.values()) != 100:
        raise InvalidRequest(
            f"{where}: the parts must be 100 together, not {sum(parts_by_name.values())}.", field=where
        )
    return parts_by_name


# --- reading ---------------------------------------------------------------------------------------------------------


class Endpoints:
    """See :class:`api.protocols.vertex.collections.Collection`."""

    def create(self, call: VertexCall, raw: Any) -> str:
        return str(create(call, raw, "")["response"]["name"]).rpartition("/")[2]

    def get(self, call: VertexCall, resource_id: str) -> dict[str, Any]:
        with call.context.read() as work:
            row, about = find(work.session, call, resource_id, "viewer", verb="endpoints.get")
            return view(work.session, call.parent, row, about)

    def page(self, call: VertexCall, query: ListQuery) -> dict[str, Any]:
        """Newest first."""
        query.demand_newest_first()
        with call.context.read() as work:
            member = call.member_of(work.session, "viewer", verb="endpoints.list")
            statement = (
                select(Endpoint, VertexEndpoint)
                .outerjoin(VertexEndpoint, VertexEndpoint.endpoint_id == Endpoint.id)
                .where(Endpoint.project_id == member.project_id, Endpoint.deleted_at.is_(None))
            )
            if call.parent.location != ANY_LOCATION:
                here = VertexEndpoint.location == call.parent.location
                statement = statement.where(or_(VertexEndpoint.location.is_(None), here))

            def view_of(pair: UntypedRow) -> tuple[dict[str, Any], dict[str, datetime]]:
                row, about = pair
                times = {"create_time": row.created_at, "update_time": row.updated_at}
                return view(work.session, _at(call.parent, about), row, about), times

            return list_page(work.session, statement, _NEWEST, query, view_of, collection=COLLECTION)

    def cancel(self, call: VertexCall, resource_id: str) -> None:
        del call, resource_id
        raise NotServed("endpoints:cancel is not served by this platform, nor there.")

    def delete(self, call: VertexCall, resource_id: str) -> dict[str, Any]:
        """Raises ``Conflict``: models are deployed to it."""
        with call.context.write() as work:
            row, _ = find(work.session, call, resource_id, "member", verb="endpoints.delete")
            name = call.parent.name_of(COLLECTION, row.id)
            if serving_deployments := active_deployments(work.session, row):
                names = ", ".join(deployment.name for deployment in serving_deployments)
                raise Conflict(
                    f"Endpoint {name} has deployed models ({names}): undeploy them first, or delete it with force."
                )
            service.delete(work, access_to(call, row, "member"))
        return deletion_view(name, is_done=False)

    def poll_deletion(self, call: VertexCall, resource_id: str) -> dict[str, Any]:
        name = call.parent.name_of(COLLECTION, resource_id)
        with call.context.read() as work:
            member = call.member_of(work.session, "member", verb="endpoints.get")
            row = work.session.get(Endpoint, resource_id)
            if row is None or row.project_id != member.project_id or row.deleting_at is None:
                raise operation_not_found(name)
            return deletion_view(name, is_done=row.deleted_at is not None)


def find(
    session: Session, call: VertexCall, resource_id: str, role: Role, *, verb: str
) -> tuple[Endpoint, VertexEndpoint | None]:
    """By id or name. Raises ``NotFound`` or ``Forbidden``."""
    member = call.member_of(session, role, verb=verb)
    query = select(Endpoint).where(
        Endpoint.project_id == member.project_id,
        Endpoint.deleted_at.is_(None),
        or_(Endpoint.id == resource_id, Endpoint.name == resource_id),
    )
    row = session.scalars(query.order_by((Endpoint.id == resource_id).desc()).limit(1)).one_or_none()
    about = None if row is None else session.get(VertexEndpoint, row.id)
    if row is None or (about is not None and about.location != call.parent.location):
        raise NotFound(f"The Endpoint {call.parent.name_of(COLLECTION, resource_id)} is not found.")
    return row, about


def access_to(call: VertexCall, row: Endpoint, role: Role) -> EndpointAccess:
    return EndpointAccess(call.caller, call.parent.own, row.id, role)


def add_metadata(work: UnitOfWork, parent: Parent, row: Endpoint) -> VertexEndpoint:
    """Add the row of Vertex AI's fields to an endpoint without one."""
    about = VertexEndpoint(endpoint_id=row.id, location=parent.location, display_name=row.name, labels={}, deployed={})
    work.session.add(about)
    return about


def active_deployments(session: Session, row: Endpoint) -> list[Deployment]:
    """Deployed models in Vertex AI's sense: without failed ones and those that are being undeployed."""
    return [
        deployment
        for deployment in serving.live_deployments(session, [row.id])
        if deployment.state == DeploymentState.ACTIVE
    ]


def view(session: Session, parent: Parent, row: Endpoint, about: VertexEndpoint | None) -> dict[str, Any]:
    deployed = active_deployments(session, row)
    split = {deployment.name: deployment.traffic for deployment in deployed}
    return {
        "name": parent.name_of(COLLECTION, row.id),
        "displayName": row.name if about is None else about.display_name,
        **({"description": row.description} if row.description else {}),
        **({"labels": about.labels} if about is not None and about.labels else {}),
        "deployedModels": [view_of_deployed(session, parent, deployment, about) for deployment in deployed],
        **({"trafficSplit": split} if any(split.values()) else {}),
        "etag": str(sum(deployment.generation for deployment in deployed)),
        "createTime": timestamp(row.created_at),
        "updateTime": timestamp(row.updated_at),
    }


def view_of_deployed(session: Session, parent: Parent, row: Deployment, about: VertexEndpoint | None) -> dict[str, Any]:
    """A deployed model with its model and version, however it was deployed."""
    client_fields: dict[str, Any] = (about.deployed if about is not None else {}).get(row.name, {})
    revisions: Sequence[Any] = serving.revisions_of(session, row.id, numbers=[row.target_revision], limit=1)
    version_id = revisions[0].spec.get("version_id") if revisions else None
    version = session.get(ModelVersion, version_id) if version_id else None
    model = session.get(Model, version.model_id) if version is not None else None
    shown = {}
    if version is not None and model is not None:
        shown = {"model": parent.name_of(models.COLLECTION, model.id), "modelVersionId": str(version.number)}
    return {
        "displayName": row.name,
        "dedicatedResources": {"minReplicaCount": row.replicas, "maxReplicaCount": row.replicas},
        **client_fields,
        "id": row.name,
        **shown,
        "createTime": timestamp(row.created_at),
    }


def _at(parent: Parent, about: VertexEndpoint | None) -> Parent:
    return parent if about is None else Parent(parent.project, about.location, parent.own)


def _free_name(session: Session, project_id: str, preferred: str) -> str:
    """A unique name: Vertex AI's display names need not be unique, our names must be."""
    query = select(Endpoint.id).where(
        Endpoint.project_id == project_id, Endpoint.name == preferred, Endpoint.deleted_at.is_(None)
    )
    if session.execute(query).first() is None:
        return preferred
    return f"{preferred[: _NAME - _CHANCE - 1].rstrip('-')}-{secrets.token_hex(_CHANCE // 2)}"
