from __future__ import annotations

from typing import Annotated

from fastapi import Path, Query, Request, Response
from sqlalchemy import select
from trainmaster.spec.fields import DISPLAY_NAME_PATTERN
from trainmaster.wire.base import Page
from trainmaster.wire.jobs import JobDetail
from trainmaster.wire.serving import (
    BatchPredictRequest,
    DeployRequest,
    EndpointChange,
    EndpointCreate,
    EndpointDetail,
    EndpointView,
    RollbackRequest,
    ScaleRequest,
    TrafficRequest,
)

from api.app.unit_of_work import AppContextDep
from api.auth import ProjectMember, Reader
from api.endpoints import service
from api.endpoints.access import EndpointAccess, EndpointMember, EndpointViewer
from api.endpoints.proxy import Proxy
from api.endpoints.views import change_view, endpoint_detail, endpoint_views
from api.http.paging import PageParams, PageQuery, make_cursor, newest_rows, read_cursor
from api.http.routing import json_response, new_router
from api.jobs.routes import REPLAYED, IdempotencyKey
from api.jobs.schemas import load_detail
from api.jobs.service import digest_of, submit
from core.db.repositories.events import events_of_endpoint
from core.db.tables import Endpoint, Job

router = new_router("endpoints")

_PROJECT = "/projects/{project}/endpoints"
_ENDPOINT = f"{_PROJECT}/{{endpoint}}"
_DEPLOYED = f"{_ENDPOINT}/deployments/{{deployment}}"
DeploymentName = Annotated[str, Path(description="The deployed model's name.", pattern=DISPLAY_NAME_PATTERN)]
DeploymentQuery = Annotated[
    str | None,
    Query(
        pattern=DISPLAY_NAME_PATTERN,
        description="Send the request to this deployed model; unstated: by the traffic split.",
    ),
]


class EndpointQuery(PageQuery):
    project: Annotated[str | None, Query(max_length=100)] = None


@router.get("/endpoints", operation_id="list_endpoints", summary="Endpoints, newest first")
def list_endpoints(
    query: Annotated[EndpointQuery, Query()], caller: Reader, context: AppContextDep
) -> Page[EndpointView]:
    with context.read() as work:
        rows = select(Endpoint).where(Endpoint.deleted_at.is_(None))
        project_ids = caller.project_ids(work.session, () if query.project is None else (query.project,))
        if project_ids is not None:
            rows = rows.where(Endpoint.project_id.in_(project_ids))
        found, cursor = newest_rows(work.session, rows, Endpoint, query)
        return Page(items=endpoint_views(work.session, [row[0] for row in found]), next_cursor=cursor)


@router.post(_PROJECT, operation_id="create_endpoint", summary="Create an endpoint", status_code=201)
def create_endpoint(body: EndpointCreate, project: ProjectMember, context: AppContextDep) -> EndpointDetail:
    """It can predict once a model is deployed to it. Needs the role `member` in the project."""
    with context.write() as work:
        member = project.caller.member_of(work.session, project.name, project.role)
        return endpoint_detail(work.session, service.create(work, project.caller, member, body))


@router.get(_ENDPOINT, operation_id="get_endpoint", summary="One endpoint with its deployed models and their replicas")
def get_endpoint(endpoint: EndpointViewer, context: AppContextDep) -> EndpointDetail:
    with context.read() as work:
        return endpoint_detail(work.session, endpoint.load(work.session)[0])


@router.get(
    f"{_ENDPOINT}/history", operation_id="list_endpoint_changes", summary="Changes of an endpoint, newest first"
)
def list_endpoint_changes(endpoint: EndpointViewer, context: AppContextDep, page: PageParams) -> Page[EndpointChange]:
    """Deployments, rollbacks, failed revisions and replicas, scaling and traffic, with time, actor and reason."""
    with context.read() as work:
        row = endpoint.load(work.session)[0]
        before = None if page.cursor is None else int(read_cursor(page.cursor, (int,))[0])
        rows = events_of_endpoint(work.session, row.project_id, row.id, before=before, limit=page.limit + 1)
        cursor = make_cursor(rows[page.limit - 1].id) if len(rows) > page.limit else None
        return Page(items=[change_view(event) for event in rows[: page.limit]], next_cursor=cursor)


@router.delete(
    _ENDPOINT, operation_id="delete_endpoint", summary="Undeploy all models and delete the endpoint", status_code=202
)
def delete_endpoint(endpoint: EndpointMember, context: AppContextDep) -> None:
    """Requests are refused at once; the endpoint is gone when its replicas have ended."""
    with context.write() as work:
        service.delete(work, endpoint)


