"""One call: from a message of gRPC to the platform's REST routes and back."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final
from urllib.parse import quote

import grpc
import requests
from google.api_core.exceptions import GoogleAPICallError  # pyright: ignore[reportMissingImports] (of the extra)
from google.auth.exceptions import GoogleAuthError  # pyright: ignore[reportMissingImports]
from google.protobuf.json_format import Error as JsonError
from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from trainmaster.vertex_bridge.methods import OPERATIONS, PACKAGE, SERVICES, Method

# Handed on from a call's metadata: who asks, and how the request is named in logs.
_FORWARDED: Final = ("authorization", "x-request-id")
_LONGEST_S: Final = 3600.0  # of a call whose client sets no deadline
# A status travels percent-encoded in one header, and clients take 8 KiB of headers.
_WORDS_BYTES: Final = 6 * 2**10
# What an answer without Google's error stands for, such as one of a proxy before the API.
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


class Refused(Exception):
    """The call ends with a status of gRPC."""

    def __init__(self, status: grpc.StatusCode, words: str) -> None:
        super().__init__(words)
        self.status = status
        self.words = words


class Calls(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Answers every method there is: by the platform, or with what is not served, by its name."""

    def __init__(self, methods: Mapping[str, Method], url: str) -> None:
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

        # On the wire the four kinds of methods differ in nothing but how many messages come.
        return grpc.stream_stream_rpc_method_handler(refuse)

    def _handler(self, method: Method) -> Callable[[bytes, grpc.ServicerContext], bytes]:
        def handle(raw: bytes, context: grpc.ServicerContext) -> bytes:
            try:
                return self._call(method, raw, context)
            except Refused as error:
                status, words = error.status, cut(error.words)
            except Exception:  # noqa: BLE001 (the edge: a bug of ours ends one call)
                _log.exception("%s failed", method.name)
                status, words = grpc.StatusCode.INTERNAL, "The bridge failed; its log has more."
            context.abort(status, words)
            return b""  # never: it raises

        return handle

    def _call(self, method: Method, raw: bytes, context: grpc.ServicerContext) -> bytes:
        assert method.call is not None  # noqa: S101 (others are refused before)
        request = read(method.request, raw)
        if not context.is_active():  # cancelled while it waited for its turn: nothing must happen any more
            raise Refused(grpc.StatusCode.CANCELLED, "The client cancelled the call.")
        given = dict(context.invocation_metadata())
        headers = [(name, given[name]) for name in _FORWARDED if isinstance(given.get(name), str)]
        remaining_s = context.time_remaining()
        timeout_s = _LONGEST_S if remaining_s is None else max(0.001, min(remaining_s, _LONGEST_S))
        try:
            return written(method.call(request, timeout=timeout_s, metadata=headers))
        except GoogleAPICallError as error:
            raise _refused(error) from error
        except requests.Timeout as error:
            words = f"The platform did not answer within {timeout_s:.1f} s."
            raise Refused(grpc.StatusCode.DEADLINE_EXCEEDED, words) from error
        except requests.RequestException as error:
            words = f"The bridge cannot reach the platform at {self._url}: {type(error).__name__}."
            raise Refused(grpc.StatusCode.UNAVAILABLE, words) from error
        except GoogleAuthError as error:
            raise Refused(grpc.StatusCode.UNAUTHENTICATED, "The platform wants a token with this call.") from error
        except JsonError as error:
            words = f"{method.name}: the platform answered what Google's package cannot read."
            raise Refused(grpc.StatusCode.INTERNAL, words) from error
        except ValueError as error:  # of path_template.transcode
            words = f"{method.name}: the resource names in the request are not as Vertex AI's are."
            raise Refused(grpc.StatusCode.INVALID_ARGUMENT, words) from error


def read(kind: Any, raw: bytes) -> Any:
    """A request. Raises ``Refused``: it is none, or has fields that this version of Google's package does not know.

    Those would be lost on the way: JSON has no place for them.
    """
    try:
        request = kind.deserialize(raw) if hasattr(kind, "deserialize") else kind.FromString(raw)
    except DecodeError as error:
        raise Refused(grpc.StatusCode.INVALID_ARGUMENT, "The request is not of this method's type.") from error
    unknown = next(unknown_fields(kind.pb(request) if hasattr(kind, "pb") else request), None)
    if unknown is not None:
        words = (
            f"Unknown field {unknown}: the bridge's google-cloud-aiplatform does not know it. Update it there, or leave "
            "the field out."
        )
        raise Refused(grpc.StatusCode.INVALID_ARGUMENT, words)
    return request


def unknown_fields(message: Message, path: str = "") -> Iterator[str]:
    """Where ``message`` holds what its type does not declare: ``custom_job.job_spec.7``, with the number on the wire."""
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
    """An answer of the package's REST transport on the wire; it gives ``None`` for an empty one."""
    if answer is None:
        return b""
    plain = answer if isinstance(answer, Message) else type(answer).pb(answer)
    return bytes(plain.SerializeToString())


def cut(words: str) -> str:
    """``words``, as far as they fit into a status."""
    if len(quote(words)) <= _WORDS_BYTES:
        return words
    while len(quote(words)) > _WORDS_BYTES:
        words = words[: len(words) * 9 // 10]
    return f"{words}…"


def _refused(error: GoogleAPICallError) -> Refused:
    """What the API says, with its own code; all that Google's exception adds is the address."""
    try:
        told = json.loads(error.response.content)["error"]
        return Refused(grpc.StatusCode[told["status"]], str(told["message"]))
    except (AttributeError, KeyError, TypeError, ValueError):
        return Refused(_STATUSES.get(error.code or 0, grpc.StatusCode.UNKNOWN), error.message)


def _not_served(path: str, method: Method | None) -> str:
    if method is not None:
        return f"{method.name} streams, and is not served by this platform."
    service, _, name = path.lstrip("/")[:200].rpartition("/")
    served = ", ".join([*(name for name, _ in SERVICES), OPERATIONS])
    return f"{service.removeprefix(f'{PACKAGE}.')}.{name} is not served by this platform; served are {served} of {PACKAGE}."
