"""The reverse proxy of endpoints: streams requests to ready replicas, and their responses back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from random import Random  # noqa: TID251 (the edge: random choice among equal replicas)
from typing import Final

import httpx
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from api.app.unit_of_work import AppContext
from api.endpoints.access import EndpointAccess
from api.endpoints.balance import Admission, Balancer, open_limit
from api.endpoints.upstream import ProxiedResponse, StreamedBody, send, too_large
from api.endpoints.views import not_ready_reason
from api.http.routing import content_length
from core.db.repositories.serving import ServingTarget, targets_of
from core.domain.errors import (
    InvalidRequest,
    ModelTooSlow,
    ModelUnreachable,
    RequestTooSlow,
    TrainmasterError,
    Unavailable,
)

# How long a process caches an endpoint's replicas. A draining replica gets its last new request at most this much
# later, which is less than the shortest `drain_s`.
TARGETS_TTL: Final = timedelta(seconds=0.5)
# While the database is away, requests are sent to the last known replicas.
_STALE_TTL: Final = timedelta(seconds=60)
_ENDPOINT_LIMIT: Final = 1_000  # endpoints
_MAX_TRIES: Final = 3
_CONNECT_TIMEOUT_S: Final = 2.0
# Servers close idle connections after 2 to 5 s; the proxy must not reuse one at that moment.
_KEEPALIVE_S: Final = 1.0
_RETRY_AFTER_S: Final = 2.0
_REQUEST_HEADERS: Final = (
    "content-type",
    "content-encoding",
    "content-length",
    "accept",
    "x-request-id",
    "traceparent",
    "tracestate",
)
_RESPONSE_HEADERS: Final = ("content-type", "content-encoding", "content-length", "retry-after")
DEPLOYMENT_HEADER: Final = "Trainmaster-Deployment"
_REVISION_HEADER: Final = "Trainmaster-Revision"
REPLICA_HEADER: Final = "Trainmaster-Replica"
ANSWERED_BY: Final = "Trainmaster-Answered-By"
_CLIENT_CLOSED: Final = 499  # nginx's status for a closed client connection; it is never sent


@dataclass(frozen=True, slots=True)
class _EndpointTargets:
    endpoint_id: str
    name: str
    targets: tuple[ServingTarget, ...]
    read_at: datetime


class Proxy:
    """Proxies prediction requests. One per API process."""

    def __init__(self, context: AppContext) -> None:
        self._context = context
        self._admission = Admission(open_limit(context.settings.predict_open_limit))
        self._balancer = Balancer(time.monotonic, Random())  # noqa: S311 (choice among equal replicas)
        self._known: dict[tuple[str, str], _EndpointTargets] = {}
        self._reading: dict[tuple[str, str], asyncio.Lock] = {}
        self._client: httpx.AsyncClient | None = None

    @asynccontextmanager
    async def lifetime(self) -> AsyncIterator[None]:
        try:
            yield
        finally:
            client, self._client = self._client, None
            if client is not None:
                await client.aclose()

    async def forward(self, request: Request, access: EndpointAccess, deployment: str | None) -> Response:
        """Forward a request to a replica; its response, the model's own errors included, is passed back and marked.

        Raises:
            NotFound, Forbidden: as ``EndpointAccess.load``.
            Unavailable: no replica is ready, with the reason; or too many requests are open.
            ModelTooSlow, ModelUnreachable, RequestTooSlow, PayloadTooLarge, InvalidRequest
        """
        limit = self._context.settings.predict_limit_bytes
        if (content_length(request.headers.get("content-length", "")) or 0) > limit:
            raise too_large(limit)
        known = await self._find(access)
        recording = self._context.request_metrics.predictions.begin(access.project, known.name)
        try:
            async with AsyncExitStack() as stack:
                stack.enter_context(self._admission.enter(known.endpoint_id, known.name))
                stack.enter_context(recording.open())
                answer = await self._try(request, StreamedBody(request, limit), access, known, deployment, stack)
                if answer is None:
                    return Response(status_code=_CLIENT_CLOSED)
                target, upstream = answer
                recording.answered(target.deployment, upstream.status_code)
                headers = {name: upstream.headers[name] for name in _RESPONSE_HEADERS if name in upstream.headers}
                return ProxiedResponse(
                    upstream,
                    stack.pop_all(),
                    {**headers, **_response_headers_of(target)},
                    recording,
                    unread_s=self._context.settings.predict_unread_s,
                )
        except TrainmasterError as error:
            recording.refused(error.status)
            raise

    async def _try(
        self,
        request: Request,
        body: StreamedBody,
        access: EndpointAccess,
        known: _EndpointTargets,
        deployment: str | None,
        stack: AsyncExitStack,
    ) -> tuple[ServingTarget, httpx.Response] | None:
        """The replica that answered, and its response with the body unread; ``stack`` closes both.

        ``None``: the client has disconnected.

        Raises:
            Unavailable: no replica accepted the request.
            ModelTooSlow, ModelUnreachable, RequestTooSlow, PayloadTooLarge, InvalidRequest
        """
        tried: set[str] = set()
        is_refreshed = False
        while len(tried) < _MAX_TRIES:
            target = self._balancer.choose(known.targets, deployment=deployment, without=tried)
            if target is None:
                if not tried or is_refreshed:
                    break
                # All replicas that were ready are gone: others have replaced them, as in an update.
                known, is_refreshed = await self._find(access, newer_than=known.read_at), True
                continue
            tried.add(target.replica_id)
            async with AsyncExitStack() as trial:
                trial.enter_context(self._balancer.open_request(target))
                try:
                    upstream = await self._ask(request, body, target)
                except ClientDisconnect:
                    return None
                except (httpx.ConnectError, httpx.ConnectTimeout):
                    # Nothing of the request was sent: another replica can take it.
                    self._balancer.avoid(target)
                    continue
                trial.push_async_callback(upstream.aclose)
                await stack.enter_async_context(trial.pop_all())
                return target, upstream
        if tried:
            # The database still has these replicas as ready, so it has no better reason.
            replicas = "a replica that was ready" if len(tried) == 1 else f"{len(tried)} replicas that were ready"
            raise Unavailable(
                f"Endpoint {known.name!r}: {replicas} refused the connection, and there is no other replica; try again "
                f"in a moment, or see `trainmaster endpoint show {known.name}`.",
                retry_after_s=_RETRY_AFTER_S,
            )
        words = await run_in_threadpool(self._not_ready_reason, known, deployment)
        raise Unavailable(
            f"Endpoint {known.name!r} has no ready replica: {words.rstrip('.')}.", retry_after_s=_RETRY_AFTER_S
        )

    async def _ask(self, request: Request, body: StreamedBody, target: ServingTarget) -> httpx.Response:
        """The replica's response.

        Raises:
            httpx.ConnectError, httpx.ConnectTimeout: nothing of the request was sent.
            ClientDisconnect: the client has disconnected.
            ModelTooSlow, ModelUnreachable, RequestTooSlow, PayloadTooLarge, InvalidRequest
        """
        headers = {name: request.headers[name] for name in _REQUEST_HEADERS if name in request.headers}
        headers["X-Request-ID"] = request.scope["state"]["request_id"]
        try:
            upstream_request = self._http().build_request(
                "POST",
                f"http://{target.address}{target.predict_route}",
                headers=headers,
                content=body.stream(),
                # No pool timeout: the admission control limits the open requests before.
                timeout=httpx.Timeout(target.timeout_s, connect=_CONNECT_TIMEOUT_S),
            )
            return await send(self._http(), upstream_request, body, within_s=target.timeout_s + _CONNECT_TIMEOUT_S)
        except (httpx.ConnectError, httpx.ConnectTimeout):
            raise
        except (TimeoutError, httpx.TimeoutException) as error:
            if not body.is_whole and not isinstance(error, httpx.WriteTimeout):
                raise RequestTooSlow(
                    f"The request's body was not complete within {target.timeout_s:g} s; send less at once, or deploy "
                    f"{target.deployment!r} with a larger timeout_s."
                ) from error
            raise ModelTooSlow(
                f"The model {target.deployment!r} did not answer within {target.timeout_s:g} s; send fewer instances "
                "at once, or deploy it with a larger timeout_s."
            ) from error
        except httpx.InvalidURL as error:
            raise InvalidRequest(f"The predict route of {target.deployment!r} is not a path.") from error
        except httpx.HTTPError as error:
            raise ModelUnreachable(
                f"A replica of {target.deployment!r} broke the connection during the request; whether it processed the "
                "request is unknown. If repeating it is harmless, try again."
            ) from error

    async def _find(self, access: EndpointAccess, *, newer_than: datetime | None = None) -> _EndpointTargets:
        """The endpoint's replicas, at most ``TARGETS_TTL`` old and read after ``newer_than``.

        The caller's access is checked each time.
        """
        member = next((item for item in access.caller.projects.values() if item.project == access.project), None)
        now = self._context.clock()
        # The role viewer may predict, so every member of the project may use the cache.
        key = (member.project_id if member is not None else "", access.ref)
        known = self._known.get(key) if member is not None else None
        if known is not None and _is_fresh(known, now, newer_than):
            return known
        lock = self._reading.setdefault(key, asyncio.Lock())
        async with lock:  # the first request reads for all that wait
            known = self._known.get(key) if member is not None else None
            now = self._context.clock()
            if known is not None and _is_fresh(known, now, newer_than):
                return known
            try:
                fresh = await self._context.run_bounded(self._read, access, now)
            except Unavailable:
                if known is not None and now - known.read_at < _STALE_TTL:
                    return known
                raise
            finally:
                self._reading.pop(key, None)
            if len(self._known) >= _ENDPOINT_LIMIT:
                self._known.clear()
            if member is not None:
                self._known[key] = fresh
            return fresh

    def _read(self, access: EndpointAccess, now: datetime) -> _EndpointTargets:
        with self._context.read() as work:
            row, _ = access.load(work.session)
            return _EndpointTargets(row.id, row.name, tuple(targets_of(work.session, row.id)), now)

    def _not_ready_reason(self, known: _EndpointTargets, deployment: str | None) -> str:
        with self._context.read() as work:
            return not_ready_reason(work.session, known.endpoint_id, deployment)

    def _http(self) -> httpx.AsyncClient:
        if self._client is None:
            limits = httpx.Limits(max_connections=None, max_keepalive_connections=100, keepalive_expiry=_KEEPALIVE_S)
            self._client = httpx.AsyncClient(limits=limits, trust_env=False, follow_redirects=False)
        return self._client


def _is_fresh(known: _EndpointTargets, now: datetime, newer_than: datetime | None) -> bool:
    return now - known.read_at < TARGETS_TTL and (newer_than is None or known.read_at > newer_than)


def _response_headers_of(target: ServingTarget) -> dict[str, str]:
    """Headers that name the replica, and that prevent browsers from treating the response as a page of the platform."""
    return {
        ANSWERED_BY: "model",
        DEPLOYMENT_HEADER: target.deployment,
        _REVISION_HEADER: str(target.revision),
        REPLICA_HEADER: target.replica_id,
        "Content-Security-Policy": "sandbox; default-src 'none'",
        "X-Content-Type-Options": "nosniff",
        "Cache-Control": "no-store",
    }
