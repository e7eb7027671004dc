"""Log lines as server-sent events, resumable at each line, over all attempts until the job has ended."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

import anyio
from anyio import CapacityLimiter, to_thread

from api.app.graceful_shutdown import GracefulShutdown
from api.http.sse import ALIVE, KEEP_ALIVE_S, event, guarded
from api.logs.cursor import write_cursor
from api.logs.lines import Cursors, LineEvents
from api.logs.service import JobStatus
from core.domain.errors import Unavailable
from core.storage.logs.merge import LogMerge, LogPosition, MergedLine

# Poll interval of the files: short while there are new lines, longer the longer there are none.
_POLL_S: Final = 0.2
_POLL_IDLE_S: Final = 1.0
_IDLE_AFTER_S: Final = 10.0
# Poll interval of the job's status: short after any new event of the platform; else longer, since the poll also checks
# whether the caller may still read.
_STATUS_SOON_S: Final = 0.25
_STATUS_S: Final = 2.0
# With more files than this, a cursor is longer than a line: then only a batch's last line carries one. A client that
# resumes drops lines that it has by their offsets.
_FILES_PER_ID: Final = 16
_BATCH: Final = 500

T = TypeVar("T")


@dataclass(slots=True)
class LogStream:
    """One client's stream.

    ``look``: reads the job's status; raises when the caller has lost access. ``wait``: returns after so many seconds,
    or earlier with true when the platform has new events. ``limiter``: threads for disk reads, shared by all streams,
    so that they never take the request handlers' threads. ``in_batches``: lines that were read together are sent as one
    ``lines`` event instead of a ``line`` event each.
    """

    merge: LogMerge
    look: Callable[[], Awaitable[JobStatus]]
    wait: Callable[[float], Awaitable[bool]]
    shutdown: GracefulShutdown
    limiter: CapacityLimiter
    first_status: JobStatus
    follow: bool
    in_batches: bool = False
    _reported: JobStatus | None = field(default=None, init=False)
    _id: str = field(default="", init=False)
    _lines: LineEvents = field(default_factory=LineEvents, init=False)

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
            pause = _STATUS_SOON_S if has_changed else _pause(now - quiet_since)
            has_changed = await self.wait(pause) or has_changed
            since = anyio.current_time() - looked_at
            if since >= (_STATUS_SOON_S if has_changed else _STATUS_S):
                has_changed = False
                looked_at = anyio.current_time()
                status = await self._read_status(status)
                if status != self._reported:
                    quiet_since = looked_at

    async def _read_status(self, before: JobStatus) -> JobStatus:
        try:
            return await self.look()
        except Unavailable:
            return before  # the database is away: continue with the lines

    async def _read_all(self, *, is_final: bool) -> AsyncIterator[bytes]:
        await self._in_thread(self.merge.refresh)
        while not self.shutdown.is_stopping:
            chunk, has_more = await self._in_thread(lambda: self._read_batch(is_final=is_final))
            if chunk:
                yield chunk
            if not has_more:
                return

    def _read_batch(self, *, is_final: bool) -> tuple[bytes, bool]:
        """The next lines as one chunk, and whether there is more. Blocks."""
        before = self.merge.place
        lines = self.merge.step(max_lines=_BATCH, is_final=is_final)
        cursor = write_cursor(self.merge.place)
        chunk = b""
        if lines:
            self._id = cursor
            chunk = (
                self._lines.write_all(lines, cursor) if self.in_batches else self._line_events(lines, before, cursor)
            )
        elif cursor != self._id and self.merge.has_more:
            # No match in this part of the search: an id alone moves the client's position and dispatches no event.
            self._id = cursor
            chunk = b"id: " + cursor.encode() + b"\n\n"
        return chunk, self.merge.has_more

    def _line_events(self, lines: Sequence[MergedLine], before: LogPosition, cursor: str) -> bytes:
        cursors = Cursors(before)
        has_ids = self.merge.source_count <= _FILES_PER_ID
        chunk = bytearray()
        for line in lines[:-1]:
            chunk += self._lines.write(line, cursors.after(line) if has_ids else "")
        return bytes(chunk) + self._lines.write(lines[-1], cursor)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await to_thread.run_sync(work, limiter=self.limiter)


def _pause(quiet_s: float) -> float:
    """Seconds to wait: from ``_POLL_S`` up to ``_POLL_IDLE_S`` as nothing happens for ``_IDLE_AFTER_S``."""
    return min(_POLL_IDLE_S, _POLL_S + (_POLL_IDLE_S - _POLL_S) * quiet_s / _IDLE_AFTER_S)
