"""Routes of long-running operations, at both addresses that clients poll."""

from __future__ import annotations

import asyncio
from typing import Annotated, Final

from fastapi import APIRouter, Depends, Query, Request, Response
from starlette.concurrency import run_in_threadpool

from api.app.unit_of_work import AppContextDep
from api.auth import Reader, Writer
from api.protocols.kit.errors import NotServed
from api.protocols.kit.json_values import answer
from api.protocols.vertex.collections import COLLECTIONS
from api.protocols.vertex.operations import service
from api.protocols.vertex.proto import Message
from api.protocols.vertex.request_types import PARENT, PARENT_OF_PROGRESS, ParentDep
from api.protocols.vertex.training import jobs
from api.protocols.vertex.vertex_route import VertexRoute

router = APIRouter(route_class=VertexRoute, include_in_schema=False)

# The real API may end a wait early; this limit keeps waits below proxies' time-outs.
_LONGEST_WAIT_S: Final = 20.0
_LOOK_EVERY_S: Final = 0.5
_RECORDS: Final = ("metadataStores", "tensorboards")


def _path(request: Request) -> str:
    """The operation's path below its location, with its resource if the address has one."""
    path_params = request.path_params
    return "/".join(
        [*([path_params["resource"]] if "resource" in path_params else []), "operations", path_params["operation"]]
    )


_PathDep = Annotated[str, Depends(_path)]


def list_operations(
    request: Request,
    parent: ParentDep,
    caller: Reader,
    context: AppContextDep,
    pageSize: Annotated[int, Query(ge=0)] = 0,  # noqa: N803 (as Google names it)
    pageToken: Annotated[str, Query(max_length=500)] = "",  # noqa: N803
) -> Response:
    path_params = request.path_params
    resource = f"{path_params['collection']}/{path_params['resource']}" if "collection" in path_params else ""
    if resource and path_params["collection"] not in (*COLLECTIONS, *_RECORDS):
        raise NotServed(f"GET {resource[:200]}/operations is not served by this platform.")
    return answer(service.page(context, caller, parent, resource, pageSize, pageToken))


# Polling a deletion continues it, so this needs write access.
def get_operation(path: _PathDep, parent: ParentDep, caller: Writer, context: AppContextDep) -> Response:
    return answer(service.find_operation(context, caller, parent, path, COLLECTIONS))


def cancel_operation(path: _PathDep, parent: ParentDep, caller: Writer, context: AppContextDep) -> Response:
    service.cancel(context, caller, parent, path, COLLECTIONS)
    return answer({})


def delete_operation(path: _PathDep, parent: ParentDep, caller: Writer, context: AppContextDep) -> Response:
    """Nothing to delete: operations have no rows. The work goes on, as in the real API."""
    jobs.demand_member(context, caller, parent, "member", verb="operations.delete")
    service.find_operation(context, caller, parent, path, COLLECTIONS)
    return answer({})


async def wait_operation(
    path: _PathDep,
    parent: ParentDep,
    caller: Writer,
    context: AppContextDep,
    timeout: Annotated[str, Query(max_length=40)] = "",  # noqa: ASYNC109 (as Google names it)
) -> Response:
    """The operation once it is done, or its state after ``timeout``."""
    timeout_s = Message({"timeout": timeout} if timeout else {}, "wait_operation_request").seconds("timeout")
    left_s = min(timeout_s or 0.0, _LONGEST_WAIT_S) if timeout else _LONGEST_WAIT_S
    while True:
        shown = await run_in_threadpool(service.find_operation, context, caller, parent, path, COLLECTIONS)
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
