"""Server-sent events: the helpers that all streams of the API share."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final

import orjson
from fastapi.responses import StreamingResponse

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


def stream_response(chunks: AsyncIterator[bytes]) -> StreamingResponse:
    """A response that sends ``chunks`` as they come, without caching or buffering."""
    return StreamingResponse(chunks, media_type=MEDIA_TYPE, headers=_HEADERS)


def stream_document(description: str) -> dict[int | str, dict[str, Any]]:
    """The ``responses`` argument of a streaming route, for the OpenAPI document."""
    return {200: {"description": description, "content": {MEDIA_TYPE: {"schema": {"type": "string"}}}}}
