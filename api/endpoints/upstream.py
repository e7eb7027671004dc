"""Streaming of one request to a replica and of its response back; neither is buffered as a whole."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Protocol

import httpx
from starlette.requests import ClientDisconnect, Request
from starlette.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from api.http.connections import abort_of
from core.domain.errors import ModelUnreachable, PayloadTooLarge


def too_large(limit: int) -> PayloadTooLarge:
    return PayloadTooLarge(
        f"The body is larger than {limit / 2**20:g} MiB (TRAINMASTER_PREDICT_LIMIT_BYTES); send fewer instances at "
        "once, or use a batch prediction."
    )


class StreamedBody:
    """The request's body, with its size checked. It can be read once only; a refused connection reads nothing of it."""

    def __init__(self, request: Request, limit: int) -> None:
        self._request, self._limit = request, limit
        self._whole = asyncio.Event()

    @property
    def is_whole(self) -> bool:
        """Whether the client has sent all of it."""
        return self._whole.is_set()

    async def stream(self) -> AsyncIterator[bytes]:
        """The body's chunks. Raises ``PayloadTooLarge``, or ``ClientDisconnect`` if the client has disconnected."""
        received = 0
        async for chunk in self._request.stream():
            received += len(chunk)
            if received > self._limit:
                raise too_large(self._limit)
            yield chunk
        self._whole.set()

    async def disconnected(self) -> None:
        """Return when the client disconnects after it has sent the body."""
        await self._whole.wait()
        while (await self._request.receive())["type"] != "http.disconnect":
            pass


async def send(
    client: httpx.AsyncClient, request: httpx.Request, body: StreamedBody, *, within_s: float
) -> httpx.Response:
    """The response as soon as it begins; the caller closes it.

    Raises:
        ClientDisconnect: the client has disconnected. The connection to the replica is closed, so that it can stop.
        TimeoutError: no response began within ``within_s`` seconds.
        httpx.HTTPError
    """
    sending = asyncio.create_task(client.send(request, stream=True))
    leaving = asyncio.create_task(body.disconnected())
    is_taken = False
    try:
        async with asyncio.timeout(within_s):
            await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not sending.done():
            raise ClientDisconnect
        answer = sending.result()
        is_taken = True
        return answer
    finally:
        leaving.cancel()
        sending.cancel()
        await asyncio.gather(sending, leaving, return_exceptions=True)
        if not is_taken and not sending.cancelled() and sending.exception() is None:
            await sending.result().aclose()  # it arrived while this was cancelled


class ResponseOutcome(Protocol):
    """Records how a response ended that had begun."""

    def mark_interrupted(self) -> None:
        """The replica broke the connection."""

    def not_read(self) -> None:
        """The client did not read the response."""


class ProxiedResponse(StreamingResponse):
    """Streams a replica's response. The replica is released however the sending ends.

    If the replica breaks off in the middle, the client's connection is broken off, too. ``unread_s``: a client that
    reads nothing for so many seconds is disconnected, since it takes the place of another request.
    """

    def __init__(
        self,
        answer: httpx.Response,
        stack: AsyncExitStack,
        headers: dict[str, str],
        outcome: ResponseOutcome,
        *,
        unread_s: float,
    ) -> None:
        super().__init__(answer.aiter_raw(), answer.status_code, headers)
        self._answer = answer
        self._stack = stack
        self._outcome = outcome
        self._unread_s = unread_s

    async def read(self, limit: int) -> bytes:
        """The whole response, decoded, instead of streaming it.

        Raises:
            ModelUnreachable: the replica broke off.
            PayloadTooLarge: it is larger than ``limit`` bytes.
        """
        found = bytearray()
        async with self._stack:
            try:
                async for chunk in self._answer.aiter_bytes():
                    found += chunk
                    if len(found) > limit:
                        raise PayloadTooLarge(
                            f"The model's response is larger than {limit / 2**20:g} MiB "
                            "(TRAINMASTER_PREDICT_LIMIT_BYTES); send fewer instances at once, or use rawPredict."
                        )
            except httpx.HTTPError as error:
                self._outcome.mark_interrupted()
                raise ModelUnreachable(
                    "A replica broke the connection in the middle of its response. If repeating the request is "
                    "harmless, try again."
                ) from error
        return bytes(found)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def taken(message: Message) -> None:
            try:
                async with asyncio.timeout(self._unread_s):
                    await send(message)  # returns when the buffers have room for it
            except TimeoutError as error:
                raise _ClientNotReading from error

        async with self._stack:
            try:
                await super().__call__(scope, receive, taken)
                return
            except httpx.HTTPError:
                self._outcome.mark_interrupted()
                raise
            except _ClientNotReading:
                self._outcome.not_read()
                abort = abort_of(scope)
                if abort is None:
                    raise  # the server closes the connection in its own way
                abort()
        while (await receive())["type"] != "http.disconnect":
            pass


class _ClientNotReading(Exception):
    """The client does not read the response."""
