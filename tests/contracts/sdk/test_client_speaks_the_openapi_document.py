"""Every request that the client can make is an operation of the API's own description, and the other way round."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from trainmaster import errors as client_errors
from trainmaster.client import calls
from trainmaster.client.flows import streams
from trainmaster.client.steps import Call, HttpRequest, OpenStream, RetryPolicy, Send
from trainmaster.client.transport import API_PREFIX

from core.domain import errors as server_errors

# What is no business of a client: the runtime's reports and its code, browsers, load balancers, and Prometheus.
NOT_FOR_CLIENTS = {"report", "add_metrics", "download_code", "get_liveness", "get_readiness", "get_metrics"}
# What the web application alone asks for.
NOT_FOR_CLIENTS |= {"download_checkpoint", "download_version", "open_session", "close_session"}
NOT_FOR_CLIENTS |= {"start_provider_login", "finish_provider_login"}
NOT_FOR_CLIENTS |= {"list_holders", "diff_code"}

ARGUMENTS: dict[str, Any] = {
    "data": "data/x.csv",
    "job": "mnist",
    "project": "default",
    "keep": {"outputs": "30d"},
    "user": "ann",
    "node": "n1",
    "labels": {"pool": "fast"},
    "volume": "data",
    "grantee": "vision",
    "access": "read",
    "name": "thing",
    "role": "member",
    "value": "v",
    "number": 1,
    "code": "c",
    "token_id": "t1",
    "account": "ci",
    "provider": "lab",
    "device_code": "d",
    "subject": "s-1",
    "identity": "identity-1",
    "webhook": "webhook-1",
    "delivery": 7,
    "channel": "channel-1",
    "url": "https://example.com/hook",
    "event_types": ["job.*"],
    "digest": "sha256:" + "0" * 64,
    "size_bytes": 3,
    "offset": 0,
    "chunk": b"abc",
    "file": "model.pt",
    "checkpoint": "checkpoints/a.pt",
    "other": "checkpoints/b.pt",
    "tensors": ["fc.weight"],
    "incomplete": True,
    "spec": {"name": "x"},
    "names": ["loss"],
    "jobs": ["mnist"],
    "image": 1,
    "prefix": "train/",
    "by": "time",
    "low": 1,
    "high": 2,
    "buckets": 10,
    "window_s": 60,
    "system": False,
    "index": 0,
    "settings": {"order": "fifo"},
    "begins_at": datetime(2026, 12, 1, tzinfo=UTC),
    "ends_at": datetime(2026, 12, 2, tzinfo=UTC),
    "reservation": "reservation-1",
    "simulation": "simulation-1",
    "study": "search",
    "endpoint": "sums",
    "deployment": "default",
    "input": "data/questions",
    "instances": [[1]],
    "body": b"x",
    "replicas": 2,
    "traffic": {"default": 100},
    "result": {"loss": 0.5},
    "model": "digits",
    "version": 1,
    "alias": "prod",
    "stage": "staging",
    "table": {"machines": {"n1-*": {"cpu": 4}}},
    "generation": 1,
    "machine_type": "n1-standard-4",
    "accelerator": "NVIDIA_L4",
    "count": 2,
    "location": "us-central1",
    "resource": "gpu",
    "per_hour": "2.5",
    "price": "price-1",
    "per_month": "5000",
}


def builders() -> Iterator[Callable[..., Any]]:
    for found in pkgutil.iter_modules(calls.__path__):
        if found.name in ("build", "asking"):  # what the others make their calls with
            continue
        module = importlib.import_module(f"{calls.__name__}.{found.name}")
        for name, thing in vars(module).items():
            if inspect.isfunction(thing) and thing.__module__ == module.__name__ and not name.startswith("_"):
                yield thing


def call_of(builder: Callable[..., Any]) -> Call[Any]:
    """The call with every argument given, so that each query parameter is seen."""
    given: dict[str, Any] = {}
    for name, parameter in inspect.signature(builder).parameters.items():
        if name in ARGUMENTS:
            given[name] = ARGUMENTS[name]
        elif parameter.kind is inspect.Parameter.VAR_KEYWORD:
            continue  # further fields of the body, which its model checks
        elif parameter.default is inspect.Parameter.empty:
            raise AssertionError(f"{builder.__name__} has a new argument {name}: give it a value above")
        elif name in ("limit", "after", "attempt", "limit_bytes", "tail_lines"):
            given[name] = 1
        elif name in ("cursor", "search", "folder"):
            given[name] = "x"
        elif name in ("state", "label"):
            given[name] = ["queued"]
    call = builder(**given)
    assert isinstance(call, Call)
    return call


def operations(openapi: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    return {
        (method.upper(), path): operation
        for path, methods in openapi["paths"].items()
        for method, operation in methods.items()
    }


def operation_of(openapi: dict[str, Any], request: HttpRequest) -> dict[str, Any]:
    fitting = [
        (path.count("{"), operation)
        for (method, path), operation in operations(openapi).items()
        if method == request.method and re.fullmatch(re.sub(r"\{[^}]+\}", "[^/]+", path), API_PREFIX + request.path)
    ]
    assert fitting, f"the API has no {request.method} {request.path}"
    return min(fitting, key=lambda found: found[0])[1]


def assert_parameters_exist(operation: dict[str, Any], request: HttpRequest) -> None:
    known = {p["name"] for p in operation.get("parameters", []) if p["in"] == "query"}
    assert {name for name, _ in request.params} <= known, operation["operationId"]


@pytest.mark.parametrize("builder", list(builders()), ids=lambda builder: builder.__name__)
def test_every_call_is_an_operation_with_its_name_and_parameters(
    builder: Callable[..., Any], openapi: dict[str, Any]
) -> None:
    call = call_of(builder)
    operation = operation_of(openapi, call.request)
    assert operation["operationId"] == call.operation
    assert_parameters_exist(operation, call.request)
    sends_json = call.request.headers.get("Content-Type") == "application/json"
    if not sends_json and call.request.content is None:
        assert not operation.get("requestBody", {}).get("required", False)


@pytest.mark.parametrize(
    ("flow", "operation_id"),
    [
        (
            streams.stream_logs("j", follow=False, attempt=1, rank=0, role="ps", index=0, search="x", tail_lines=1),
            "stream_logs",
        ),
        (streams.wait_for_job("j"), "get_job"),
    ],
)
def test_streams_are_operations_too(flow: Any, operation_id: str, openapi: dict[str, Any]) -> None:
    step = next(flow)
    while not isinstance(step, OpenStream | Send):
        step = flow.send(RetryPolicy())
    operation = operation_of(openapi, step.request)
    assert operation["operationId"] == operation_id
    assert_parameters_exist(operation, step.request)


def test_every_operation_for_clients_has_a_call(openapi: dict[str, Any]) -> None:
    offered = {operation["operationId"] for operation in operations(openapi).values()}
    made = {call_of(builder).operation for builder in builders()} | {"stream_logs", "stream_metrics"}
    assert offered - NOT_FOR_CLIENTS == made


def _tree(kind: type[Exception]) -> Iterator[type[Exception]]:
    yield kind
    for child in kind.__subclasses__():
        yield from _tree(child)


def test_every_code_of_the_server_has_an_exception_of_its_own() -> None:
    # Own modules only: another test's throw-away class is no code of the server.
    kinds = [kind for kind in _tree(server_errors.TrainmasterError) if kind.__module__ == server_errors.__name__]
    codes = {kind.code for kind in kinds}  # type: ignore[attr-defined]
    assert codes == set(client_errors.EXCEPTION_BY_CODE)
    assert len(set(client_errors.EXCEPTION_BY_CODE.values())) == len(codes)


def test_a_more_special_error_of_the_server_is_a_more_special_exception() -> None:
    for kind in _tree(server_errors.TrainmasterError):
        parent = kind.__mro__[1]
        if kind.__module__ != server_errors.__name__ or parent is Exception:
            continue
        ours = client_errors.EXCEPTION_BY_CODE[kind.code]  # type: ignore[attr-defined]
        theirs = client_errors.EXCEPTION_BY_CODE[parent.code]  # type: ignore[attr-defined]
        assert issubclass(ours, theirs) or theirs is client_errors.ServerFailure
