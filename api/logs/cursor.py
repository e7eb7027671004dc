"""A log stream's position as text, used as SSE id: ``1;chief-0=4096;worker-0=1250``. Opaque to clients."""

from __future__ import annotations

import re
from typing import Final

from core.domain.errors import InvalidRequest
from core.storage.logs.merge import LogPosition

_NAME: Final = re.compile(r"^[a-z0-9-]{1,32}$")
_NUMBER: Final = re.compile(r"^[0-9]{1,18}$")


def write_cursor(place: LogPosition) -> str:
    return ";".join([str(place.attempt), *(f"{name}={offset}" for name, offset in sorted(place.offsets.items()))])


def read_cursor(text: str) -> LogPosition:
    """The position of a cursor. Raises ``InvalidRequest`` if it is not a cursor of a log stream."""
    attempt, *parts = text.split(";")
    pairs = [part.partition("=") for part in parts]
    if not _NUMBER.match(attempt) or not all(_NAME.match(p[0]) and _NUMBER.match(p[2]) for p in pairs):
        raise InvalidRequest(
            "Last-Event-ID is not an id of this stream; omit it to start from the beginning.", field="last-event-id"
        )
    return LogPosition(int(attempt), {name: int(offset) for name, _, offset in pairs})
