"""Routes of models' uploads, endpoints and predictions."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response

from api.app.unit_of_work import AppContextDep
from api.auth import Reader, Writer
from api.protocols.kit.json_values import answer
from api.protocols.vertex.registry import models
from api.protocols.vertex.request_types import PARENT, PARENT_OF_PROGRESS, ParentDep, RawBody, ResourceId
from api.protocols.vertex.serving import deploying, endpoints, predicting, uploads
from api.protocols.vertex.vertex_route import VertexRoute

router = APIRouter(route_class=VertexRoute, include_in_schema=False)

_MODELS = f"/{models.COLLECTION}"
_UPLOAD = f"{_MODELS}/{{resource}}/operations/{uploads.OPERATION}-{{number}}"


@router.post(f"{PARENT}{_MODELS}:upload")
def upload_model(body: RawBody, parent: ParentDep, caller: Writer, context: AppContextDep) -> Response:
    return answer(uploads.upload(context, caller, parent, body))


@router.get(f"{PARENT}{_UPLOAD}")
@router.get(f"{PARENT_OF_PROGRESS}{_UPLOAD}")
def look_at_upload(
    resource: ResourceId,
    number: Annotated[int, Path(ge=1, le=2**31 - 1)],
    parent: ParentDep,
    caller: Reader,
    context: AppContextDep,
) -> Response:
    return answer(uploads.poll_upload(context, caller, parent, resource, number))


_ENDPOINTS = f"/{endpoints.COLLECTION}"
_ENDPOINT = f"{PARENT}{_ENDPOINTS}/{{resource}}"
_DeploymentId = Annotated[str, Path(max_length=100)]


@router.post(f"{PARENT}{_ENDPOINTS}")
def create_endpoint(
    body: RawBody,
    parent: ParentDep,
    caller: Writer,
    context: AppContextDep,
    endpointId: Annotated[str, Query(max_length=100)] = "",  # noqa: N803 (as Google names it)
) -> Response:
    return answer(endpoints.create(context, caller, parent, body, endpointId))


@router.patch(_ENDPOINT)
def update_endpoint(
    resource: ResourceId,
    body: RawBody,
    parent: ParentDep,
    caller: Writer,
    context: AppContextDep,
    updateMask: Annotated[str, Query(max_length=1000)] = "",  # noqa: N803
) -> Response:
    return answer(endpoints.update(context, caller, parent, resource, body, updateMask))


@router.post(f"{_ENDPOINT}:deployModel")
def deploy_model(
    resource: ResourceId, body: RawBody, parent: ParentDep, caller: Writer, context: AppContextDep
) -> Response:
    return answer(deploying.deploy(context, caller, parent, resource, body))


@router.post(f"{_ENDPOINT}:undeployModel")
def undeploy_model(
    resource: ResourceId, body: RawBody, parent: ParentDep, caller: Writer, context: AppContextDep
) -> Response:
    return answer(deploying.undeploy(context, caller, parent, resource, body))


@router.get(f"{PARENT}{_ENDPOINTS}/{{resource}}/operations/{deploying.DEPLOY}-{{deployment}}")
@router.get(f"{PARENT_OF_PROGRESS}{_ENDPOINTS}/{{resource}}/operations/{deploying.DEPLOY}-{{deployment}}")
def look_at_deployment(
    resource: ResourceId, deployment: _DeploymentId, parent: ParentDep, caller: Reader, context: AppContextDep
) -> Response:
    return answer(deploying.poll_deployment(context, caller, parent, resource, deploying.DEPLOY, deployment))


@router.get(f"{PARENT}{_ENDPOINTS}/{{resource}}/operations/{deploying.UNDEPLOY}-{{deployment}}")
@router.get(f"{PARENT_OF_PROGRESS}{_ENDPOINTS}/{{resource}}/operations/{deploying.UNDEPLOY}-{{deployment}}")
def look_at_undeployment(
    resource: ResourceId, deployment: _DeploymentId, parent: ParentDep, caller: Reader, context: AppContextDep
) -> Response:
    return answer(deploying.poll_deployment(context, caller, parent, resource, deploying.UNDEPLOY, deployment))


# A prediction needs only read access.
@router.post(f"{_ENDPOINT}:predict")
async def predict(
    request: Request, resource: ResourceId, parent: ParentDep, caller: Reader, context: AppContextDep
) -> Response:
    return await predicting.predict(request, context, caller, parent, resource)


@router.post(f"{_ENDPOINT}:rawPredict")
async def raw_predict(
    request: Request, resource: ResourceId, parent: ParentDep, caller: Reader, context: AppContextDep
) -> Response:
    return await predicting.raw_predict(request, context, caller, parent, resource)
