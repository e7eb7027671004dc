"""One request on its way to a replica and its answer on the way back, neither of them ever held whole."""

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
        f"The body is larger than {limit / 2**20:g} MiB (TRAINMASTER_PREDICT_LIMIT_BYTES); ask for fewer instances at once, "
        "or use a batch prediction."
    )


class Body:
    """The request's body, counted; what of it has been read cannot be read again, but a refused connection reads none."""

    def __init__(self, request: Request, limit: int) -> None:
        self._request, self._limit = request, limit
        self._whole = asyncio.Event()

    @property
    def is_whole(self) -> bool:
        """Whether all of it has come."""
        return self._whole.is_set()

    async def stream(self) -> AsyncIterator[bytes]:
        """Raises ``PayloadTooLarge``, and ``ClientDisconnect``: who asked has gone away."""
        received = 0
        async for chunk in self._request.stream():
            received += len(chunk)
            if received > self._limit:
                raise too_large(self._limit)
            yield chunk
        self._whole.set()

    async def gone(self) -> None:
        """Returns when who asked has gone away after the body."""
        await self._whole.wait()
        while (await self._request.receive())["type"] != "http.disconnect":
            pass


async def send(client: httpx.AsyncClient, asked: httpx.Request, body: Body, *, within_s: float) -> httpx.Response:
    """The answer as soon as it begins; the caller closes it.

    Raises:
        ClientDisconnect: who asked has gone away. The connection to the replica is closed, so that it may notice.
        TimeoutError: no answer began ``within_s`` seconds.
        httpx.HTTPError
    """
    sending = asyncio.create_task(client.send(asked, stream=True))
    leaving = asyncio.create_task(body.gone())
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
            await sending.result().aclose()  # it came in the very moment


class Outcome(Protocol):
    """Is told what became of an answer that had begun."""

    def broke_off(self) -> None:
        """The replica broke it off."""

    def not_read(self) -> None:
        """Who asked did not take it."""


class Handed(StreamingResponse):
    """The answer of a replica as it comes. However its sending ends, the replica is let go.

    Where the replica breaks off in the middle, the connection to who asked does, too. ``unread_s``: for so many seconds
    who asked may take nothing of what is there; then it is cut off, since it holds the room of another request.
    """

    def __init__(
        self,
        answer: httpx.Response,
        stack: AsyncExitStack,
        headers: dict[str, str],
        outcome: Outcome,
        *,
        unread_s: float,
    ) -> None:
        super().__init__(answer.aiter_raw(), answer.status_code, headers)
        self._answer = answer
        self._stack = stack
        self._outcome = outcome
        self._unread_s = unread_s

    async def read(self, limit: int) -> bytes:
        """All of it at once, decoded, instead of handing it on.

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
                            f"The model's answer is larger than {limit / 2**20:g} MiB (TRAINMASTER_PREDICT_LIMIT_BYTES); ask for "
                            "fewer instances at once, or by rawPredict."
                        )
            except httpx.HTTPError as error:
                self._outcome.broke_off()
                raise ModelUnreachable(
                    "A replica broke off in the middle of its answer. If asking twice is harmless, try again."
                ) from error
        return bytes(found)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def taken(message: Message) -> None:
            try:
                async with asyncio.timeout(self._unread_s):
                    await send(message)  # returns when the buffers have room for it
            except TimeoutError as error:
                raise _NotTaken from error

        async with self._stack:
            try:
                await super().__call__(scope, receive, taken)
                return
            except httpx.HTTPError:
                self._outcome.broke_off()
                raise
            except _NotTaken:
                self._outcome.not_read()
                abort = abort_of(scope)
                if abort is None:
                    raise  # the server closes it as well as it can
                abort()
        while (await receive())["type"] != "http.disconnect":
            pass


class _NotTaken(Exception):
    """Who asked does not read."""
