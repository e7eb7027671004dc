"""``projects.locations.operations`` of all kinds: get, list, wait, cancel.

https://cloud.google.com/vertex-ai/docs/reference/rest/v1/projects.locations.operations

Operations have no rows: their state is derived from what they create or delete. So lists have only operations that are
running, or whose result exists.
"""

from __future__ import annotations

import asyncio
import re
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Query, Request, Response
from sqlalchemy import or_, select
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool

from api.app.token_scopes import Scope
from api.protocols.kit.errors import NotServed
from api.protocols.kit.json_values import answer
from api.protocols.kit.paging import page_of
from api.protocols.vertex.collections import COLLECTIONS
from api.protocols.vertex.long_running import DELETION, operation_not_found, operation_view, pack_any
from api.protocols.vertex.names import (
    ANY_LOCATION,
    PARENT,
    PARENT_OF_PROGRESS,
    Parent,
    ReadCall,
    VertexCall,
    WriteCall,
)
from api.protocols.vertex.paging import Keyset, ListQuery
from api.protocols.vertex.proto import Message
from api.protocols.vertex.serving import deploying, endpoints, models, uploads
from api.protocols.vertex.vertex_route import VertexRoute
from core.db.engine import UntypedSelect
from core.db.repositories.vertex_records import RecordScope, find_record
from core.db.tables import Deployment, Endpoint, ModelVersion, VertexEndpoint
from core.domain.serving.rollout import DeploymentState
from core.registry.sources import UploadedSource

router = APIRouter(route_class=VertexRoute, include_in_schema=False)
# The real API may end a wait early; this limit keeps waits below proxies' time-outs.
_LONGEST_WAIT_S: Final = 20.0
_LOOK_EVERY_S: Final = 0.5
_TYPES: Final = {"metadataStores": "MetadataStore", "tensorboards": "Tensorboard"}
_UPLOAD: Final = re.compile(rf"{uploads.OPERATION}-(?P<number>[1-9][0-9]{{0,8}})")
_DEPLOYMENT: Final = re.compile(rf"(?P<kind>{deploying.DEPLOY}|{deploying.UNDEPLOY})-(?P<id>.+)")


def _find_operation(call: VertexCall, path: str) -> dict[str, Any]:
    """The operation at ``path``, such as ``models/<id>/operations/upload-1``. Polling a deletion continues it.

    Raises:
        NotFound: it was never started, or its result was deleted.
        Forbidden
    """
    resource, _, operation = path.rpartition("/operations/")
    collection, _, resource_id = resource.partition("/")
    if collection in COLLECTIONS and "/" not in resource_id:
        if operation == DELETION:
            return COLLECTIONS[collection].poll_deletion(call, resource_id)
        if collection == models.COLLECTION and (match := _UPLOAD.fullmatch(operation)):
            return uploads.poll_upload(call, resource_id, int(match["number"]))
        if collection == endpoints.COLLECTION and (match := _DEPLOYMENT.fullmatch(operation)):
            return deploying.poll_deployment(call, resource_id, match["kind"], match["id"])
        if collection == endpoints.COLLECTION and operation == "create":
            shown = COLLECTIONS[collection].get(call, resource_id)
            return operation_view(call.parent.name_of(path), response=pack_any("Endpoint", **shown))
    if collection in _TYPES and "/" not in resource_id and operation in ("create", "update"):
        with call.context.read() as work:
            member = call.member_of(work.session, "viewer", verb=f"{collection}.get")
            record = find_record(work.session, RecordScope(member.project_id, call.parent.location), resource)
        if record is not None:
            response = pack_any(_TYPES[collection], name=call.parent.name_of(resource))
            return operation_view(call.parent.name_of(path), response=response)
    with call.context.read() as work:
        call.member_of(work.session, "viewer", verb="operations.get")
    name, _, operation = call.parent.name_of(path).rpartition("/operations/")
    raise operation_not_found(name, operation)


def _cancel(call: VertexCall, path: str) -> None:
    """Cancel an operation, with the code CANCELLED; no effect once it is done.

    Raises:
        NotFound, Forbidden
        NotServed: it cannot be cancelled.
    """
    resource, _, operation = path.rpartition("/operations/")
    resource_id = resource.partition("/")[2]
    call.demand_member("member", verb="operations.cancel")
    uploaded, deployed = _UPLOAD.fullmatch(operation), _DEPLOYMENT.fullmatch(operation)
    if operation != DELETION and _find_operation(call, path).get("done"):
        return
    if uploaded is not None:
        models.delete_version(call, f"{resource_id}@{uploaded['number']}")
    elif deployed is not None and deployed["kind"] == deploying.DEPLOY:
        deploying.cancel_deployment(call, resource_id, deployed["id"])
    else:
        raise NotServed(f"Cancelling {call.parent.name_of(path)} is not served by this platform: it cannot be undone.")


