"""Kubernetes' API as far as Kubeflow's ``TrainerClient`` needs it: TrainJobs, their runtimes, pods, logs and events.

Below ``/kubernetes``, where the kubeconfig of ``trainmaster kubeflow-config`` points to; a namespace is a project. Not
part of our OpenAPI document: Kubernetes defines and versions it.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Final

from fastapi import APIRouter, Body, Path, Query, Request, Response
from fastapi.responses import StreamingResponse
from starlette.concurrency import run_in_threadpool

from api import VERSION
from api.app.unit_of_work import AppContext, AppContextDep
from api.auth import Caller, Reader, Writer, authenticate
from api.protocols.kit.errors import AlreadyExists, NotServed, refuse_unknown
from api.protocols.kit.json_values import answer
from api.protocols.kit.protocol_route import ProtocolRoute
from api.protocols.kit.streams import limiter_of
from api.protocols.kubeflow import jobs, manifests, views
from core.domain.errors import InvalidRequest


class KubernetesRoute(ProtocolRoute):
    """Answers errors as Kubernetes' API server does: with objects of kind ``Status``.

    https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/status/
    """

    statuses = {NotServed: 404}  # noqa: RUF012 (a ClassVar of its base)
    codes = {  # noqa: RUF012
        400: "BadRequest",
        401: "Unauthorized",
        403: "Forbidden",
        404: "NotFound",
        409: "Conflict",
        413: "RequestEntityTooLarge",
        422: "Invalid",
        500: "InternalError",
        503: "ServiceUnavailable",
    }
    codes_of_errors = {AlreadyExists: "AlreadyExists"}  # noqa: RUF012

    @classmethod
    def error_response(cls, status: int, code: str, message: str) -> Response:
        status_object = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
        return answer({**status_object, "message": message, "reason": code, "code": status}, status)


router = APIRouter(prefix="/kubernetes", route_class=KubernetesRoute, include_in_schema=False)

Namespace = Annotated[str, Path(max_length=100)]
Name = Annotated[str, Path(max_length=300)]
RawBody = Annotated[dict[str, Any], Body()]

_GROUP: Final = f"/apis/{manifests.VERSION}"
_OF_NAMESPACE: Final = f"{_GROUP}/namespaces/{{namespace}}"
_CORE: Final = "/api/v1/namespaces/{namespace}"
_SELECTOR: Final = re.compile(
    r"jobset\.sigs\.k8s\.io/jobset-name==?([^,=\s]{1,100})(?:,jobset\.sigs\.k8s\.io/replicatedjob-name in "
    r"\([^()]*\bnode\b[^()]*\))?"
)
_READERS: Final = 8  # threads of all log streams together
_TAIL_LIMIT: Final = 100_000
_SERVED_QUERY: Final = frozenset({"labelSelector", "pretty", "resourceVersion"})


def _demand_served(request: Request, *more: str) -> None:
    """Refuse query parameters that would be ignored silently."""
    refuse_unknown(
        request.query_params,
        {*_SERVED_QUERY, *more},
        {},
        unknown=lambda name: InvalidRequest(
            f"{name[:100]}: this parameter is not served by this platform; leave it out."
        ),
    )


def _items(kind: str, version: str, items: list[dict[str, Any]]) -> Response:
    """A list of objects. ``kind``: of each object."""
    return answer({"kind": f"{kind}List", "apiVersion": version, "metadata": {}, "items": items})


# --- runtimes --------------------------------------------------------------------------------------------------------


@router.get("/api/v1/namespaces/{namespace}/configmaps/kubeflow-trainer-public")
def version_of_trainer(namespace: Namespace, caller: Reader) -> Response:
    """The client reads this at its start, from the system namespace."""
    del caller
    metadata = {"name": "kubeflow-trainer-public", "namespace": namespace}
    data = {"kubeflow_trainer_version": f"trainmaster-{VERSION}"}
    return answer({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})


@router.get(f"{_GROUP}/clustertrainingruntimes")
def list_cluster_runtimes(request: Request, caller: Reader, context: AppContextDep) -> Response:
    del caller
    _demand_served(request)
    items = [manifests.runtime_view(runtime, context.settings) for runtime in manifests.RUNTIMES.values()]
    return _items(manifests.RUNTIME_KIND, manifests.VERSION, items)


@router.get(f"{_GROUP}/clustertrainingruntimes/{{name}}")
def get_cluster_runtime(name: Name, caller: Reader, context: AppContextDep) -> Response:
    del caller
    return answer(manifests.runtime_view(manifests.find_runtime(name), context.settings))


@router.get(f"{_OF_NAMESPACE}/trainingruntimes")
def list_runtimes(namespace: Namespace, caller: Reader, context: AppContextDep) -> Response:
    """Always empty: all projects share the cluster runtimes."""
    with context.read() as work:
        caller.member_of(work.session, namespace)
    return _items("TrainingRuntime", manifests.VERSION, [])


# --- TrainJobs -------------------------------------------------------------------------------------------------------


@router.post(f"{_OF_NAMESPACE}/trainjobs", status_code=201)
def create_train_job(namespace: Namespace, body: RawBody, caller: Writer, context: AppContextDep) -> Response:
    return answer(_job(context, caller, namespace, jobs.create(context, caller, namespace, body)), 201)


@router.get(f"{_OF_NAMESPACE}/trainjobs")
def list_train_jobs(request: Request, namespace: Namespace, caller: Reader, context: AppContextDep) -> Response:
    _demand_served(request)
    if "labelSelector" in request.query_params:
        raise InvalidRequest(
            "labelSelector: is not served for TrainJobs; `trainmaster list --label` finds them by labels."
        )
    with context.read() as work:
        listed = jobs.list_all(work.session, caller, namespace)
        waits = jobs.reasons_of(work.session, listed, work.now)
        items = [views.job_view(job, namespace, waits.get(job.id), is_listed=True) for job in listed]
    return _items("TrainJob", manifests.VERSION, items)


@router.get(f"{_OF_NAMESPACE}/trainjobs/{{name}}")
def get_train_job(namespace: Namespace, name: Name, caller: Reader, context: AppContextDep) -> Response:
    return answer(_job(context, caller, namespace, name))


@router.delete(f"{_OF_NAMESPACE}/trainjobs/{{name}}")
def delete_train_job(namespace: Namespace, name: Name, caller: Writer, context: AppContextDep) -> Response:
    with context.write() as work:
        job = jobs.delete(work, caller, namespace, name)
        details = {"name": name, "group": manifests.GROUP, "kind": "trainjobs", "uid": job.id}
    return answer({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details})


def _job(context: AppContext, caller: Caller, namespace: str, name: str) -> dict[str, Any]:
    with context.read() as work:
        job = jobs.find(work.session, caller, namespace, name)
        return views.job_view(job, namespace, jobs.reasons_of(work.session, [job], work.now).get(job.id))


# --- pods, events, logs ---------------------------------------------------------------------------------------------


@router.get(f"{_CORE}/pods")
def list_pods(
    request: Request,
    namespace: Namespace,
    caller: Reader,
    context: AppContextDep,
    selector: Annotated[str, Query(alias="labelSelector", max_length=1_000)] = "",
) -> Response:
    """The replicas of a TrainJob's newest attempt."""
    _demand_served(request)
    match = _SELECTOR.fullmatch(selector.strip())
    if match is None:
        raise InvalidRequest(
            "labelSelector: name the TrainJob whose pods these are, as in jobset.sigs.k8s.io/jobset-name=NAME; no "
            "other is served."
        )
    with context.read() as work:
        job = jobs.find(work.session, caller, namespace, match[1])
        items = [views.pod_view(pod, namespace, context.settings) for pod in jobs.pods_of(work.session, job)]
    return _items("Pod", "v1", items)


