"""ASGI middleware of every request. Plain ASGI, since the framework's ``BaseHTTPMiddleware`` costs a task per
request.
"""

from __future__ import annotations

import gzip
import hashlib
import re
import secrets
import time
from http import HTTPStatus
from typing import Any, Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.app.graceful_shutdown import GracefulShutdown
from api.http.connections import LingeringClose
from api.http.problems import response_to, unexpected_response
from api.http.routing import content_length
from api.prometheus.recorder import RequestMetrics
from api.protocols.gcs import xml_api
from core import telemetry
from core.domain.errors import ClientTooOld, PayloadTooLarge

CLIENT_HEADER: Final = "trainmaster-client"
OLDEST_CLIENT: Final = (0, 1)  # major, minor
BODY_LIMIT_BYTES: Final = 4 * 2**20  # the largest real body: 1,000 report items; a spec is at most 1 MiB
# Clients of other systems: errors must have the shape of their protocol, so their routes report oversized bodies.
_PROTOCOL_PREFIXES: Final = (
    "/v1/",
    "/v1beta1/",
    "/mlflow/",
    "/storage/",
    "/batch/",
    "/kubernetes/",
    "/ray/",
)
_JOB_LOCATION: Final = "/api/v1/jobs/"
# Probes and scrapes: their traces would only repeat.
_UNTRACED: Final = frozenset({"get_liveness", "get_readiness", "get_health", "get_metrics"})
_REQUEST_ID: Final = re.compile(r"^[A-Za-z0-9._-]{1,64}$")
_VERSION: Final = re.compile(r"^(\d{1,6})\.(\d{1,6})")
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})

_GZIP_MIN_BYTES: Final = 1_000  # smaller bodies save less than the header costs
_GZIP_LEVEL: Final = 4  # 90 % of level 9's saving on our JSON at a third of its time
_COMPRESSIBLE: Final = ("application/json", "application/problem+json", "text/html", "text/plain", "text/css")


class Envelope:
    """Outermost: the request id, the request's metrics, and a problem for each uncaught exception.

    A draining server closes connections after each answer, so that clients reconnect to another server.
    """

    def __init__(self, app: ASGIApp, *, request_metrics: RequestMetrics, shutdown: GracefulShutdown) -> None:
        self.app = app
        self.request_metrics = request_metrics
        self.shutdown = shutdown

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        request_id = given if _REQUEST_ID.match(given) else secrets.token_hex(8)
        scope.setdefault("state", {})["request_id"] = request_id
        started_s = time.perf_counter()
        status, answered_after_s, job_id = 0, 0.0, ""

        async def tagged(message: Message) -> None:
            nonlocal status, answered_after_s, job_id
            if message["type"] == "http.response.start":
                status, answered_after_s = message["status"], time.perf_counter() - started_s
                headers = MutableHeaders(scope=message)
                headers["X-Request-ID"] = request_id
                job_id = headers.get("location", "").partition(_JOB_LOCATION)[2] if status == HTTPStatus.CREATED else ""
                if self.shutdown.is_draining:
                    headers["Connection"] = "close"
            await send(message)

        self.request_metrics.requests_in_flight.inc()
        try:
            await self.app(scope, receive, tagged)
        except Exception as error:
            response = unexpected_response(error, request_id)
            if status:
                raise  # the response has begun: the server must cut the connection, or it would look complete
            await response(scope, receive, tagged)
        finally:
            self.request_metrics.requests_in_flight.dec()
            method = scope["method"] if scope["method"] in _METHODS else "other"
            operation = _operation_of(scope)
            self.request_metrics.record(operation=operation, method=method, status=status, seconds=answered_after_s)
            if telemetry.is_requested() and operation not in _UNTRACED:
                ended_ns = time.time_ns()
                began_ns = ended_ns - int((time.perf_counter() - started_s) * 1e9)
                telemetry.record_request(
                    operation,
                    method,
                    status,
                    began_ns,
                    ended_ns,
                    job_id=job_id,
                    sent_traceparent=Headers(scope=scope).get("traceparent", ""),
                )


def _operation_of(scope: Scope) -> str:
    route: Any = scope.get("route")
    return getattr(route, "operation_id", None) or getattr(route, "name", None) or "none"