@router.post(f"{_ENDPOINT}/deployments", operation_id="deploy_model", summary="Deploy a model, or a new revision of it")
def deploy_model(body: DeployRequest, endpoint: EndpointMember, context: AppContextDep) -> EndpointDetail:
    """A new revision of an existing deployment replaces the previous one by a rolling update: an old replica ends when
    a new one is ready. A revision that never becomes ready fails, and the previous one continues to serve.
    """
    draft = service.check_deploy(context, endpoint, body)
    with context.write() as work:
        row = service.deploy(work, endpoint, body, draft)
        return endpoint_detail(work.session, work.session.get_one(Endpoint, row.endpoint_id))


@router.post(f"{_DEPLOYED}/scale", operation_id="scale_deployment", summary="Change the number of replicas")
def scale_deployment(
    body: ScaleRequest, deployment: DeploymentName, endpoint: EndpointMember, context: AppContextDep
) -> EndpointDetail:
    with context.write() as work:
        return endpoint_detail(work.session, service.scale(work, endpoint, deployment, body.replicas))


@router.post(f"{_DEPLOYED}/rollback", operation_id="rollback_deployment", summary="Roll back to an earlier revision")
def rollback_deployment(
    deployment: DeploymentName, endpoint: EndpointMember, context: AppContextDep, body: RollbackRequest | None = None
) -> EndpointDetail:
    with context.write() as work:
        return endpoint_detail(work.session, service.roll_back(work, endpoint, deployment, body or RollbackRequest()))


@router.delete(_DEPLOYED, operation_id="undeploy_model", summary="Undeploy a model", status_code=202)
def undeploy_model(deployment: DeploymentName, endpoint: EndpointMember, context: AppContextDep) -> EndpointDetail:
    """Its replicas get no new requests, finish their open ones, and end."""
    with context.write() as work:
        return endpoint_detail(work.session, service.undeploy(work, endpoint, deployment))


@router.put(
    f"{_ENDPOINT}/traffic", operation_id="set_endpoint_traffic", summary="Set the traffic split among deployed models"
)
def set_endpoint_traffic(body: TrafficRequest, endpoint: EndpointMember, context: AppContextDep) -> EndpointDetail:
    with context.write() as work:
        return endpoint_detail(work.session, service.set_traffic(work, endpoint, body.traffic))


@router.post(f"{_ENDPOINT}:predict", operation_id="predict", summary="Predict with a deployed model")
async def predict(request: Request, endpoint: EndpointViewer, deployment: DeploymentQuery = None) -> Response:
    """The body is forwarded unchanged to a ready replica, usually `{"instances": […]}`, and its response is returned,
    usually `{"predictions": […]}`. Responses of the model itself have the header `Trainmaster-Answered-By: model`. The
    role `viewer` and a token of scope `read` are enough.
    """
    return await _forward(request, endpoint, deployment)


@router.post(
    f"{_ENDPOINT}:rawPredict", operation_id="raw_predict", summary="Predict with a deployed model in its own format"
)
async def raw_predict(request: Request, endpoint: EndpointViewer, deployment: DeploymentQuery = None) -> Response:
    """Like `predict`, for bodies of any content type."""
    return await _forward(request, endpoint, deployment)


@router.post(
    "/projects/{project}/batch-predictions",
    operation_id="batch_predict",
    summary="Predict for all instances of some files",
    status_code=201,
    response_model=JobDetail,
)
def batch_predict(
    body: BatchPredictRequest, project: ProjectMember, context: AppContextDep, key: IdempotencyKey = None
) -> Response:
    """Creates a job whose replicas share the instances. A restarted replica resumes after its last complete output
    file.
    """
    with context.read() as work:
        member = project.caller.member_of(work.session, project.name, project.role)
    submission = service.check_batch(context, project.caller, member, body)
    digest = digest_of("batch", {"project": member.project_id, **body.model_dump(mode="json")})
    with context.write() as work:
        done = submit(work, project.caller, submission, key=key, digest=digest)
        detail = load_detail(work.session, work.session.get_one(Job, done.job_id), work.now)
    headers = {"Location": f"/api/v1/jobs/{done.job_id}", **({REPLAYED: "true"} if done.row is None else {})}
    return json_response(detail, 201, headers)


async def _forward(request: Request, access: EndpointAccess, deployment: str | None) -> Response:
    proxy: Proxy = request.app.state.proxy
    return await proxy.forward(request, access, deployment)