@router.get(f"{_CORE}/events")
def list_events(request: Request, namespace: Namespace, caller: Reader, context: AppContextDep) -> Response:
    """The newest events of the project's TrainJobs, and the wait reason of each queued one."""
    _demand_served(request)
    with context.read() as work:
        events = jobs.events(work.session, caller, namespace)
        items = [views.event_view(event, name, namespace) for event, name in events]
        waiting = jobs.waiting(work.session, caller, namespace)
        reasons = jobs.reasons_of(work.session, waiting, work.now)
        items += [views.waiting_view(job, namespace, reasons[job.id]) for job in waiting if job.id in reasons]
    return _items("Event", "v1", items)


@router.get(f"{_CORE}/pods/{{name}}/log", response_class=Response)
async def read_pod_log(
    request: Request,
    namespace: Namespace,
    name: Name,
    caller: Reader,
    context: AppContextDep,
    container: str = manifests.NODE,
    follow: bool = False,
    tail_lines: Annotated[int | None, Query(alias="tailLines", ge=0, le=_TAIL_LIMIT)] = None,
) -> Response:
    _demand_served(request, "container", "follow", "tailLines")
    if container != manifests.NODE:
        raise InvalidRequest(f"container: a pod here has one, {manifests.NODE}, and not {container[:100]}.")

    limiter = limiter_of(request.app.state, "pod_log_readers", _READERS)

    def begin() -> tuple[str, jobs.PodLog]:
        with context.read() as work:
            pod = jobs.find_pod(work.session, caller, namespace, name)
            merge = jobs.open_log(work.session, pod, tail_lines=tail_lines)
            return pod.attempt.id, jobs.PodLog(merge, is_over, request.app.state.shutdown, limiter)

    async def is_over() -> bool:
        # A revoked token or a lost role ends the stream. Cheap: both are cached for some seconds.
        now = await authenticate(request, context)
        return await run_in_threadpool(_is_over, context, now, namespace, attempt_id)

    attempt_id, log = await run_in_threadpool(begin)
    return StreamingResponse(
        log.chunks(follow=follow), media_type="text/plain; charset=utf-8", headers={"Cache-Control": "no-store"}
    )


def _is_over(context: AppContext, caller: Caller, namespace: str, attempt_id: str) -> bool:
    with context.read() as work:
        caller.member_of(work.session, namespace)
        return jobs.has_ended(work.session, attempt_id)


@router.api_route("/{rest:path}", methods=["GET", "POST", "PUT", "PATCH", "DELETE"])
def nothing_here(rest: str, request: Request, caller: Reader) -> Response:
    """Refuses other parts of Kubernetes' API by name."""
    del caller
    raise NotServed(
        f"{request.method} /{rest[:200]} is not served by this platform; of Kubernetes it has trainjobs (create, get, "
        "list, delete), clustertrainingruntimes, and the pods, logs and events of TrainJobs."
    )
