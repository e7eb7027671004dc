"""Handing requests on to ready replicas, and their answers back as they come."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from random import Random  # noqa: TID251 (the edge: which of equals is asked)
from typing import Final

import httpx
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from api.app.unit_of_work import AppContext
from api.endpoints.access import EndpointAccess
from api.endpoints.admission import Admission, room_of
from api.endpoints.balance import Balancer
from api.endpoints.upstream import Body, Handed, send, too_large
from api.endpoints.views import not_ready_words
from api.http.content_length import content_length
from core.db.repositories.serving import ServingTarget, targets_of
from core.domain.errors import (
    InvalidRequest,
    ModelTooSlow,
    ModelUnreachable,
    RequestTooSlow,
    TrainmasterError,
    Unavailable,
)

# For how long a process goes by what it read of an endpoint's replicas. A replica that drains gets its last new request
# this much later at most, which is less than the shortest `drain_s`.
TARGETS_TTL: Final = timedelta(seconds=0.5)
# While the database is away, requests go on to the replicas that were known last.
_STALE_TTL: Final = timedelta(seconds=60)
_KEPT: Final = 1_000  # endpoints
_TRIES: Final = 3
_CONNECT_S: Final = 2.0
# Servers end idle connections after 2 to 5 s; ours must not reuse one in that very moment.
_IDLE_S: Final = 1.0
_RETRY_AFTER_S: Final = 2.0
_ASKED: Final = (
    "content-type",
    "content-encoding",
    "content-length",
    "accept",
    "x-request-id",
    "traceparent",
    "tracestate",
)
_TOLD: Final = ("content-type", "content-encoding", "content-length", "retry-after")
DEPLOYMENT_HEADER: Final = "Trainmaster-Deployment"
_REVISION_HEADER: Final = "Trainmaster-Revision"
REPLICA_HEADER: Final = "Trainmaster-Replica"
ANSWERED_BY: Final = "Trainmaster-Answered-By"
_CLIENT_GONE: Final = 499  # nginx's word for it; nobody reads it


@dataclass(frozen=True, slots=True)
class _Known:
    endpoint_id: str
    name: str
    targets: tuple[ServingTarget, ...]
    read_at: datetime


class Proxy:
    """One per API process."""

    def __init__(self, context: AppContext) -> None:
        self._context = context
        self._admission = Admission(room_of(context.settings.predict_open_limit))
        self._balancer = Balancer(time.monotonic, Random())  # noqa: S311 (which of equals is asked)
        self._known: dict[tuple[str, str], _Known] = {}
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

    async def hand_on(self, request: Request, access: EndpointAccess, deployment: str | None) -> Response:
        """The answer of a replica. What the model itself refuses comes back as it is, and is marked.

        Raises:
            NotFound, Forbidden: as ``EndpointAccess.load``.
            Unavailable: no replica is ready, and the sentence says what they wait for; or too many requests are open.
            ModelTooSlow, ModelUnreachable, RequestTooSlow, PayloadTooLarge, InvalidRequest
        """
        limit = self._context.settings.predict_limit_bytes
        if (content_length(request.headers.get("content-length", "")) or 0) > limit:
            raise too_large(limit)
        known = await self._find(access)
        told = self._context.request_metrics.predictions.begin(access.project, known.name)
        try:
            async with AsyncExitStack() as stack:
                stack.enter_context(self._admission.enter(known.endpoint_id, known.name))
                stack.enter_context(told.open())
                answer = await self._try(request, Body(request, limit), access, known, deployment, stack)
                if answer is None:
                    return Response(status_code=_CLIENT_GONE)
                target, upstream = answer
                told.answered(target.deployment, upstream.status_code)
                headers = {name: upstream.headers[name] for name in _TOLD if name in upstream.headers}
                return Handed(
                    upstream,
                    stack.pop_all(),
                    {**headers, **_about(target)},
                    told,
                    unread_s=self._context.settings.predict_unread_s,
                )
        except TrainmasterError as error:
            told.refused(error.status)
            raise

    async def _try(
        self,
        request: Request,
        body: Body,
        access: EndpointAccess,
        known: _Known,
        deployment: str | None,
        stack: AsyncExitStack,
    ) -> tuple[ServingTarget, httpx.Response] | None:
        """Who answered, and with what, its body unread; ``stack`` lets both go. ``None``: who asked has gone away.

        Raises:
            Unavailable: no replica took it.
            ModelTooSlow, ModelUnreachable, RequestTooSlow, PayloadTooLarge, InvalidRequest
        """
        tried: set[str] = set()
        is_anew = False
        while len(tried) < _TRIES:
            target = self._balancer.choose(known.targets, deployment=deployment, without=tried)
            if target is None:
                if not tried or is_anew:
                    break
                # All that were ready a moment ago are gone: others have taken their place, as in an update.
                known, is_anew = await self._find(access, than=known.read_at), True
                continue
            tried.add(target.replica_id)
            async with AsyncExitStack() as trial:
                trial.enter_context(self._balancer.using(target))
                try:
                    upstream = await self._ask(request, body, target)
                except ClientDisconnect:
                    return None
                except (httpx.ConnectError, httpx.ConnectTimeout):
                    # Nothing of the request has left: another replica may have it.
                    self._balancer.avoid(target)
                    continue
                trial.push_async_callback(upstream.aclose)
                await stack.enter_async_context(trial.pop_all())
                return target, upstream
        if tried:
            # What is written of them is older than what was just seen: they stand there as ready.
            replicas = "a replica that was ready" if len(tried) == 1 else f"{len(tried)} replicas that were ready"
            raise Unavailable(
                f"Endpoint {known.name!r}: {replicas} refused the connection, and there is no other to ask now; try again in a "
                f"moment, or see `trainmaster endpoint show {known.name}`.",
                retry_after_s=_RETRY_AFTER_S,
            )
        words = await run_in_threadpool(self._words, known, deployment)
        raise Unavailable(
            f"Endpoint {known.name!r} has no ready replica: {words.rstrip('.')}.", retry_after_s=_RETRY_AFTER_S
        )

    async def _ask(self, request: Request, body: Body, target: ServingTarget) -> httpx.Response:
        """Raises ``httpx.ConnectError``, ``httpx.ConnectTimeout``: it was not asked. ``ClientDisconnect``, and as ``_try``."""
        headers = {name: request.headers[name] for name in _ASKED if name in request.headers}
        headers["X-Request-ID"] = request.scope["state"]["request_id"]
        try:
            asked = self._http().build_request(
                "POST",
                f"http://{target.address}{target.predict_route}",
                headers=headers,
                content=body.stream(),
                # A connection of the pool is never waited for: what may be open at once is counted before.
                timeout=httpx.Timeout(target.timeout_s, connect=_CONNECT_S),
            )
            return await send(self._http(), asked, body, within_s=target.timeout_s + _CONNECT_S)
        except (httpx.ConnectError, httpx.ConnectTimeout):
            raise
        except (TimeoutError, httpx.TimeoutException) as error:
            if not body.is_whole and not isinstance(error, httpx.WriteTimeout):
                raise RequestTooSlow(
                    f"The request's body did not come whole within {target.timeout_s:g} s; send less at once, or deploy "
                    f"{target.deployment!r} with a larger timeout_s."
                ) from error
            raise ModelTooSlow(
                f"The model {target.deployment!r} did not answer within {target.timeout_s:g} s; ask for less at once, or "
                "deploy it with a larger timeout_s."
            ) from error
        except httpx.InvalidURL as error:
            raise InvalidRequest(f"The predict route of {target.deployment!r} is no path.") from error
        except httpx.HTTPError as error:
            raise ModelUnreachable(
                f"A replica of {target.deployment!r} broke off while it was asked; whether it did what it was asked is "
                "not known. If asking twice is harmless, try again."
            ) from error

    async def _find(self, access: EndpointAccess, *, than: datetime | None = None) -> _Known:
        """The endpoint's replicas, a moment old at most, or newer ``than`` what was read then. The caller's right to it is
        proved each time.
        """
        member = next((one for one in access.caller.projects.values() if one.project == access.project), None)
        now = self._context.clock()
        # Viewers may ask, so to know of the project is right enough.
        key = (member.project_id if member is not None else "", access.ref)
        known = self._known.get(key) if member is not None else None
        if known is not None and _is_new(known, now, than):
            return known
        lock = self._reading.setdefault(key, asyncio.Lock())
        async with lock:  # one reads for all that wait
            known = self._known.get(key) if member is not None else None
            now = self._context.clock()
            if known is not None and _is_new(known, now, than):
                return known
            try:
                fresh = await self._context.run_bounded(self._read, access, now)
            except Unavailable:
                if known is not None and now - known.read_at < _STALE_TTL:
                    return known
                raise
            finally:
                self._reading.pop(key, None)
            if len(self._known) >= _KEPT:
                self._known.clear()
            if member is not None:
                self._known[key] = fresh
            return fresh

    def _read(self, access: EndpointAccess, now: datetime) -> _Known:
        with self._context.read() as work:
            row, _ = access.load(work.session)
            return _Known(row.id, row.name, tuple(targets_of(work.session, row.id)), now)

    def _words(self, known: _Known, deployment: str | None) -> str:
        with self._context.read() as work:
            return not_ready_words(work.session, known.endpoint_id, deployment)

    def _http(self) -> httpx.AsyncClient:
        if self._client is None:
            limits = httpx.Limits(max_connections=None, max_keepalive_connections=100, keepalive_expiry=_IDLE_S)
            self._client = httpx.AsyncClient(limits=limits, trust_env=False, follow_redirects=False)
        return self._client


def _is_new(known: _Known, now: datetime, than: datetime | None) -> bool:
    return now - known.read_at < TARGETS_TTL and (than is None or known.read_at > than)


def _about(target: ServingTarget) -> dict[str, str]:
    """Who answered; and what keeps an answer from being a page of the platform's, whatever is in it."""
    return {
        ANSWERED_BY: "model",
        DEPLOYMENT_HEADER: target.deployment,
        _REVISION_HEADER: str(target.revision),
        REPLICA_HEADER: target.replica_id,
        "Content-Security-Policy": "sandbox; default-src 'none'",
        "X-Content-Type-Options": "nosniff",
        "Cache-Control": "no-store",
    }
