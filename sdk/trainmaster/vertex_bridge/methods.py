"""The RPC methods with their message types, as declared by Google's package.

The package has each service as a gRPC transport and as a REST transport with the same methods. The bridge receives what
the first sends; the second knows path, query and body of the same call over REST.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final, Self

import grpc
from google.auth.credentials import AnonymousCredentials  # pyright: ignore[reportMissingImports] (of the extra)
from google.longrunning import operations_pb2  # pyright: ignore[reportMissingImports]
from requests.adapters import HTTPAdapter

PACKAGE: Final = "google.cloud.aiplatform.v1"
# Services of which the platform serves any method: (name on the wire, module in the package).
SERVICES: Final = (
    ("JobService", "job_service"),
    ("PipelineService", "pipeline_service"),
    ("ModelService", "model_service"),
    ("EndpointService", "endpoint_service"),
    ("PredictionService", "prediction_service"),
    ("MetadataService", "metadata_service"),
    ("TensorboardService", "tensorboard_service"),
)
OPERATIONS: Final = "google.longrunning.Operations"
_OPERATIONS: Final = (
    ("GetOperation", "get_operation", operations_pb2.GetOperationRequest),
    ("ListOperations", "list_operations", operations_pb2.ListOperationsRequest),
    ("WaitOperation", "wait_operation", operations_pb2.WaitOperationRequest),
    ("CancelOperation", "cancel_operation", operations_pb2.CancelOperationRequest),
    ("DeleteOperation", "delete_operation", operations_pb2.DeleteOperationRequest),
)


@dataclass(frozen=True, slots=True)
class RpcMethod:
    """A method. ``request``: its message class; ``call``: the method over REST, ``None`` for a streaming method."""

    path: str
    request: Any
    call: Callable[..., Any] | None

    @property
    def name(self) -> str:
        """``JobService.CreateCustomJob``"""
        return ".".join(self.path.split("/")[-2:]).removeprefix(f"{PACKAGE}.")


def methods_of(url: str, *, connections: int) -> Mapping[str, RpcMethod]:
    """All methods by path; their calls go to ``url``, with at most ``connections`` connections per service."""
    methods: dict[str, RpcMethod] = {}
    for service, module in SERVICES:
        transports = import_module(f"google.cloud.aiplatform_v1.services.{module}.transports")
        rest_transport = getattr(transports, f"{service}RestTransport")(host=url, credentials=AnonymousCredentials())
        for scheme in ("http://", "https://"):
            rest_transport._session.mount(scheme, HTTPAdapter(pool_maxsize=connections))
        for call in _declared(getattr(transports, f"{service}GrpcTransport")):
            over_rest = getattr(rest_transport, call.name) if call.is_unary else None
            methods[call.path] = RpcMethod(call.path, call.request, over_rest)
        if service == "JobService":  # all of them have these
            for name, attribute, request in _OPERATIONS:
                path = f"/{OPERATIONS}/{name}"
                methods[path] = RpcMethod(path, request, getattr(rest_transport, attribute))
    return methods


@dataclass(frozen=True, slots=True)
class _Declared:
    path: str
    name: str
    request: Any
    is_unary: bool


class _Recorder(grpc.Channel):  # type: ignore[misc]
    """A channel that sends nothing, but records the methods that are requested from it."""

    def __init__(self) -> None:
        self._requested: list[tuple[str, Any, bool]] = []

    def take(self) -> list[tuple[str, Any, bool]]:
        """(path, request class, whether unary) of the methods requested since the last call."""
        requested, self._requested = self._requested, []
        return requested

    def _note(self, *, is_unary: bool) -> Callable[..., Callable[..., None]]:
        def note(path: str, request_serializer: Any = None, *_: Any, **__: Any) -> Callable[..., None]:
            # For the package's generated messages, the serializer is a method of the request class.
            self._requested.append((path, getattr(request_serializer, "__self__", None), is_unary))
            return lambda *_, **__: None

        return note

    def unary_unary(self, method: str, *arguments: Any, **options: Any) -> Any:
        return self._note(is_unary=True)(method, *arguments, **options)

    def unary_stream(self, method: str, *arguments: Any, **options: Any) -> Any:
        return self._note(is_unary=False)(method, *arguments, **options)

    stream_unary = stream_stream = unary_stream

    def subscribe(self, callback: Any, try_to_connect: Any = False) -> None:
        del callback, try_to_connect

    def unsubscribe(self, callback: Any) -> None:
        del callback

    def close(self) -> None:
        """There is nothing to close."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _declared(kind: Any) -> list[_Declared]:
    """The service's methods that a gRPC transport of the package declares."""
    recorder = _Recorder()
    transport = kind(channel=recorder)
    # The transport's logging interceptor would request methods from the channel only when they are called.
    transport._logged_channel = recorder
    transport._stubs.clear()
    recorder.take()
    declared = []
    for name in dir(kind):
        if isinstance(getattr(kind, name), property) and not name.startswith("_"):
            getattr(transport, name)
            declared += [
                _Declared(path, name, request, is_unary)
                for path, request, is_unary in recorder.take()
                if path.startswith(f"/{PACKAGE}.")
            ]
    return declared
