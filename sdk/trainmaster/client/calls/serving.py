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
    Predicted,
    RollbackRequest,
    ScaleRequest,
    TrafficRequest,
)


def body_of(instances: Any, parameters: Mapping[str, Any] | None) -> bytes:
    """The request's body. Raises ``InvalidRequest``: something in it is no JSON; the element is named."""
    body: dict[str, Any] = {"instances": _listed(instances)}
    if parameters is not None:
        body["parameters"] = dict(parameters)
    try:
        return json.dumps(body, default=_plain).encode()
    except (TypeError, ValueError, RecursionError) as error:
        found = _first_not_json(body)
        if found is None:
            raise InvalidRequest(f"instances cannot be written as JSON: {error}.", field="instances") from error
        place, one = found
        raise InvalidRequest(
            f"{place} is {_kind(one)}, which JSON does not have; give numbers, texts, lists and objects, or something with tolist().",
            field=place,
        ) from error


def _first_not_json(body: Mapping[str, Any]) -> tuple[str, Any] | None:
    try:
        return next((found for name, value in body.items() for found in _not_json(value, name)), None)
    except RecursionError:  # it holds itself
        return None


def _listed(instances: Any) -> list[Any]:
    if hasattr(instances, "to_dict") and hasattr(instances, "columns"):  # pandas: a table, each row an object
        found = instances.to_dict(orient="records")
    else:
        found = instances.tolist() if hasattr(instances, "tolist") else instances
    if isinstance(found, (str, bytes, Mapping)) or not hasattr(found, "__iter__"):
        raise InvalidRequest(
            f"instances is {_kind(instances)}; give a list of instances, a single one as [instance].", field="instances"
        )
    return list(found)


def _plain(value: Any) -> Any:
    """What ``json`` asks for what it does not know. Raises ``TypeError``."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray, memoryview)):
        return list(value)
    raise TypeError(type(value).__name__)


def _not_json(value: Any, place: str) -> Iterator[tuple[str, Any]]:
    """Elements that are no JSON, with where they stand, such as ``instances[2]['day']``."""
    if value is None or isinstance(value, (str, int, float)):
        return
    try:
        value = value if isinstance(value, (dict, list, tuple)) else _plain(value)
    except TypeError:
        yield place, value
        return
    if isinstance(value, dict):
        for key, one in value.items():
            if not isinstance(key, (str, int, float)) and key is not None:
                yield f"a key of {place}", key
            yield from _not_json(one, f"{place}[{key!r}]")
    elif isinstance(value, (list, tuple)):
        for number, one in enumerate(value):
            yield from _not_json(one, f"{place}[{number}]")


def _kind(value: Any) -> str:
    module = type(value).__module__
    name = type(value).__qualname__
    return name if module == "builtins" else f"{module}.{name}"


_ENDPOINT: Final = "/projects/{project}/endpoints/{endpoint}"
_DEPLOYMENT: Final = _ENDPOINT + "/deployments/{deployment}"


def create_endpoint(name: str, *, project: str = "default", description: str = "") -> Call[EndpointDetail]:
    """An address in the project; it answers when something is deployed to it. Raises ``Conflict``: there is one."""
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
    """Undeploy all; it is gone when its replicas have ended."""
    return without_content("delete_endpoint", "DELETE", path(_ENDPOINT, project=project, endpoint=endpoint))


def deploy_model(
    endpoint: str, model: str, *, deployment: str = "default", project: str = "default", **fields: Any
) -> Call[EndpointDetail]:
    """Deploy ``model`` (volume/path, or name@version) or, to a name that is there, its next revision.

    Args:
        fields: further ones of :class:`trainmaster.wire.serving.DeployRequest`, such as ``replicas=2``.
    """
    at = path(_ENDPOINT + "/deployments", project=project, endpoint=endpoint)
    body = DeployRequest(model=model, deployment=deployment, **fields)
    return typed(EndpointDetail, "deploy_model", "POST", at, body=body)


def scale_deployment(
    endpoint: str, replicas: int, *, deployment: str = "default", project: str = "default"
) -> Call[EndpointDetail]:
    """Have so many replicas; 0: nothing of it runs."""
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
    """Have an earlier revision serve again; unstated, the newest before the present that ever served."""
    at = path(_DEPLOYMENT + "/rollback", project=project, endpoint=endpoint, deployment=deployment)
    body = RollbackRequest(revision=revision, reason=reason)
    return typed(EndpointDetail, "rollback_deployment", "POST", at, body=body)


def undeploy_model(endpoint: str, deployment: str = "default", *, project: str = "default") -> Call[EndpointDetail]:
    """Its replicas finish what they have, and end."""
    at = path(_DEPLOYMENT, project=project, endpoint=endpoint, deployment=deployment)
    return typed(EndpointDetail, "undeploy_model", "DELETE", at)


def set_endpoint_traffic(
    endpoint: str, traffic: Mapping[str, int], *, project: str = "default"
) -> Call[EndpointDetail]:
    """Each deployed model's part of the requests in per cent, together 100."""
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
        instances: a list of what JSON has; also anything with ``tolist()``, such as arrays of NumPy and tensors of torch, in the
            list, too; of a table of pandas each row is an object by the columns' names.
        deployment: ask this deployed model; unstated: by their parts of the traffic.

    Raises:
        InvalidRequest: an element that is no JSON; it is named.
        ModelError: the model itself refused, or failed.
        Unavailable: no replica is ready; the sentence says what they wait for.
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
) -> Call[Predicted]:
    """As :func:`predict`, with what the model says of all predictions: the order of the classes where each has a list of
    figures, as by ``parameters={"method": "predict_proba"}``.
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
    return HttpRequest("POST", at, params(deployment=deployment), headers, body_of(instances, parameters), timeout_s)


def raw_predict(
    endpoint: str,
    body: bytes,
    *,
    content_type: str = "application/octet-stream",
    project: str = "default",
    deployment: str | None = None,
    timeout_s: float = 120.0,
) -> Call[bytes]:
    """What the model answers to ``body``, both as they are. Raises like ``predict``."""
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
    """A job that predicts for every instance of the files at ``input`` (volume/path).

    Args:
        idempotency_key: the same key never makes a second job; made when none is given, so that a repeat after a lost
            answer is safe.
        fields: further ones of :class:`trainmaster.wire.serving.BatchPredictRequest`, such as ``replicas=4``.
    """
    at = path("/projects/{project}/batch-predictions", project=project)
    body = BatchPredictRequest(model=model, input=input, **fields)
    headers = {"Idempotency-Key": idempotency_key or str(uuid4())}
    return typed(JobDetail, "batch_predict", "POST", at, body=body, headers=headers, is_repeatable=True)


def _predicted(answer: HttpResponse) -> Predicted:
    value = answer.json()
    if not isinstance(value, dict) or not isinstance(value.get("predictions"), list):
        raise ModelError(
            "The model's answer has no predictions; ask it with raw_predict.", status=answer.status, answer=value
        )
    return Predicted(predictions=value["predictions"], metadata=value.get("metadata") or {})
