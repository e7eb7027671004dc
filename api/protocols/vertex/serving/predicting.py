"""``endpoints.predict`` and ``rawPredict``: our inference proxy, plus the deployed model's identity in responses.

https://cloud.google.com/vertex-ai/docs/reference/rest/v1/projects.locations.endpoints/predict
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Final

import orjson
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from api.app.unit_of_work import AppContext
from api.endpoints.access import EndpointAccess
from api.endpoints.proxy import DEPLOYMENT_HEADER, REPLICA_HEADER, Proxy
from api.endpoints.upstream import ProxiedResponse
from api.protocols.vertex.names import Parent, VertexCall
from api.protocols.vertex.serving.models import COLLECTION as MODELS
from api.protocols.vertex.serving.models import display_name_of
from api.protocols.vertex.vertex_route import VertexRoute
from core.db.repositories import serving
from core.db.tables import Deployment, Model, ModelVersion, ServingReplica

_CACHE_LIMIT: Final = 1_000  # replicas whose model is cached
_LONGEST: Final = 10_000  # characters of a model's error
_IN_PLACE: Final = 64 * 1024  # bytes that are parsed faster than a switch to a thread


@dataclass(frozen=True, slots=True)
class ServedModel:
    """The model that a replica serves. ``model_id`` and ``version``: empty if it is not in the registry."""

    deployment: str
    model_id: str = ""
    version: str = ""
    display_name: str = ""

    def model(self, parent: Parent) -> str:
        return parent.name_of(MODELS, self.model_id) if self.model_id else ""


# A replica serves the same model for its whole life.
_served: OrderedDict[str, ServedModel] = OrderedDict()


async def predict(request: Request, call: VertexCall, resource_id: str) -> Response:
    """``PredictResponse``. Raises as ``Proxy.forward``."""
    answer = await _ask(request, call, resource_id)
    if not isinstance(answer, ProxiedResponse):
        return answer
    status, headers = answer.status_code, dict(answer.headers)
    body = await answer.read(call.context.settings.predict_limit_bytes)
    if status != 200:
        message = body.decode("utf-8", "replace").strip()[:_LONGEST] or f"The model answered with status {status}."
        status = status if status >= 400 else 500
        code = VertexRoute.codes.get(status, "INTERNAL" if status >= 500 else "FAILED_PRECONDITION")
        return VertexRoute.error_response(status, code, message)
    # Parsing a large response would block the event loop.
    is_large = len(body) > _IN_PLACE
    prediction = await run_in_threadpool(_read, body) if is_large else _read(body)
    if prediction is None:
        message = 'The model\'s answer is not {"predictions": [...]}: ' + body.decode("utf-8", "replace")[:200]
        return VertexRoute.error_response(500, "INTERNAL", f"{message}. By rawPredict any answer comes as it is.")
    served = await _find_served(call.context, headers)
    shown = {
        "predictions": prediction["predictions"],
        "deployedModelId": served.deployment,
        "model": served.model(call.parent),
        "modelDisplayName": served.display_name,
        "modelVersionId": served.version,
        **({"metadata": prediction["metadata"]} if prediction.get("metadata") is not None else {}),
    }
    shown_fields = {name: value for name, value in shown.items() if value != ""}
    written = await run_in_threadpool(orjson.dumps, shown_fields) if is_large else orjson.dumps(shown_fields)
    return Response(written, media_type="application/json")


async def raw_predict(request: Request, call: VertexCall, resource_id: str) -> Response:
    """The model's response unchanged, with the deployed model's identity in the headers that the SDK reads."""
    answer = await _ask(request, call, resource_id)
    if isinstance(answer, ProxiedResponse):
        served = await _find_served(call.context, dict(answer.headers))
        answer.headers["X-Vertex-AI-Endpoint-Id"] = resource_id
        answer.headers["X-Vertex-AI-Deployed-Model-Id"] = served.deployment
        answer.headers["X-Vertex-AI-Model"] = served.model(call.parent)
        answer.headers["X-Vertex-AI-Model-Version-Id"] = served.version
    return answer


async def _ask(request: Request, call: VertexCall, resource_id: str) -> Response:
    if all(member.project != call.parent.own for member in call.caller.projects.values()):
        await run_in_threadpool(_demand_member, call)
    proxy: Proxy = request.app.state.proxy
    return await proxy.forward(request, EndpointAccess(call.caller, call.parent.own, resource_id, "viewer"), None)


def _demand_member(call: VertexCall) -> None:
    with call.context.read() as work:
        call.member_of(work.session, "viewer", verb="endpoints.predict")


def _read(body: bytes) -> dict[str, Any] | None:
    try:
        prediction = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    return prediction if isinstance(prediction, dict) and isinstance(prediction.get("predictions"), list) else None


async def _find_served(context: AppContext, headers: dict[str, str]) -> ServedModel:
    replica_id = headers.get(REPLICA_HEADER.lower(), "")
    known = _served.get(replica_id)
    if known is None:
        known = await run_in_threadpool(_load, context, replica_id, headers.get(DEPLOYMENT_HEADER.lower(), ""))
        _served[replica_id] = known
        while len(_served) > _CACHE_LIMIT:
            _served.popitem(last=False)
    return known


def _load(context: AppContext, replica_id: str, deployment: str) -> ServedModel:
    with context.read() as work:
        replica = work.session.get(ServingReplica, replica_id)
        row = None if replica is None else work.session.get(Deployment, replica.deployment_id)
        if replica is None or row is None:
            return ServedModel(deployment)
        revisions = serving.revisions_of(work.session, row.id, numbers=[replica.revision], limit=1)
        version_id = revisions[0].spec.get("version_id") if revisions else None
        version = work.session.get(ModelVersion, version_id) if version_id else None
        model = None if version is None else work.session.get(Model, version.model_id)
        if version is None or model is None:
            return ServedModel(row.name)
        return ServedModel(row.name, model.id, str(version.number), display_name_of(model, version))
