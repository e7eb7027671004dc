"""Server-sent events: the helpers that all streams of the API share."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final

import orjson
from fastapi import Request
from fastapi.responses import StreamingResponse
from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from api.app.fair_use import FairUse, caller_key, fair_use_of
from api.http.problems import response_to
from core.domain.errors import TrainmasterError

MEDIA_TYPE: Final = "text/event-stream"
# A comment after so many quiet seconds, so that proxies and clients see that the connection is alive.
KEEP_ALIVE_S: Final = 15.0
ALIVE: Final = b": alive\n\n"
_OPENING: Final = b": trainmaster\nretry: 2000\n\n"
_HEADERS: Final = {"Cache-Control": "no-store", "X-Accel-Buffering": "no", "X-Content-Type-Options": "nosniff"}


def event(kind: str, data: Any, *, event_id: str | None = None) -> bytes:
    """One encoded event; ``data`` as JSON."""
    head = b"" if event_id is None else b"id: " + event_id.encode() + b"\n"
    return head + b"event: " + kind.encode() + b"\ndata: " + orjson.dumps(data) + b"\n\n"


async def guarded(events: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """A complete stream: the opening, ``events``, and an ``error`` event where they raise a ``TrainmasterError``."""
    yield _OPENING
    try:
        async for chunk in events:
            yield chunk
    except TrainmasterError as error:
        yield event("error", {"code": error.code, "status": error.status, "detail": error.sentence})


def stream_response(chunks: AsyncIterator[bytes], request: Request, user_id: str) -> StreamingResponse:
    """A response that sends ``chunks`` as they come, without caching or buffering; it counts as a stream of the user,
    and is refused if too many are open.
    """
    return _CountedStream(chunks, fair_use_of(request), user_id)


class _CountedStream(StreamingResponse):
    def __init__(self, chunks: AsyncIterator[bytes], fair_use: FairUse, user_id: str) -> None:
        super().__init__(chunks, media_type=MEDIA_TYPE, headers=_HEADERS)
        self._fair_use = fair_use
        self._user_id = user_id

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        limit = self._fair_use.streams
        if limit.is_reached(self._user_id):
            refusal = self._fair_use.refuse_stream(caller_key(scope, Headers(scope=scope)))
            await response_to(refusal, scope["state"]["request_id"])(scope, receive, send)
            return
        with limit.acquire(self._user_id):
            await super().__call__(scope, receive, send)


def stream_document(description: str) -> dict[int | str, dict[str, Any]]:
    """The ``responses`` argument of a streaming route, for the OpenAPI document."""
    return {200: {"description": description, "content": {MEDIA_TYPE: {"schema": {"type": "string"}}}}}