class RequestLimits:
    """Refuses clients that are too old, and bodies that are too large."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        lingering = LingeringClose(scope, receive, send)
        receive, send = lingering.receive, lingering.send
        request_id = scope["state"]["request_id"]
        version = _VERSION.match(headers.get(CLIENT_HEADER, ""))
        if version is not None and (int(version[1]), int(version[2])) < OLDEST_CLIENT:
            wanted = ".".join(map(str, OLDEST_CLIENT))
            too_old = ClientTooOld(
                f"This client is version {version[0]}; the platform needs {wanted} or newer. "
                "Run `pip install -U trainmaster`."
            )
            await response_to(too_old, request_id)(scope, receive, send)
            return
        if is_upload(scope):
            await self.app(scope, receive, send)
            return
        too_large = PayloadTooLarge(
            f"The body is larger than {BODY_LIMIT_BYTES // 2**20} MiB; upload files as an archive."
        )
        announced = content_length(headers.get("content-length", "")) or 0
        is_protocol = scope["path"].startswith(_PROTOCOL_PREFIXES) or xml_api.is_xml_request(scope)
        if announced > BODY_LIMIT_BYTES and not is_protocol:
            await response_to(too_large, request_id)(scope, receive, send)
            return
        received = 0

        async def bounded() -> Message:
            nonlocal received
            if announced > BODY_LIMIT_BYTES:
                raise too_large  # to the route that reads the body, which knows its protocol's error shape
            message = await receive()
            received += len(message.get("body", b""))
            if received > BODY_LIMIT_BYTES:
                raise too_large
            return message

        await self.app(scope, bounded, send)


def is_upload(scope: Scope) -> bool:
    """Whether the body is streamed to disk, under a limit of its own.

    These are chunks of archives, artifacts (which a job could also write into its output itself), objects of a bucket
    (which is a volume that jobs write to), and packages of Ray's clients, which become archives.
    """
    path, method = str(scope["path"]), str(scope["method"])
    if path.startswith("/upload/storage/v1/"):
        return method in {"POST", "PUT"}
    if method == "POST" and is_prediction(path):
        return True
    if path.startswith("/ray/") and "/api/packages/" in path:
        return method == "PUT"
    return method == "PUT" and path.startswith(("/api/v1/archives/", "/mlflow/api/2.0/mlflow-artifacts/"))


def is_prediction(path: str) -> bool:
    """A request to an endpoint is proxied as a stream, under a limit of its own."""
    return path.startswith("/api/v1/projects/") and path.endswith((":predict", ":rawPredict"))


class ResponseEncoding:
    """Complete JSON responses get an ETag (and 304 for a matching If-None-Match) and are compressed with gzip.

    HEAD gets the headers of GET. Streams, ranges and files pass unchanged.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request_headers = Headers(scope=scope)
        start: Message | None = None

        async def deliver(message: Message) -> None:
            nonlocal start
            if message["type"] == "http.response.start":
                headers = Headers(raw=message["headers"])
                kind = headers.get("content-type", "").partition(";")[0]
                if kind in _COMPRESSIBLE and "content-encoding" not in headers and message["status"] not in (206, 304):
                    start = message
                    return
            elif start is not None:
                delayed, start = start, None
                if message["type"] == "http.response.body" and not message.get("more_body", False):
                    body = _finish(scope["method"], request_headers, delayed, message.get("body", b""))
                    message = {"type": "http.response.body", "body": body}
                await send(delayed)
            if scope["method"] == "HEAD" and message["type"] == "http.response.body":
                message = {**message, "body": b""}
            await send(message)

        await self.app(scope, receive, deliver)


def _finish(method: str, request_headers: Headers, start: Message, body: bytes) -> bytes:
    """Complete the response's ``start`` message for ``body``; return the body to send."""
    headers = MutableHeaders(raw=start["headers"])
    start["headers"] = headers.raw
    if (
        method in ("GET", "HEAD")
        and start["status"] == 200
        and headers.get("content-type", "").startswith("application/json")
    ):
        # Weak: the same response may be sent compressed or not.
        tag = headers.get("etag") or f'W/"{hashlib.blake2b(body, digest_size=12).hexdigest()}"'
        headers["ETag"] = tag
        headers.setdefault("Cache-Control", "private, no-cache")
        if _matches(request_headers.get("if-none-match", ""), tag):
            start["status"] = 304
            for name in ("content-length", "content-type"):
                del headers[name]
            return b""
    headers.add_vary_header("Accept-Encoding")
    if len(body) >= _GZIP_MIN_BYTES and "gzip" in request_headers.get("accept-encoding", ""):
        body = gzip.compress(body, _GZIP_LEVEL, mtime=0)
        headers["Content-Encoding"] = "gzip"
        headers["Content-Length"] = str(len(body))
    return body


def _matches(wanted: str, tag: str) -> bool:
    """RFC 9110, 13.1.2: a list of tags, compared weakly."""
    bare = tag.removeprefix("W/")
    return any(item.strip() == "*" or item.strip().removeprefix("W/") == bare for item in wanted.split(",") if item)
