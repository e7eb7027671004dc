"""Translates a gRPC call to a request of the platform's REST routes, and the response back.

Google's package has each service as a gRPC transport and as a REST transport with the same methods. The bridge receives
what the first sends; the second knows path, query and body of the same call over REST.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final, Self
from urllib.parse import quote

import grpc
import requests
from google.api_core.exceptions import GoogleAPICallError  # pyright: ignore[reportMissingImports] (of the extra)
from google.auth.credentials import AnonymousCredentials  # pyright: ignore[reportMissingImports] (of the extra)
from google.auth.exceptions import GoogleAuthError  # pyright: ignore[reportMissingImports]
from google.longrunning import operations_pb2  # pyright: ignore[reportMissingImports]
from google.protobuf.json_format import Error as JsonError
from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet
from requests.adapters import HTTPAdapter

# Forwarded call metadata: the caller's token, and the request's ID for logs.
_FORWARDED: Final = ("authorization", "x-request-id")
_LONGEST_S: Final = 3600.0  # timeout of a call without a deadline
# A status message is percent-encoded in one header, and clients accept 8 KiB of headers.
_WORDS_BYTES: Final = 6 * 2**10
# HTTP status -> gRPC status, for responses without Google's error format, such as those of a proxy.
_STATUSES: Final = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.UNIMPLEMENTED,
    409: grpc.StatusCode.ABORTED,
    413: grpc.StatusCode.INVALID_ARGUMENT,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    501: grpc.StatusCode.UNIMPLEMENTED,
    502: grpc.StatusCode.UNAVAILABLE,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
}
_log = logging.getLogger(__name__)

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


class RpcError(Exception):
    """Ends the call with a gRPC status."""

    def __init__(self, status: grpc.StatusCode, words: str) -> None:
        super().__init__(words)
        self.status = status
        self.words = words


class CallHandler(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Handles all methods: forwards them to the platform, or reports by name that they are not served."""

    def __init__(self, methods: Mapping[str, RpcMethod], url: str) -> None:
        self._methods = methods
        self._url = url

    def service(self, handler_call_details: Any) -> Any:
        path = handler_call_details.method
        method = self._methods.get(path)
        if method is not None and method.call is not None:
            return grpc.unary_unary_rpc_method_handler(self._handler(method))
        words = _not_served(path, method)

        def refuse(_requests: Any, context: grpc.ServicerContext) -> None:
            context.abort(grpc.StatusCode.UNIMPLEMENTED, words)

        # On the wire, the four kinds of methods differ only in the number of messages.
        return grpc.stream_stream_rpc_method_handler(refuse)

    def _handler(self, method: RpcMethod) -> Callable[[bytes, grpc.ServicerContext], bytes]:
        def handle(raw: bytes, context: grpc.ServicerContext) -> bytes:
            try:
                return self._call(method, raw, context)
            except RpcError as error:
                status, words = error.status, cut(error.words)
            except Exception:  # noqa: BLE001 (the boundary: a bug ends only this call)
                _log.exception("%s failed", method.name)
                status, words = grpc.StatusCode.INTERNAL, "Internal error of the bridge; see its log."
            context.abort(status, words)
            return b""  # never: it raises

        return handle

    def _call(self, method: RpcMethod, raw: bytes, context: grpc.ServicerContext) -> bytes:
        assert method.call is not None  # noqa: S101 (others are refused before)
        request = read(method.request, raw)
        if not context.is_active():  # cancelled while it waited for a worker
            raise RpcError(grpc.StatusCode.CANCELLED, "The client cancelled the call.")
        metadata = dict(context.invocation_metadata())
        headers = [(name, metadata[name]) for name in _FORWARDED if isinstance(metadata.get(name), str)]
        remaining_s = context.time_remaining()
        timeout_s = _LONGEST_S if remaining_s is None else max(0.001, min(remaining_s, _LONGEST_S))
        try:
            return written(method.call(request, timeout=timeout_s, metadata=headers))
        except GoogleAPICallError as error:
            raise _refused(error) from error
        except requests.Timeout as error:
            words = f"The platform did not answer within {timeout_s:.1f} s."
            raise RpcError(grpc.StatusCode.DEADLINE_EXCEEDED, words) from error
        except requests.RequestException as error:
            words = f"The bridge cannot reach the platform at {self._url}: {type(error).__name__}."
            raise RpcError(grpc.StatusCode.UNAVAILABLE, words) from error
        except GoogleAuthError as error:
            raise RpcError(grpc.StatusCode.UNAUTHENTICATED, "The call needs a token.") from error
        except JsonError as error:
            words = f"{method.name}: Google's package cannot parse the platform's response."
            raise RpcError(grpc.StatusCode.INTERNAL, words) from error
        except ValueError as error:  # of path_template.transcode
            words = f"{method.name}: the request has resource names in another format than Vertex AI's."
            raise RpcError(grpc.StatusCode.INVALID_ARGUMENT, words) from error


