"""Connections: aborted when the client does not read, forwarded by a proxy, closed after a refusal."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from typing import ClassVar, Final

from anyio import move_on_after
from starlette.datastructures import Headers
from starlette.types import Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_ABORT: Final = "abort_connection"
# All users of this machine share them, its probes, and proxies on it.
_OWN: Final = frozenset({"127.0.0.1", "::1"})
# Limits of the unread body that a refused request may still send.
_DRAIN_S: Final = 15.0
_DRAIN_BYTES: Final = 2**30
# With a proxy on this machine the real client may be elsewhere.
_FORWARDED: Final = frozenset({"forwarded", "via", "x-real-ip", "x-client-ip", "true-client-ip", "cf-connecting-ip"})
_FORWARDED_PREFIXES: Final = ("x-forwarded", "x-envoy-", "x-original-")


class AbortableConnection(HttpToolsProtocol):
    """Uvicorn's connection, with its ``abort`` in the state of each request; too many of one address are aborted.

    A server closes a connection in good order: it sends its buffers first. A client that never reads keeps the socket
    and its full buffers for as long as it likes. ASGI has no message to abort a connection.
    """

    # Of one address. Each costs memory and a turn of the event loop, whatever is refused on it.
    limit: ClassVar[int] = 2000
    _open: ClassVar[Counter[str]] = Counter()
    _address = ""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        self._address = (transport.get_extra_info("peername") or ("",))[0]
        self._open[self._address] += 1
        if self._open[self._address] > self.limit and self._address not in _OWN:
            transport.abort()
        self.app_state = {**self.app_state, _ABORT: transport.abort}

    def connection_lost(self, exc: Exception | None) -> None:
        self._open[self._address] -= 1
        if self._open[self._address] <= 0:
            del self._open[self._address]
        super().connection_lost(exc)


class LingeringClose:
    """Reads the rest of a refused request's body before its error is sent, where the connection closes after it.

    Clients such as ``urllib`` send the whole body before they read. If the server closes the connection with unread
    bytes, TCP resets it, and the client sees that instead of the error.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._scope = scope
        self._is_read = False
        self._receive = receive
        self._send = send

    async def receive(self) -> Message:
        message = await self._receive()
        self._is_read = not message.get("more_body", False)
        return message

    async def send(self, message: Message) -> None:
        is_error = message["type"] == "http.response.start" and message["status"] >= 400
        if is_error and not self._is_read and self._closes():
            await self._drain()
        await self._send(message)

    def _closes(self) -> bool:
        headers = Headers(scope=self._scope)
        if "expect" in headers:  # the client waits for a sign to send the body, which reading would give
            return False
        return self._scope.get("http_version") == "1.0" or "close" in headers.get("connection", "").lower()

    async def _drain(self) -> None:
        size = 0
        with move_on_after(_DRAIN_S):
            while not self._is_read and size < _DRAIN_BYTES:
                size += len((await self.receive()).get("body", b""))


def is_proxied(headers: Iterable[str]) -> bool:
    """Whether a header says that a proxy has forwarded the request. ``headers``: names in lower case."""
    return any(name in _FORWARDED or name.startswith(_FORWARDED_PREFIXES) for name in headers)


def abort_of(scope: Scope) -> Callable[[], None] | None:
    """Aborts the request's connection at once and drops unsent bytes. ``None``: the server cannot do that."""
    found: Callable[[], None] | None = scope.get("state", {}).get(_ABORT)
    return found
