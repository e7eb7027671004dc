"""Log lines as server-sent events, resumable at each line, over all attempts until the job has ended."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

import anyio
import orjson
from anyio import CapacityLimiter, to_thread

from api.app.graceful_shutdown import GracefulShutdown
from api.http.sse import ALIVE, KEEP_ALIVE_S, event, guarded
from api.logs.service import JobStatus
from core.domain.errors import InvalidRequest, Unavailable
from core.storage.logs.files import STAMP_BYTES, parse_line, stamp_of
from core.storage.logs.merge import LogMerge, LogPosition, MergedLine

# Poll interval of the files: short while there are new lines, longer the longer there are none.
POLL_S: Final = 0.2
POLL_IDLE_S: Final = 1.0
_IDLE_AFTER_S: Final = 10.0
# From so many streams on, all together look for lines as often as so many do.
_CROWD: Final = 40
# Poll interval of the job's status: short after any new event of the platform; else longer, since the poll also checks
# whether the caller may still read.
STATUS_SOON_S: Final = 0.25
STATUS_S: Final = 2.0
# With more files than this, a cursor is longer than a line: then only a batch's last line carries one. A client that
# resumes drops lines that it has by their offsets.
_FILES_PER_ID: Final = 16
_BATCH: Final = 500

_SECOND: Final = 19  # bytes of a stamp before its fraction
# A position as text is used as id of an event: ``1;chief-0=4096;worker-0=1250``. Opaque to clients.
_NAME: Final = re.compile(r"^[a-z0-9-]{1,32}$")
_NUMBER: Final = re.compile(r"^[0-9]{1,18}$")

T = TypeVar("T")


class _LineEvents:
    """Writes ``line`` events: a ``LogLine`` each, as ``event("line", …)`` would, at a third of its cost."""

    def __init__(self) -> None:
        self._heads: dict[tuple[int, str, int, int | None, int | None], bytes] = {}
        self._second = b""
        self._is_time = False

    def write(self, line: MergedLine, event_id: str) -> bytes:
        """One event; an empty ``event_id`` writes none."""
        place = b"id: " + event_id.encode() + b"\n" if event_id else b""
        return place + b"event: line\ndata: " + self._data(line) + b"\n\n"

    def write_all(self, lines: Sequence[MergedLine], event_id: str) -> bytes:
        """All lines as one ``lines`` event: browsers handle each event in a task of its own."""
        data = b",".join([self._data(line) for line in lines])
        return b"id: " + event_id.encode() + b"\nevent: lines\ndata: [" + data + b"]\n\n"

    def _data(self, line: MergedLine) -> bytes:
        """As a ``LogLine`` of the wire."""
        file, speaker, raw = line.file, line.speaker, line.raw
        key = (file.attempt, file.role, file.index, speaker.rank, speaker.local_rank)
        head = self._heads.get(key)
        if head is None:
            names = ("attempt", "role", "index", "rank", "local_rank")
            shared = orjson.dumps(dict(zip(names, key, strict=True)))
            head = self._heads[key] = shared[:-1]
        at, text = b"null", raw
        if self._has_time(raw):
            at, text = b'"' + raw[: STAMP_BYTES - 1] + b'+00:00"', raw[STAMP_BYTES + 1 :]
        quoted = orjson.dumps(text.rstrip(b"\r").decode("utf-8", "replace"))
        return b'%b,"offset":%d,"at":%b,"text":%b}' % (head, line.offset, at, quoted)

    def _has_time(self, raw: bytes) -> bool:
        """Whether the line begins with a time. ``parse_line`` is called only once for each second."""
        if stamp_of(raw) is None or raw[_SECOND] != ord(".") or not raw[_SECOND + 1 : STAMP_BYTES - 1].isdigit():
            return False
        if raw[:_SECOND] != self._second:
            self._second = raw[:_SECOND]
            self._is_time = parse_line(raw[:STAMP_BYTES]).at is not None
        return self._is_time


class _Cursors:
    """The cursor after each line that follows ``place``: like ``_write_cursor``, but incremental."""

    def __init__(self, place: LogPosition) -> None:
        self._attempt = place.attempt
        self._parts = {name: f"{name}={offset}" for name, offset in sorted(place.offsets.items())}

    def after(self, line: MergedLine) -> str:
        if line.file.attempt != self._attempt:
            self._attempt, self._parts = line.file.attempt, {}
        name = line.file.name
        is_new = name not in self._parts
        self._parts[name] = f"{name}={line.offset}"
        if is_new:
            self._parts = dict(sorted(self._parts.items()))
        return f"{self._attempt};{';'.join(self._parts.values())}"


def _write_cursor(place: LogPosition) -> str:
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


@dataclass(slots=True)
class LogStream:
    """One client's stream.

    ``read_status``: reads the job's status; raises when the caller has lost access. ``wait``: returns after so many
    seconds, or earlier with true when the platform has new events. ``limiter``: threads for disk reads, shared by all
    streams, so that they never take the request handlers' threads. ``open_streams``: how many this process sends: where
    they are many, each looks for lines less often. ``in_batches``: lines that were read together are
    sent as one ``lines`` event instead of a ``line`` event each.
    """

    merge: LogMerge
    read_status: Callable[[], Awaitable[JobStatus]]
    wait: Callable[[float], Awaitable[bool]]
    shutdown: GracefulShutdown
    limiter: CapacityLimiter
    first_status: JobStatus
    follow: bool
    in_batches: bool = False
    open_streams: Callable[[], int] = lambda: 1
    _reported: JobStatus | None = field(default=None, init=False)
    _id: str = field(default="", init=False)
    _lines: _LineEvents = field(default_factory=_LineEvents, init=False)

    def events(self) -> AsyncIterator[bytes]:
        """Chunks of the stream. Ends after the last line, when the server shuts down, or with an ``error`` event."""
        return guarded(self._events())

    async def _events(self) -> AsyncIterator[bytes]:
        status = self.first_status
        looked_at = quiet_since = sent_at = anyio.current_time()
        has_changed = False
        while not self.shutdown.is_stopping:
            if status != self._reported:
                self._reported = status
                sent_at = anyio.current_time()
                yield event("state", status.as_json)
            # The status was read before the files, so all lines of an ended job are included.
            is_final = status.state.is_terminal or not self.follow
            async for chunk in self._read_all(is_final=is_final):
                quiet_since = sent_at = anyio.current_time()
                yield chunk
            if is_final:
                yield event("end", status.as_json)
                return
            now = anyio.current_time()
            if now - sent_at >= KEEP_ALIVE_S:
                sent_at = now
                yield ALIVE
            pause = STATUS_SOON_S if has_changed else _pause(now - quiet_since)
            pause *= max(1.0, self.open_streams() / _CROWD)
            has_changed = await self.wait(pause) or has_changed
            since = anyio.current_time() - looked_at
            if since >= (STATUS_SOON_S if has_changed else STATUS_S):
                has_changed = False
                looked_at = anyio.current_time()
                status = await self._read_status(status)
                if status != self._reported:
                    quiet_since = looked_at

    async def _read_status(self, before: JobStatus) -> JobStatus:
        try:
            return await self.read_status()
        except Unavailable:
            return before  # the database is away: continue with the lines

    async def _read_all(self, *, is_final: bool) -> AsyncIterator[bytes]:
        await self._in_thread(self.merge.refresh)
        while not self.shutdown.is_stopping:
            chunk, is_truncated = await self._in_thread(lambda: self._read_batch(is_final=is_final))
            if chunk:
                yield chunk
            if not is_truncated:
                return

    def _read_batch(self, *, is_final: bool) -> tuple[bytes, bool]:
        """The next lines as one chunk, and whether there is more. Blocks."""
        before = self.merge.place
        lines = self.merge.step(max_lines=_BATCH, is_final=is_final)
        cursor = _write_cursor(self.merge.place)
        chunk = b""
        if lines:
            self._id = cursor
            chunk = (
                self._lines.write_all(lines, cursor) if self.in_batches else self._line_events(lines, before, cursor)
            )
        elif cursor != self._id and self.merge.is_truncated:
            # No match in this part of the search: an id alone moves the client's position and dispatches no event.
            self._id = cursor
            chunk = b"id: " + cursor.encode() + b"\n\n"
        return chunk, self.merge.is_truncated

    def _line_events(self, lines: Sequence[MergedLine], before: LogPosition, cursor: str) -> bytes:
        cursors = _Cursors(before)
        has_ids = self.merge.source_count <= _FILES_PER_ID
        chunk = bytearray()
        for line in lines[:-1]:
            chunk += self._lines.write(line, cursors.after(line) if has_ids else "")
        return bytes(chunk) + self._lines.write(lines[-1], cursor)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await to_thread.run_sync(work, limiter=self.limiter)


def _pause(quiet_s: float) -> float:
    """Seconds to wait: from ``POLL_S`` up to ``POLL_IDLE_S`` as nothing happens for ``_IDLE_AFTER_S``."""
    return min(POLL_IDLE_S, POLL_S + (POLL_IDLE_S - POLL_S) * quiet_s / _IDLE_AFTER_S)