def read(kind: Any, raw: bytes) -> Any:
    """Parse a request. Raises ``RpcError``: invalid, or with fields unknown to this version of Google's package.

    Unknown fields have no JSON name and would be lost in the translation.
    """
    try:
        request = kind.deserialize(raw) if hasattr(kind, "deserialize") else kind.FromString(raw)
    except DecodeError as error:
        raise RpcError(grpc.StatusCode.INVALID_ARGUMENT, "The request is not of this method's type.") from error
    unknown = next(unknown_fields(kind.pb(request) if hasattr(kind, "pb") else request), None)
    if unknown is not None:
        words = (
            f"Unknown field {unknown}: the bridge's google-cloud-aiplatform does not know it. Update the package, or "
            "omit the field."
        )
        raise RpcError(grpc.StatusCode.INVALID_ARGUMENT, words)
    return request


def unknown_fields(message: Message, path: str = "") -> Iterator[str]:
    """Paths of undeclared fields in ``message``: ``custom_job.job_spec.7``, with the field number."""
    for field in UnknownFieldSet(message):
        yield f"{path}{field.field_number}"
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        at = f"{path}{field.name}"
        if field.message_type.GetOptions().map_entry:
            if field.message_type.fields_by_name["value"].message_type is not None:
                for key in value:
                    yield from unknown_fields(value[key], f"{at}.{key}.")
        elif isinstance(value, Message):
            yield from unknown_fields(value, f"{at}.")
        else:
            for number, item in enumerate(value):
                yield from unknown_fields(item, f"{at}[{number}].")


def written(answer: Any) -> bytes:
    """Serialize a result of the package's REST transport; ``None`` is an empty message."""
    if answer is None:
        return b""
    plain = answer if isinstance(answer, Message) else type(answer).pb(answer)
    return bytes(plain.SerializeToString())


def cut(words: str) -> str:
    """``words``, truncated to fit into a status."""
    if len(quote(words)) <= _WORDS_BYTES:
        return words
    while len(quote(words)) > _WORDS_BYTES:
        words = words[: len(words) * 9 // 10]
    return f"{words}…"


def _refused(error: GoogleAPICallError) -> RpcError:
    """The API's message and code, without the URL that Google's exception adds."""
    try:
        problem = json.loads(error.response.content)["error"]
        return RpcError(grpc.StatusCode[problem["status"]], str(problem["message"]))
    except (AttributeError, KeyError, TypeError, ValueError):
        return RpcError(_STATUSES.get(error.code or 0, grpc.StatusCode.UNKNOWN), error.message)


def _not_served(path: str, method: RpcMethod | None) -> str:
    if method is not None:
        return f"{method.name} is a streaming method, which this platform does not serve."
    service, _, name = path.lstrip("/")[:200].rpartition("/")
    served = ", ".join([*(name for name, _ in SERVICES), OPERATIONS])
    name = f"{service.removeprefix(f'{PACKAGE}.')}.{name}"
    return f"{name} is not served by this platform; served are {served} of {PACKAGE}."


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
