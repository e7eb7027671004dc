"""Vertex AI's REST API, as far as ``google-cloud-aiplatform`` needs it for training and serving: an adapter over our
API.

Not part of our OpenAPI document: Google defines and versions it. It is at the root, where ``api_endpoint`` points to.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Final

from fastapi import APIRouter, Query, Request, Response

from api.auth import Reader
from api.protocols.kit.errors import NotServed
from api.protocols.kit.json_values import answer
from api.protocols.vertex.collections import COLLECTIONS, Collection
from api.protocols.vertex.metadata.routes import router as metadata
from api.protocols.vertex.names import PARENT, PARENT_OF_PROGRESS, ParentDep, RawBody, ReadCall, ResourceId, WriteCall
from api.protocols.vertex.operations import router as operations
from api.protocols.vertex.paging import ListQuery, ListQueryDep
from api.protocols.vertex.serving import deploying, endpoints, models, predicting, uploads
from api.protocols.vertex.tensorboards.routes import router as tensorboards
from api.protocols.vertex.vertex_route import VertexRoute
from core.domain.errors import NotFound

router = APIRouter(route_class=VertexRoute, include_in_schema=False)

_SERVED: Final = (*COLLECTIONS, "metadataStores", "tensorboards", "operations")
_MODEL: Final = f"{PARENT}/{models.COLLECTION}/{{resource}}"
_ENDPOINT: Final = f"{PARENT}/{endpoints.COLLECTION}/{{resource}}"

# The routes of models and endpoints come before the collections' routes, whose patterns match these, too.
# --- models ----------------------------------------------------------------------------------------------------------


@router.post(f"{PARENT}/{models.COLLECTION}:upload")
def upload_model(body: RawBody, call: WriteCall) -> Response:
    return answer(uploads.upload(call, body))


@router.get(f"{_MODEL}:listVersions")
def list_model_versions(
    resource: ResourceId,
    call: ReadCall,
    filter: Annotated[str, Query()] = "",  # noqa: A002
) -> Response:
    return answer(models.list_versions(call, resource, ListQuery(filter)))


@router.post(f"{_MODEL}:mergeVersionAliases")
def merge_version_aliases(resource: ResourceId, body: RawBody, call: WriteCall) -> Response:
    return answer(models.merge_aliases(call, resource, body))


@router.patch(_MODEL)
def update_model(
    resource: ResourceId,
    body: RawBody,
    call: WriteCall,
    updateMask: Annotated[str, Query(max_length=1000)] = "",  # noqa: N803
) -> Response:
    return answer(models.update(call, resource, body, updateMask))


@router.delete(f"{_MODEL}:deleteVersion")
def delete_model_version(resource: ResourceId, call: WriteCall) -> Response:
    return answer(models.delete_version(call, resource))


# --- endpoints -------------------------------------------------------------------------------------------------------


@router.post(f"{PARENT}/{endpoints.COLLECTION}")
def create_endpoint(
    body: RawBody,
    call: WriteCall,
    endpointId: Annotated[str, Query(max_length=100)] = "",  # noqa: N803 (as Google names it)
) -> Response:
    return answer(endpoints.create(call, body, endpointId))


@router.patch(_ENDPOINT)
def update_endpoint(
    resource: ResourceId,
    body: RawBody,
    call: WriteCall,
    updateMask: Annotated[str, Query(max_length=1000)] = "",  # noqa: N803
) -> Response:
    return answer(endpoints.update(call, resource, body, updateMask))


@router.post(f"{_ENDPOINT}:deployModel")
def deploy_model(resource: ResourceId, body: RawBody, call: WriteCall) -> Response:
    return answer(deploying.deploy(call, resource, body))


@router.post(f"{_ENDPOINT}:undeployModel")
def undeploy_model(resource: ResourceId, body: RawBody, call: WriteCall) -> Response:
    return answer(deploying.undeploy(call, resource, body))


# A prediction needs only read access.
@router.post(f"{_ENDPOINT}:predict")
async def predict(request: Request, resource: ResourceId, call: ReadCall) -> Response:
    return await predicting.predict(request, call, resource)


@router.post(f"{_ENDPOINT}:rawPredict")
async def raw_predict(request: Request, resource: ResourceId, call: ReadCall) -> Response:
    return await predicting.raw_predict(request, call, resource)


# --- collections -----------------------------------------------------------------------------------------------------


def _add(collection: str, kind: Collection) -> None:
    """The routes of one collection."""

    def create(body: RawBody, call: WriteCall) -> Response:
        resource_id = kind.create(call, body)
        return answer(kind.get(call, resource_id))

    def list_all(call: ReadCall, query: ListQueryDep) -> Response:
        return answer(kind.page(call, query))

    def get(resource: ResourceId, call: ReadCall) -> Response:
        return answer(kind.get(call, resource))

    def verb(resource: ResourceId, action: str, call: WriteCall) -> Response:
        if action != "cancel":
            raise NotServed(f"{collection}:{action[:50]} is not served by this platform.")
        kind.cancel(call, resource)
        return answer({})

    def delete(resource: ResourceId, call: WriteCall) -> Response:
        return answer(kind.delete(call, resource))

    def add(path: str, handler: Callable[..., Response], method: str) -> None:
        router.add_api_route(path, handler, methods=[method], name=f"vertex_{collection}_{handler.__name__}")

    resource_path = f"{PARENT}/{collection}/{{resource}}"
    add(f"{PARENT}/{collection}", create, "POST")
    add(f"{PARENT}/{collection}", list_all, "GET")
    add(f"{resource_path}:{{action}}", verb, "POST")
    add(resource_path, get, "GET")
    add(resource_path, delete, "DELETE")


for _name, _kind in COLLECTIONS.items():
    _add(_name, _kind)
router.include_router(metadata)
router.include_router(tensorboards)
router.include_router(operations)


# --- the rest --------------------------------------------------------------------------------------------------------


@router.api_route(f"{PARENT}/{{rest:path}}", methods=["GET", "POST", "PUT", "PATCH", "DELETE"])
@router.api_route(f"{PARENT_OF_PROGRESS}/{{rest:path}}", methods=["GET", "POST", "DELETE"])
def nothing_here(request: Request, rest: str, parent: ParentDep, caller: Reader) -> Response:
    """Refuses what only the real API has, with its method and path."""
    del parent, caller
    request_line = f"{request.method} {rest[:200]}"
    if rest.partition("/")[0].partition(":")[0] in _SERVED:
        raise NotServed(f"{request_line} is not served by this platform, though other methods of this collection are.")
    raise NotServed(
        f"{request_line} is not served by this platform; served are {', '.join(_SERVED)} and Cloud Storage."
    )


@router.api_route("/v1/{rest:path}", methods=["GET", "POST", "PUT", "PATCH", "DELETE"])
def no_such_place(request: Request, rest: str, caller: Reader) -> Response:
    """404 in Google's error format instead of ours."""
    del caller
    raise NotFound(
        f"{request.method} /v1/{rest[:200]} is not found: resources are in projects/<project>/locations/<location>."
    )


@router.api_route("/v1beta1/{rest:path}", methods=["GET", "POST", "PUT", "PATCH", "DELETE"])
def no_beta(rest: str, caller: Reader) -> Response:
    """Preview clients such as ``aiplatform.preview`` use this address."""
    del rest, caller
    raise NotServed(
        "Vertex AI's v1beta1 is not served by this platform; use v1, as google.cloud.aiplatform does without `preview`."
    )
