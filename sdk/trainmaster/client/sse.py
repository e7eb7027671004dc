"""Parser of server-sent events."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from trainmaster.client.steps import ServerEvent

# A log line has at most 64 KiB; a stream with a longer line than this is not from a Trainmaster server.
MAX_LINE_BYTES: Final = 4 * 2**20
COMMENT: Final = ":"


class EventParser:
    """Incremental parser: turns chunks of bytes, split anywhere, into events.

    Follows https://html.spec.whatwg.org/multipage/server-sent-events.html: an event ends at an empty line, an ``id``
    stays valid until the next one. A comment, which servers send as keep-alive, becomes an event of the kind
    :data:`COMMENT`, so that readers of an idle stream get control.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._kind = ""
        self._data: list[str] = []
        self._id: str | None = None
        self._has_new_id = False

    def feed(self, chunk: bytes) -> Iterator[ServerEvent]:
        """The events that ``chunk`` completes.

        Raises:
            ValueError: a line without an end.
        """
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        if len(self._rest) > MAX_LINE_BYTES:
            raise ValueError("a line of the stream has no end")
        for raw in lines:
            event = self._take(raw.removesuffix(b"\r").decode("utf-8", errors="replace"))
            if event is not None:
                yield event

    def _take(self, line: str) -> ServerEvent | None:
        if not line:
            return self._finish()
        if line.startswith(":"):
            return ServerEvent(COMMENT, "", self._id)
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        match name:
            case "data":
                self._data.append(value)
            case "event":
                self._kind = value
            case "id" if "\0" not in value:
                self._id, self._has_new_id = value, True
            case _:
                pass  # `retry`, or a field of a later server
        return None

    def _finish(self) -> ServerEvent | None:
        kind, data, is_new = self._kind, self._data, self._has_new_id
        self._kind, self._data, self._has_new_id = "", [], False
        if data or kind:
            return ServerEvent(kind or "message", "\n".join(data), self._id)
        # An ID alone only advances the position to resume from.
        return ServerEvent(COMMENT, "", self._id) if is_new else None
