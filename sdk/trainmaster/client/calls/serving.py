"""Endpoints, deployed models and batch predictions."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final
from uuid import uuid4

from trainmaster.client.calls.build import params, path, typed, without_content
from trainmaster.client.steps import Call, HttpRequest, HttpResponse
from trainmaster.errors import InvalidRequest, ModelError
from trainmaster.wire.base import Page
from trainmaster.wire.jobs import JobDetail
from trainmaster.wire.serving import (
    BatchPredictRequest,
    DeployRequest,
    EndpointChange,
    EndpointCreate,
    EndpointDetail,
    EndpointView,
    PredictResponse,
    RollbackRequest,
    ScaleRequest,
    TrafficRequest,
)


def _request_body(instances: Any, parameters: Mapping[str, Any] | None) -> bytes:
    """The request's body as JSON. Accepts objects of NumPy, pandas and torch, none of which is imported.

    Raises ``InvalidRequest``: an element is not JSON; the message names it.
    """
    body: dict[str, Any] = {"instances": _listed(instances)}
    if parameters is not None:
        body["parameters"] = dict(parameters)
    try:
        return json.dumps(body, default=_plain).encode()
    except (TypeError, ValueError, RecursionError) as error:
        mistake = _first_not_json(body)
        if mistake is None:
            raise InvalidRequest(f"instances cannot be written as JSON: {error}.", field="instances") from error
        place, element = mistake
        raise InvalidRequest(
            f"{place} is {_kind(element)}, which JSON does not support; give numbers, texts, lists and objects, or "
            "objects with tolist().",
            field=place,
        ) from error


def _first_not_json(body: Mapping[str, Any]) -> tuple[str, Any] | None:
    try:
        return next((mistake for name, value in body.items() for mistake in _not_json(value, name)), None)
    except RecursionError:  # it contains itself
        return None


def _listed(instances: Any) -> list[Any]:
    if hasattr(instances, "to_dict") and hasattr(instances, "columns"):  # a pandas DataFrame: each row an object
        records = instances.to_dict(orient="records")
    else:
        records = instances.tolist() if hasattr(instances, "tolist") else instances
    if isinstance(records, (str, bytes, Mapping)) or not hasattr(records, "__iter__"):
        raise InvalidRequest(
            f"instances is {_kind(instances)}; give a list, for a single instance [instance].", field="instances"
        )
    return list(records)


def _plain(value: Any) -> Any:
    """Fallback of ``json`` for unknown types. Raises ``TypeError``."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray, memoryview)):
        return list(value)
    raise TypeError(type(value).__name__)


def _not_json(value: Any, place: str) -> Iterator[tuple[str, Any]]:
    """Elements that are not JSON, with their paths, such as ``instances[2]['day']``."""
    if value is None or isinstance(value, (str, int, float)):
        return
    try:
        value = value if isinstance(value, (dict, list, tuple)) else _plain(value)
    except TypeError:
        yield place, value
        return
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, (str, int, float)) and key is not None:
                yield f"a key of {place}", key
            yield from _not_json(item, f"{place}[{key!r}]")
    elif isinstance(value, (list, tuple)):
        for number, item in enumerate(value):
            yield from _not_json(item, f"{place}[{number}]")


def _kind(value: Any) -> str:
    module = type(value).__module__
    name = type(value).__qualname__
    return name if module == "builtins" else f"{module}.{name}"


_ENDPOINT: Final = "/projects/{project}/endpoints/{endpoint}"
_DEPLOYMENT: Final = _ENDPOINT + "/deployments/{deployment}"


def create_endpoint(name: str, *, project: str = "default", description: str = "") -> Call[EndpointDetail]:
    """Create an endpoint without models. Raises ``Conflict``: the name is taken."""
    at = path("/projects/{project}/endpoints", project=project)
    body = EndpointCreate(name=name, description=description)
    return typed(EndpointDetail, "create_endpoint", "POST", at, body=body)


def list_endpoints_page(
    *, project: str | None = None, limit: int | None = None, cursor: str | None = None
) -> Call[Page[EndpointView]]:
    """One page of the endpoints, newest first."""
    query = params(project=project, limit=limit, cursor=cursor)
    return typed(Page[EndpointView], "list_endpoints", "GET", "/endpoints", query=query)


def get_endpoint(endpoint: str, *, project: str = "default") -> Call[EndpointDetail]:
    """The endpoint with its deployed models, their revisions and replicas."""
    return typed(EndpointDetail, "get_endpoint", "GET", path(_ENDPOINT, project=project, endpoint=endpoint))


def list_endpoint_changes_page(
    endpoint: str, *, project: str = "default", limit: int | None = None, cursor: str | None = None
) -> Call[Page[EndpointChange]]:
    """One page of the endpoint's history, newest first."""
    at = path(_ENDPOINT + "/history", project=project, endpoint=endpoint)
    query = params(limit=limit, cursor=cursor)
    return typed(Page[EndpointChange], "list_endpoint_changes", "GET", at, query=query)


def delete_endpoint(endpoint: str, *, project: str = "default") -> Call[None]:
    """Undeploy all models; the endpoint is deleted when its replicas have ended."""
    return without_content("delete_endpoint", "DELETE", path(_ENDPOINT, project=project, endpoint=endpoint))


def deploy_model(
    endpoint: str, model: str, *, deployment: str = "default", project: str = "default", **fields: Any
) -> Call[EndpointDetail]:
    """Deploy ``model`` (volume/path, or name@version); for an existing deployment, a new revision.

    Args:
        fields: further fields of :class:`trainmaster.wire.serving.DeployRequest`, such as ``replicas=2``.
    """
    at = path(_ENDPOINT + "/deployments", project=project, endpoint=endpoint)
    body = DeployRequest(model=model, deployment=deployment, **fields)
    return typed(EndpointDetail, "deploy_model", "POST", at, body=body)


