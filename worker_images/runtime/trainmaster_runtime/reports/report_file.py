"""The file to which user code appends its reports, a JSON object per line."""

from __future__ import annotations

import json

from trainmaster_runtime import clock
from trainmaster_runtime.process import syscalls

_LINE_BYTES = 1024 * 1024  # an image is such a line
_ROUND_BYTES = 8 * 2**20  # a flood of lines must not hold up the heartbeat
_FREE_BYTES = 4 * 2**20  # so much of the file is read before its room is given back
_BLOCK = 4_096
_KINDS = ("progress", "checkpoint", "event", "metrics")

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any


class ReportFile:
    """Reads complete lines as they appear, a bounded piece at a time. ``say`` writes into the replica's log."""

    def __init__(self, path: str, say: Callable[[str], None]) -> None:
        self._path = path
        self._say = say
        self._freed_to = 0
        self._is_in_long_line = False
        self.offset = 0

    def read(self, is_last: bool) -> Iterator[dict[str, Any]]:
        """The items that were appended since the last call. ``is_last``: nothing is appended any more. Raises
        ``OSError``.
        """
        start = self.offset
        with open(self._path, "rb") as stream:
            stream.seek(start)
            while is_last or self.offset - start < _ROUND_BYTES:
                line = stream.readline(_LINE_BYTES + 1)
                is_partial = len(line) <= _LINE_BYTES and not line.endswith(b"\n")
                if not line or (is_partial and not (is_last or self._is_in_long_line)):
                    break  # a partial line is read again at the next call
                item = self._take(line)
                if item is not None:
                    yield item
        if self.offset - self._freed_to >= _FREE_BYTES:
            self._free()

    def _take(self, line: bytes) -> dict[str, Any] | None:
        self.offset += len(line)
        is_long = len(line) > _LINE_BYTES
        continues_long_line = self._is_in_long_line
        if is_long and not continues_long_line:
            self._say("a line of more than %d bytes in %s was left out" % (_LINE_BYTES, self._path))
        self._is_in_long_line = not line.endswith(b"\n") and (is_long or continues_long_line)
        return None if is_long or continues_long_line else _item(line)

    def _free(self) -> None:
        """Free the disk space of read lines. Truncating the file could lose a line that is appended in that moment."""
        end = self.offset // _BLOCK * _BLOCK
        try:
            with open(self._path, "r+b") as stream:
                syscalls.punch_hole(stream.fileno(), 0, end)
        except OSError:  # a file system that cannot: a report file is small compared with a job's output
            pass
        self._freed_to = end


def _item(line: bytes) -> dict[str, Any] | None:
    """A report item of what user code wrote; ``None`` when it is none (the server would refuse it)."""
    try:
        data = json.loads(line)
    except (ValueError, RecursionError):  # thousands of brackets
        return None
    if not isinstance(data, dict) or data.get("kind") not in _KINDS:
        return None
    kind = data.pop("kind")
    at = data.pop("at", None)
    return {"at": at if isinstance(at, str) else clock.stamp(clock.now()), "kind": kind, "data": data}
