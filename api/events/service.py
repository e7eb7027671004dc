"""Pages of history, and history as it happens."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

import anyio
from trainmaster.wire.base import Page
from trainmaster.wire.jobs import EventView

from api.app.graceful_shutdown import GracefulShutdown
from api.events.watch import EventWatch
from api.http.cursors import make_cursor, read_cursor
from api.http.sse import ALIVE, KEEP_ALIVE_S, event, guarded
from core.db.rows import AnyRow
from core.domain.errors import Unavailable

# PostgreSQL gives ids when rows are written and shows rows when they are committed: an event with a smaller id may
# appear after one with a larger. No transaction of ours is open for this long.
_SETTLED_AFTER: Final = timedelta(seconds=10)
# Without news the stream looks at least this often: for events that were committed out of order, the end, the caller.
_LOOK_S: Final = 2.0
_BATCH: Final = 500


def page_of(rows: Sequence[AnyRow], limit: int) -> Page[EventView]:
    """A page from ``limit`` + 1 rows."""
    items = [EventView.model_construct(**row._mapping) for row in rows[:limit]]  # noqa: SLF001 (public in spite of its name)
    cursor = make_cursor(items[-1].id) if len(rows) > limit else None
    return Page[EventView].model_construct(items=items, next_cursor=cursor)


def start_after(after: int | None, cursor: str | None, last_event_id: str | None) -> int:
    """Where to begin: what the stream's client has seen, else the cursor, else ``after``."""
    if last_event_id is not None and last_event_id.isdigit() and len(last_event_id) < 19:
        return int(last_event_id)
    if cursor is not None:
        (found,) = read_cursor(cursor, (int,))
        return max(0, min(int(found), 2**63 - 1))
    return after or 0


@dataclass(frozen=True, slots=True)
class News:
    """What is there now: rows with larger ids than asked, and how the followed job is (``None``: no one job)."""

    rows: Sequence[AnyRow]
    now: datetime
    state: str | None
    is_over: bool


@dataclass(slots=True)
class Follower:
    """One client's stream. ``look(after, limit)`` reads, and raises when the caller may not see it any more."""

    look: Callable[[int, int], Awaitable[News]]
    watch: EventWatch
    shutdown: GracefulShutdown
    _low: int
    _sent: dict[int, datetime] = field(default_factory=dict)

    async def stream(self) -> AsyncIterator[bytes]:
        """Chunks of ``text/event-stream``: ``event``s with their ids, and ``end`` when the job is over and all is told."""
        async with self.watch.following():
            async for chunk in guarded(self._follow()):
                yield chunk

    async def _follow(self) -> AsyncIterator[bytes]:
        spoke_at = anyio.current_time()
        while not self.shutdown.is_stopping:
            mark = self.watch.mark()
            try:
                news = await self.look(self._low, _BATCH)
            except Unavailable:
                await anyio.sleep(_LOOK_S)
                continue
            fresh = [row for row in news.rows if row.id not in self._sent]
            if fresh:
                spoke_at = anyio.current_time()
                yield b"".join(_chunk(row) for row in fresh)
            self._settle(news)
            if len(news.rows) == _BATCH:
                continue
            if news.is_over:
                yield event("end", {"state": news.state})
                return
            if anyio.current_time() - spoke_at >= KEEP_ALIVE_S:
                spoke_at = anyio.current_time()
                yield ALIVE
            await self.watch.wait(_LOOK_S, mark)

    def _settle(self, news: News) -> None:
        """Move the low mark over events that are too old for a smaller id to appear behind them."""
        self._sent |= {row.id: row.at for row in news.rows}
        is_full = len(news.rows) == _BATCH  # then go on at any rate, or the same batch would come again
        for event_id in sorted(self._sent):
            if not is_full and news.now - self._sent[event_id] < _SETTLED_AFTER:
                break
            self._low = event_id
            del self._sent[event_id]


def _chunk(row: AnyRow) -> bytes:
    return event("event", dict(row._mapping), event_id=str(row.id))  # noqa: SLF001 (public in spite of its name)
