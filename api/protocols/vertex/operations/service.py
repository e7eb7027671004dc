"""``projects.locations.operations`` of all kinds: get, list, wait, cancel.

https://cloud.google.com/vertex-ai/docs/reference/rest/v1/projects.locations.operations

Operations have no rows: their state is derived from what they create or delete. So lists have only operations that are
running, or whose result exists.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from sqlalchemy import or_, select, tuple_
from sqlalchemy.orm import Session

from api.app.unit_of_work import AppContext
from api.auth import Caller
from api.http.cursors import make_cursor
from api.protocols.kit.errors import NotServed
from api.protocols.vertex.error_translation import list_position
from api.protocols.vertex.names import ANY_LOCATION, Parent, member_of
from api.protocols.vertex.operations.deletions import DELETION
from api.protocols.vertex.registry import models
from api.protocols.vertex.resource_collection import Collection
from api.protocols.vertex.serving import deploying, endpoints, uploads
from api.protocols.vertex.training import jobs
from core.db.repositories.vertex.records import RecordScope, find_record
from core.db.rows import AnySelect
from core.db.tables import Deployment, Endpoint, ModelVersion, VertexEndpoint
from core.domain.errors import NotFound
from core.domain.serving.states import DeploymentState
from core.registry.sources import UploadedSource

_TYPES: Final = {"metadataStores": "MetadataStore", "tensorboards": "Tensorboard"}
_UPLOAD: Final = re.compile(rf"{uploads.OPERATION}-(?P<number>[1-9][0-9]{{0,8}})")
_DEPLOYMENT: Final = re.compile(rf"(?P<kind>{deploying.DEPLOY}|{deploying.UNDEPLOY})-(?P<id>.+)")


def find_operation(
    context: AppContext, caller: Caller, parent: Parent, path: str, collections: Mapping[str, Collection]
) -> dict[str, Any]:
    """The operation at ``path``, such as ``models/<id>/operations/upload-1``. Polling a deletion continues it.

    Raises:
        NotFound: it was never started, or its result was deleted.
        Forbidden
    """
    resource, _, operation = path.rpartition("/operations/")
    collection, _, resource_id = resource.partition("/")
    if collection in collections and "/" not in resource_id:
        if operation == DELETION:
            return collections[collection].poll_deletion(context, caller, parent, resource_id)
        if collection == models.COLLECTION and (found := _UPLOAD.fullmatch(operation)):
            return uploads.poll_upload(context, caller, parent, resource_id, int(found["number"]))
        if collection == endpoints.COLLECTION and (found := _DEPLOYMENT.fullmatch(operation)):
            return deploying.poll_deployment(context, caller, parent, resource_id, found["kind"], found["id"])
        if collection == endpoints.COLLECTION and operation == "create":
            shown = collections[collection].get(context, caller, parent, resource_id)
            return _done(parent, path, {"@type": f"{endpoints.TYPES}.Endpoint", **shown})
    if collection in _TYPES and "/" not in resource_id and operation in ("create", "update"):
        with context.read() as work:
            member = member_of(work.session, caller, parent, "viewer", verb=f"{collection}.get")
            record = find_record(work.session, RecordScope(member.project_id, parent.location), resource)
        if record is not None:
            kind = f"{endpoints.TYPES}.{_TYPES[collection]}"
            return _done(parent, path, {"@type": kind, "name": parent.name_of(resource)})
    with context.read() as work:
        member_of(work.session, caller, parent, "viewer", verb="operations.get")
    raise NotFound(f"Operation {parent.name_of(path)} is not found.")


def _done(parent: Parent, path: str, response: dict[str, Any]) -> dict[str, Any]:
    return {"name": parent.name_of(path), "done": True, "response": response}


def cancel(
    context: AppContext, caller: Caller, parent: Parent, path: str, collections: Mapping[str, Collection]
) -> None:
    """Cancel an operation, with the code CANCELLED; no effect once it is done.

    Raises:
        NotFound, Forbidden
        NotServed: it cannot be cancelled.
    """
    resource, _, operation = path.rpartition("/operations/")
    resource_id = resource.partition("/")[2]
    jobs.demand_member(context, caller, parent, "member", verb="operations.cancel")
    uploaded, deployed = _UPLOAD.fullmatch(operation), _DEPLOYMENT.fullmatch(operation)
    if operation != DELETION and find_operation(context, caller, parent, path, collections).get("done"):
        return
    if uploaded is not None:
        models.delete_version(context, caller, parent, f"{resource_id}@{uploaded['number']}")
    elif deployed is not None and deployed["kind"] == deploying.DEPLOY:
        deploying.cancel_deployment(context, caller, parent, resource_id, deployed["id"])
    else:
        raise NotServed(f"Cancelling {parent.name_of(path)} is not served by this platform: it cannot be undone.")


def page(context: AppContext, caller: Caller, parent: Parent, resource: str, size: int, token: str) -> dict[str, Any]:
    """Uploads and deployments, newest first. ``resource``: only its operations; empty: all of the location.

    A deployed model counts once: as its undeployment, if there is one. Raises ``NotFound`` or
    ``Forbidden``.
    """
    limit = min(size or jobs.PAGE, jobs.PAGE_LIMIT)
    after = list_position(token) if token else None
    with context.read() as work:
        rows: list[ModelVersion | Deployment] = []
        for table, query in _queries(work.session, caller, parent, resource):
            statement = query.order_by(table.created_at.desc(), table.id.desc()).limit(limit + 1)
            if after is not None:
                statement = statement.where(tuple_(table.created_at, table.id) < after)
            rows += work.session.scalars(statement).all()
        rows.sort(key=lambda row: (row.created_at, row.id), reverse=True)
        shown = [_view(work.session, parent, row) for row in rows[:limit]]
        last = rows[limit - 1] if len(rows) > limit else None
        more = {} if last is None else {"nextPageToken": make_cursor(last.created_at.isoformat(), last.id)}
    return {**({"operations": shown} if shown else {}), **more}


def _queries(
    session: Session, caller: Caller, parent: Parent, resource: str
) -> list[tuple[type[ModelVersion | Deployment], AnySelect]]:
    """The tables to list, each with its query."""
    member = member_of(session, caller, parent, "viewer", verb="operations.list")
    made = _uploads(member.project_id)
    deployed = _deployments(member.project_id, parent.location)
    collection, _, resource_id = resource.partition("/")
    match collection:
        case "":
            return [(ModelVersion, made), (Deployment, deployed)]
        case models.COLLECTION:
            model, _ = models.find(session, caller, parent, resource_id, "viewer", verb="operations.list", is_any=True)
            return [(ModelVersion, made.where(ModelVersion.model_id == model.id))]
        case endpoints.COLLECTION:
            row, _ = endpoints.find(session, caller, parent, resource_id, "viewer", verb="operations.list")
            return [(Deployment, deployed.where(Deployment.endpoint_id == row.id))]
        case _:  # other collections have only deletions and operations that are done at once
            return []


def _uploads(project_id: str) -> AnySelect:
    return select(ModelVersion).where(
        ModelVersion.project_id == project_id,
        ModelVersion.source["kind"].as_string() == UploadedSource.KIND,
        ModelVersion.deleted_at.is_(None),
    )


def _deployments(project_id: str, location: str) -> AnySelect:
    query = (
        select(Deployment)
        .join(Endpoint, Endpoint.id == Deployment.endpoint_id)
        .outerjoin(VertexEndpoint, VertexEndpoint.endpoint_id == Endpoint.id)
        .where(Endpoint.project_id == project_id, Endpoint.deleted_at.is_(None))
    )
    if location == ANY_LOCATION:
        return query
    return query.where(or_(VertexEndpoint.location.is_(None), VertexEndpoint.location == location))


def _view(session: Session, parent: Parent, row: ModelVersion | Deployment) -> dict[str, Any]:
    if isinstance(row, ModelVersion):
        return uploads.view_of(parent, row)
    endpoint, about = session.get_one(Endpoint, row.endpoint_id), session.get(VertexEndpoint, row.endpoint_id)
    here = parent if about is None else Parent(parent.project, about.location, parent.own)
    is_over = row.state in (DeploymentState.UNDEPLOYING, DeploymentState.ENDED)
    return deploying.progress(session, here, endpoint, row, deploying.UNDEPLOY if is_over else deploying.DEPLOY)