def _page(call: VertexCall, resource: str, size: int, token: str) -> dict[str, Any]:
    """Uploads and deployments, newest first. ``resource``: only its operations; empty: all of the location.

    A deployed model counts once: as its undeployment, if there is one. Raises ``NotFound`` or
    ``Forbidden``.
    """
    limit = ListQuery(page_size=size).limit
    with call.context.read() as work:
        rows: list[ModelVersion | Deployment] = []
        for table, query in _queries(work.session, call, resource):
            newest = _newest_first(table)
            statement = newest.ordered(newest.after_token(query, token))
            rows += work.session.scalars(statement.limit(limit + 1)).all()
        rows.sort(key=lambda row: (row.created_at, row.id), reverse=True)
        shown = [_view(work.session, call.parent, row) for row in rows[:limit]]
        last = rows[limit - 1] if len(rows) > limit else None
        return page_of("operations", shown, "" if last is None else _newest_first(type(last)).token(last))


def _newest_first(table: type[ModelVersion | Deployment]) -> Keyset:
    return Keyset(table.created_at, table.id)


def _queries(
    session: Session, call: VertexCall, resource: str
) -> list[tuple[type[ModelVersion | Deployment], UntypedSelect]]:
    """The tables to list, each with its query."""
    member = call.member_of(session, "viewer", verb="operations.list")
    uploads = _uploads(member.project_id)
    deployed = _deployments(member.project_id, call.parent.location)
    collection, _, resource_id = resource.partition("/")
    match collection:
        case "":
            return [(ModelVersion, uploads), (Deployment, deployed)]
        case models.COLLECTION:
            model, _ = models.find(session, call, resource_id, "viewer", verb="operations.list", is_any=True)
            return [(ModelVersion, uploads.where(ModelVersion.model_id == model.id))]
        case endpoints.COLLECTION:
            row, _ = endpoints.find(session, call, resource_id, "viewer", verb="operations.list")
            return [(Deployment, deployed.where(Deployment.endpoint_id == row.id))]
        case _:  # other collections have only deletions and operations that are done at once
            return []


def _uploads(project_id: str) -> UntypedSelect:
    return select(ModelVersion).where(
        ModelVersion.project_id == project_id,
        ModelVersion.source["kind"].as_string() == UploadedSource.KIND,
        ModelVersion.deleted_at.is_(None),
    )


def _deployments(project_id: str, location: str) -> UntypedSelect:
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


# --- routes, at both addresses that clients poll ---------------------------------------------------------------------


def _path(request: Request) -> str:
    """The operation's path below its location, with its resource if the address has one."""
    path_params = request.path_params
    return "/".join(
        [*([path_params["resource"]] if "resource" in path_params else []), "operations", path_params["operation"]]
    )


_PathDep = Annotated[str, Depends(_path)]


def list_operations(
    request: Request,
    call: ReadCall,
    pageSize: Annotated[int, Query(ge=0)] = 0,  # noqa: N803 (as Google names it)
    pageToken: Annotated[str, Query(max_length=500)] = "",  # noqa: N803
) -> Response:
    path_params = request.path_params
    resource = f"{path_params['collection']}/{path_params['resource']}" if "collection" in path_params else ""
    if resource and path_params["collection"] not in (*COLLECTIONS, *_TYPES):
        raise NotServed(f"GET {resource[:200]}/operations is not served by this platform.")
    return answer(_page(call, resource, pageSize, pageToken))


def get_operation(path: _PathDep, call: ReadCall) -> Response:
    if path.endswith(f"/{DELETION}"):  # polling a deletion continues it
        call.caller.demand(Scope.WRITE)
    return answer(_find_operation(call, path))


def cancel_operation(path: _PathDep, call: WriteCall) -> Response:
    _cancel(call, path)
    return answer({})


def delete_operation(path: _PathDep, call: WriteCall) -> Response:
    """Nothing to delete: operations have no rows. The work goes on, as in the real API."""
    call.demand_member("member", verb="operations.delete")
    _find_operation(call, path)
    return answer({})


async def wait_operation(
    path: _PathDep,
    call: WriteCall,
    timeout: Annotated[str, Query(max_length=40)] = "",  # noqa: ASYNC109 (as Google names it)
) -> Response:
    """The operation once it is done, or its state after ``timeout``."""
    timeout_s = Message({"timeout": timeout} if timeout else {}, "wait_operation_request").seconds("timeout")
    left_s = min(timeout_s or 0.0, _LONGEST_WAIT_S) if timeout else _LONGEST_WAIT_S
    while True:
        shown = await run_in_threadpool(_find_operation, call, path)
        if shown.get("done") or left_s <= 0:
            return answer(shown)
        await asyncio.sleep(min(_LOOK_EVERY_S, left_s))
        left_s -= _LOOK_EVERY_S


for _base in (PARENT, PARENT_OF_PROGRESS):
    router.add_api_route(f"{_base}/operations", list_operations, methods=["GET"])
    router.add_api_route(f"{_base}/{{collection}}/{{resource}}/operations", list_operations, methods=["GET"])
    for _operation in (f"{_base}/operations/{{operation}}", f"{_base}/{{resource:path}}/operations/{{operation}}"):
        router.add_api_route(f"{_operation}:cancel", cancel_operation, methods=["POST"])
        router.add_api_route(f"{_operation}:wait", wait_operation, methods=["POST"])
        router.add_api_route(_operation, get_operation, methods=["GET"])
        router.add_api_route(_operation, delete_operation, methods=["DELETE"])
