"""ASGI middleware that applies the limits of fair use to requests and their bodies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Final

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.app.fair_use import FairUse, address_of, caller_key
from api.http.problems import response_to
from core.domain.errors import RequestTooSlow, TooManyRequests
from core.tokens import ATTEMPT_PREFIX

# A supervisor or kubelet that is refused, as its address is also another's, would restart this process.
_PROBES: Final = frozenset(f"/api/v1/{name}" for name in ("live", "ready", "health"))


class FairUseMiddleware:
    """Applies the limits of requests and bodies."""

    def __init__(
        self, app: ASGIApp, *, fair_use: FairUse, is_upload: Callable[[Scope], bool], is_proxied: Callable[[str], bool]
    ) -> None:
        self.app = app
        self._use = fair_use
        self._is_upload = is_upload
        self._is_proxied = is_proxied

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in _PROBES:
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        key = caller_key(scope, headers)
        try:
            if ATTEMPT_PREFIX not in headers.get("authorization", ""):  # of all replicas of a gang, however many
                self._use.demand_request(key)
            if _wants_stream(scope):
                self._use.demand_stream(key)
            if self._is_proxied(scope["path"]):
                # The proxy has its own limits, and its handlers wait for models, not for threads.
                await self.app(scope, receive, send)
                return
            with ExitStack() as until_read:
                if _has_body(headers) and not self._is_upload(scope):
                    until_read.enter_context(self._unfinished_body(address_of(scope)))
                    receive = _TimelyBody(receive, self._use.body_s, until_read.close).receive
                await self._in_turn(key, scope, receive, send)
        except (TooManyRequests, RequestTooSlow) as refused:
            await response_to(refused, scope["state"]["request_id"])(scope, receive, send)

    def _unfinished_body(self, address: str) -> AbstractContextManager[None]:
        bodies = self._use.bodies
        if bodies.is_reached(address):
            raise TooManyRequests(
                f"{bodies.limit} bodies from this address have begun and not ended; finish them first.",
                retry_after_s=1.0,
            )
        return bodies.acquire(address)

    async def _in_turn(self, key: str, scope: Scope, receive: Receive, send: Send) -> None:
        """The turn ends when the response starts: what follows waits for the client, not for a thread."""
        await self._use.turns.acquire(key)
        has_turn = True

        def end_turn() -> None:
            nonlocal has_turn
            if has_turn:
                has_turn = False
                self._use.turns.release(key)

        async def sending(message: Message) -> None:
            end_turn()
            await send(message)

        try:
            await self.app(scope, receive, sending)
        finally:
            end_turn()


class _TimelyBody:
    """A body that has to arrive in time; ``when_read`` is called at its end."""

    def __init__(self, receive: Receive, within_s: float, when_read: Callable[[], None]) -> None:
        self._receive = receive
        self._when_read = when_read
        self._within_s = within_s
        self._until_s = asyncio.get_running_loop().time() + within_s
        self._is_read = False

    async def receive(self) -> Message:
        if self._is_read:
            return await self._receive()  # the client's disconnection
        try:
            async with asyncio.timeout_at(self._until_s):
                message = await self._receive()
        except TimeoutError:
            raise RequestTooSlow(
                f"The body did not arrive within {self._within_s:.0f} s; send it again, larger files as an archive."
            ) from None
        if not message.get("more_body", False):
            self._is_read = True
            self._when_read()
        return message


def _wants_stream(scope: Scope) -> bool:
    return b"follow=true" in scope["query_string"] or str(scope["path"]).endswith("/stream")


def _has_body(headers: Headers) -> bool:
    return headers.get("content-length", "0") != "0" or "transfer-encoding" in headers
