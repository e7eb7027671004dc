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

from api.http.stream_process import HEAD_LIMIT, StreamProcess, is_stream

_ABORT: Final = "abort_connection"
# All users of this machine share them, its probes, and proxies on it.
_OWN: Final = frozenset({"127.0.0.1", "::1"})
# Limits of the unread body that a refused request may still send.
_DRAIN_S: Final = 15.0
_DRAIN_BYTES: Final = 2**30
# With a proxy on this machine the real client may be elsewhere.
_FORWARDED: Final = frozenset({"forwarded", "via", "x-real-ip", "x-client-ip", "true-client-ip", "cf-connecting-ip"})
_FORWARDED_PREFIXES: Final = ("x-forwarded", "x-envoy-", "x-original-")
_END_OF_HEAD: Final = b"\r\n\r\n"


class AbortableConnection(HttpToolsProtocol):
    """Uvicorn's connection, with its ``abort`` in the state of each request; too many of one address are aborted.

    A server closes a connection in good order: it sends its buffers first. A client that never reads keeps the socket
    and its full buffers for as long as it likes. ASGI has no message to abort a connection.

    A connection that asks for a stream is handed over to ``stream_process``.
    """

    stream_process: ClassVar[StreamProcess | None] = None
    # Of one address. Each costs memory and a turn of the event loop, whatever is refused on it.
    limit: ClassVar[int] = 2000
    _open: ClassVar[Counter[str]] = Counter()
    _address = ""
    _head = b""  # the beginning of a request that may be for a stream
    _is_inside_head = False

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

    def data_received(self, data: bytes) -> None:
        if self.stream_process is not None and self._is_between_requests():
            data, self._head = self._head + data, b""
            if data.startswith(b"GET /api/v1/") and _END_OF_HEAD not in data and len(data) < HEAD_LIMIT:
                self._head = data
                return
            if data.find(_END_OF_HEAD) == len(data) - len(_END_OF_HEAD) and is_stream(data) and self._hand_over(data):
                return
        super().data_received(data)
        self._is_inside_head = self._has_no_request()

    def _is_between_requests(self) -> bool:
        """Whether the next bytes begin a request, and all answers have left."""
        return not self._is_inside_head and self._has_no_request() and not self.transport.get_write_buffer_size()

    def _has_no_request(self) -> bool:
        return self.cycle is None or (self.cycle.response_complete and not self.cycle.more_body and not self.pipeline)

    def _hand_over(self, head: bytes) -> bool:
        """Whether this connection is no longer served here."""
        assert self.stream_process is not None  # noqa: S101 (checked by the caller)
        self.transport.pause_reading()
        try:
            refusal = self.stream_process.hand_over(
                self.transport.get_extra_info("socket").fileno(), head, self._address
            )
        except OSError:
            self.transport.resume_reading()
            return False
        if refusal:
            self.transport.write(refusal)
            self.transport.close()
        else:
            self.transport.abort()
        return True


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
