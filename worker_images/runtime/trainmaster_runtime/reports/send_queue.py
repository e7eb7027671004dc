"""The reporter's queue of items that were not sent yet, on disk."""

from __future__ import annotations

import json

BATCH_ITEMS = 500
_BATCH_BYTES = 512 * 1024
_LIMIT_BYTES = 16 * 2**20

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any


class SendQueue:
    """A file of unsent items, oldest first. Bounded: see :meth:`add`."""

    def __init__(self, path: str, limit_bytes: int = _LIMIT_BYTES) -> None:
        self._limit = limit_bytes
        self._start = 0  # of the first item that was not taken
        self._end = 0
        self._file = open(path, "w+b")  # noqa: SIM115 - lives as long as the reporter

    def add(self, item: dict[str, Any]) -> None:
        """Append; over the limit all but the newest progress is dropped, then the oldest of the remaining items."""
        line = json.dumps(item).encode() + b"\n"
        if self._end - self._start + len(line) > self._limit:
            self._thin()
        self._file.seek(self._end)
        self._file.write(line)
        self._file.flush()
        self._end += len(line)

    def take(self) -> list[dict[str, Any]]:
        """Remove and return the oldest items, at most a batch."""
        self._file.seek(self._start)
        items: list[dict[str, Any]] = []
        size = 0
        while self._start < self._end and len(items) < BATCH_ITEMS and size < _BATCH_BYTES:
            line = self._file.readline()
            self._start += len(line)
            size += len(line)
            items.append(json.loads(line))
        if self._start >= self._end and self._end:
            self._file.truncate(0)
            self._start = self._end = 0
        return items

    def lines(self) -> Iterator[bytes]:
        """The bytes of all items, a line each; the items stay in the queue."""
        offset = self._start
        while offset < self._end:
            self._file.seek(offset)
            piece = self._file.read(min(_BATCH_BYTES, self._end - offset))
            offset += len(piece)
            yield piece

    @property
    def extent(self) -> tuple[int, int]:
        """Changes when the items change."""
        return self._start, self._end

    def close(self) -> None:
        self._file.close()

    def __bool__(self) -> bool:
        return self._start < self._end

    def _thin(self) -> None:
        self._file.seek(self._start)
        lines = self._file.read(self._end - self._start).splitlines(keepends=True)
        last = max((n for n, line in enumerate(lines) if json.loads(line)["kind"] == "progress"), default=-1)
        remaining = [line for n, line in enumerate(lines) if n == last or json.loads(line)["kind"] != "progress"]
        while sum(map(len, remaining)) > self._limit // 2:
            del remaining[: max(1, len(remaining) // 4)]
        self._file.seek(0)
        self._file.truncate(0)
        self._file.write(b"".join(remaining))
        self._start, self._end = 0, sum(map(len, remaining))
