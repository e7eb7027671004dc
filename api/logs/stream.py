"""Logs as server-sent events: a line each, resumable at any of them, over all attempts until the job is done."""

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
from api.logs.service import JobLook
from core.domain.errors import Unavailable
from core.storage.logs.merge import LogMerge, LogPosition, MergedLine

# Seconds between two looks at the files: quick while something happens, slower the longer nothing did.
_POLL_S: Final = 0.2
_POLL_IDLE_S: Final = 1.0
_IDLE_AFTER_S: Final = 10.0
# Seconds between two looks at the job: soon after something happened anywhere, and now and then in any case, since they
# also tell whether the caller may still read.
_LOOK_SOON_S: Final = 0.25
_LOOK_S: Final = 2.0
# With more files than this a cursor is longer than a line: then only a batch's last line carries one. A client that
# goes on after a break drops what it has by the lines' offsets.
_FILES_PER_ID: Final = 16
_BATCH: Final = 500

T = TypeVar("T")


@dataclass(slots=True)
class LogStream:
    """One client's stream.

    ``look``: the job's state, raising when the caller may not see it any more. ``wait``: returns after so many seconds,
    or true before, when the platform's history has gone on. ``limiter``: threads for disk reads
    that all streams share, so that they never take the request handlers' threads. ``in_batches``: lines that were read
    together come in one ``lines`` event instead of a ``line`` each.
    """

    merge: LogMerge
    look: Callable[[], Awaitable[JobLook]]
    wait: Callable[[float], Awaitable[bool]]
    shutdown: GracefulShutdown
    limiter: CapacityLimiter
    first_look: JobLook
    follow: bool
    in_batches: bool = False
    _told: JobLook | None = field(default=None, init=False)
    _id: str = field(default="", init=False)
    _lines: LineEvents = field(default_factory=LineEvents, init=False)

    def events(self) -> AsyncIterator[bytes]:
        """Chunks of the stream. Ends when all is told, when the server goes down, or with an ``error`` event."""
        return guarded(self._events())

    async def _events(self) -> AsyncIterator[bytes]:
        now_look = self.first_look
        looked_at = quiet_since = spoke_at = anyio.current_time()
        has_news = False
        while not self.shutdown.is_stopping:
            if now_look != self._told:
                self._told = now_look
                spoke_at = anyio.current_time()
                yield event("state", now_look.told)
            # The state was read before the files: whatever a job that has ended wrote is seen by now.
            is_final = now_look.state.is_terminal or not self.follow
            async for chunk in self._read_all(is_final=is_final):
                quiet_since = spoke_at = anyio.current_time()
                yield chunk
            if is_final:
                yield event("end", now_look.told)
                return
            now = anyio.current_time()
            if now - spoke_at >= KEEP_ALIVE_S:
                spoke_at = now
                yield ALIVE
            pause = _LOOK_SOON_S if has_news else _pause(now - quiet_since)
            has_news = await self.wait(pause) or has_news
            since = anyio.current_time() - looked_at
            if since >= (_LOOK_SOON_S if has_news else _LOOK_S):
                has_news = False
                looked_at = anyio.current_time()
                now_look = await self._look_again(now_look)
                if now_look != self._told:
                    quiet_since = looked_at

    async def _look_again(self, before: JobLook) -> JobLook:
        try:
            return await self.look()
        except Unavailable:
            return before  # the database is away: the lines go on

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
            chunk = self._lines.write_all(lines, cursor) if self.in_batches else self._one_by_one(lines, before, cursor)
        elif cursor != self._id and self.merge.has_more:
            # Searching on without a find: an id alone moves the client's place and dispatches nothing.
            self._id = cursor
            chunk = b"id: " + cursor.encode() + b"\n\n"
        return chunk, self.merge.has_more

    def _one_by_one(self, lines: Sequence[MergedLine], before: LogPosition, cursor: str) -> bytes:
        cursors = Cursors(before)
        has_ids = self.merge.source_count <= _FILES_PER_ID
        chunk = bytearray()
        for line in lines[:-1]:
            chunk += self._lines.write(line, cursors.behind(line) if has_ids else "")
        return bytes(chunk) + self._lines.write(lines[-1], cursor)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await to_thread.run_sync(work, limiter=self.limiter)


def _pause(quiet_s: float) -> float:
    """Seconds to wait: from ``_POLL_S`` up to ``_POLL_IDLE_S`` as nothing happens for ``_IDLE_AFTER_S``."""
    return min(_POLL_IDLE_S, _POLL_S + (_POLL_IDLE_S - _POLL_S) * quiet_s / _IDLE_AFTER_S)