def scale_deployment(
    endpoint: str, replicas: int, *, deployment: str = "default", project: str = "default"
) -> Call[EndpointDetail]:
    """Set the number of replicas; 0 stops the deployment."""
    at = path(_DEPLOYMENT + "/scale", project=project, endpoint=endpoint, deployment=deployment)
    return typed(
        EndpointDetail, "scale_deployment", "POST", at, body=ScaleRequest(replicas=replicas), is_repeatable=True
    )


def rollback_deployment(
    endpoint: str,
    *,
    revision: int | None = None,
    deployment: str = "default",
    project: str = "default",
    reason: str = "",
) -> Call[EndpointDetail]:
    """Roll back to an earlier revision; default: the newest one before the present that was ready."""
    at = path(_DEPLOYMENT + "/rollback", project=project, endpoint=endpoint, deployment=deployment)
    body = RollbackRequest(revision=revision, reason=reason)
    return typed(EndpointDetail, "rollback_deployment", "POST", at, body=body)


def undeploy_model(endpoint: str, deployment: str = "default", *, project: str = "default") -> Call[EndpointDetail]:
    """Undeploy a model; its replicas finish their requests first."""
    at = path(_DEPLOYMENT, project=project, endpoint=endpoint, deployment=deployment)
    return typed(EndpointDetail, "undeploy_model", "DELETE", at)


def set_endpoint_traffic(
    endpoint: str, traffic: Mapping[str, int], *, project: str = "default"
) -> Call[EndpointDetail]:
    """Set the traffic split in per cent by deployment; the sum is 100."""
    at = path(_ENDPOINT + "/traffic", project=project, endpoint=endpoint)
    body = TrafficRequest(traffic=dict(traffic))
    return typed(EndpointDetail, "set_endpoint_traffic", "PUT", at, body=body)


def predict(
    endpoint: str,
    instances: Any,
    *,
    parameters: Mapping[str, Any] | None = None,
    project: str = "default",
    deployment: str | None = None,
    timeout_s: float = 120.0,
) -> Call[list[Any]]:
    """The predictions for ``instances``.

    Args:
        instances: a list of JSON values; also objects with ``tolist()``, such as NumPy arrays and torch tensors, at any
            depth; the rows of a pandas DataFrame become objects with the columns' names.
        deployment: the deployment to query; default: chosen by the traffic split.

    Raises:
        InvalidRequest: an element is not JSON; the message names it.
        ModelError: the model rejected the request or failed.
        Unavailable: no replica is ready; the message says why.
    """
    request = _predict_request(endpoint, instances, parameters, project, deployment, timeout_s)
    return Call("predict", request, lambda answer: _predicted(answer).predictions, is_repeatable=False)


def predict_with_metadata(
    endpoint: str,
    instances: Any,
    *,
    parameters: Mapping[str, Any] | None = None,
    project: str = "default",
    deployment: str | None = None,
    timeout_s: float = 120.0,
) -> Call[PredictResponse]:
    """Like :func:`predict`, with the model's metadata: such as the order of the classes for probabilities
    (``parameters={"method": "predict_proba"}``).
    """
    request = _predict_request(endpoint, instances, parameters, project, deployment, timeout_s)
    return Call("predict", request, _predicted, is_repeatable=False)


def _predict_request(
    endpoint: str,
    instances: Any,
    parameters: Mapping[str, Any] | None,
    project: str,
    deployment: str | None,
    timeout_s: float,
) -> HttpRequest:
    at = path(_ENDPOINT, project=project, endpoint=endpoint) + ":predict"
    headers = {"Content-Type": "application/json"}
    return HttpRequest(
        "POST", at, params(deployment=deployment), headers, _request_body(instances, parameters), timeout_s
    )


def raw_predict(
    endpoint: str,
    body: bytes,
    *,
    content_type: str = "application/octet-stream",
    project: str = "default",
    deployment: str | None = None,
    timeout_s: float = 120.0,
) -> Call[bytes]:
    """The model's raw response to ``body``. Raises like ``predict``."""
    at = path(_ENDPOINT, project=project, endpoint=endpoint) + ":rawPredict"
    headers = {"Content-Type": content_type}
    request = HttpRequest("POST", at, params(deployment=deployment), headers, body, timeout_s)
    return Call("raw_predict", request, lambda answer: answer.content, is_repeatable=False)


def batch_predict(
    model: str,
    input: str,  # noqa: A002
    *,
    project: str = "default",
    idempotency_key: str | None = None,
    **fields: Any,
) -> Call[JobDetail]:
    """Submit a job that predicts for every instance of the files at ``input`` (volume/path).

    Args:
        idempotency_key: a repeated key never creates a second job; generated by default, so that a retry after a lost
            response is safe.
        fields: further fields of :class:`trainmaster.wire.serving.BatchPredictRequest`, such as ``replicas=4``.
    """
    at = path("/projects/{project}/batch-predictions", project=project)
    body = BatchPredictRequest(model=model, input=input, **fields)
    headers = {"Idempotency-Key": idempotency_key or str(uuid4())}
    return typed(JobDetail, "batch_predict", "POST", at, body=body, headers=headers, is_repeatable=True)


def _predicted(answer: HttpResponse) -> PredictResponse:
    value = answer.json()
    if not isinstance(value, dict) or not isinstance(value.get("predictions"), list):
        raise ModelError(
            "The model's response has no predictions; use raw_predict.", status=answer.status, answer=value
        )
    return PredictResponse(predictions=value["predictions"], metadata=value.get("metadata") or {})
