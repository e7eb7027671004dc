"""Pages and streams of events, and the one poller of the table per process that all followers share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

import anyio
from anyio import CancelScope
from starlette.concurrency import run_in_threadpool
from starlette.requests import HTTPConnection
from trainmaster.wire.base import Page
from trainmaster.wire.jobs import EventView

from api.app.graceful_shutdown import GracefulShutdown
from api.app.unit_of_work import AppContext
from api.http.paging import make_cursor, read_cursor
from api.http.sse import ALIVE, KEEP_ALIVE_S, event, guarded
from core.db.engine import UntypedRow
from core.db.repositories.events import newest_event_id
from core.domain.errors import TrainmasterError, Unavailable

# PostgreSQL assigns ids when rows are written, but rows become visible when they are committed: an event with a smaller
# id may appear after one with a larger id. No transaction of the platform is open for this long.
_MAX_TRANSACTION_TIME: Final = timedelta(seconds=10)
# The stream reads at least this often: for events committed out of order, the job's end, and the caller's access.
_LOOK_S: Final = 2.0
_BATCH: Final = 500
# Poll interval while there are followers; it bounds their delay.
_POLL_S: Final = 0.25


def page_of(rows: Sequence[UntypedRow], limit: int) -> Page[EventView]:
    """A page from ``limit`` + 1 rows."""
    # `_mapping` is public in spite of its name.
    items = [EventView.model_construct(**row._mapping) for row in rows[:limit]]  # noqa: SLF001
    cursor = make_cursor(items[-1].id) if len(rows) > limit else None
    return Page[EventView].model_construct(items=items, next_cursor=cursor)


def start_after(after: int | None, cursor: str | None, last_event_id: str | None) -> int:
    """Where to begin: after ``last_event_id``, else after the cursor, else after ``after``."""
    if last_event_id is not None and last_event_id.isdigit() and len(last_event_id) < 19:
        return int(last_event_id)
    if cursor is not None:
        (found,) = read_cursor(cursor, (int,))
        return max(0, min(int(found), 2**63 - 1))
    return after or 0


@dataclass(frozen=True, slots=True)
class EventBatch:
    """Rows after the given id, and the state of the followed job (``None`` when many jobs are followed)."""

    rows: Sequence[UntypedRow]
    now: datetime
    state: str | None
    is_over: bool


@dataclass(slots=True)
class EventStream:
    """One client's stream. ``read_batch(after, limit)`` reads, and raises when the caller has lost access."""

    read_batch: Callable[[int, int], Awaitable[EventBatch]]
    watch: EventWatch
    shutdown: GracefulShutdown
    _low: int
    _sent: dict[int, datetime] = field(default_factory=dict)

    async def stream(self) -> AsyncIterator[bytes]:
        """Chunks of ``text/event-stream``: ``event``s with their ids, and ``end`` after the last event of an ended
        job.
        """
        async with self.watch.subscribe():
            async for chunk in guarded(self._follow()):
                yield chunk

    async def _follow(self) -> AsyncIterator[bytes]:
        sent_at = anyio.current_time()
        while not self.shutdown.is_stopping:
            mark = self.watch.mark()
            try:
                batch = await self.read_batch(self._low, _BATCH)
            except Unavailable:
                await anyio.sleep(_LOOK_S)
                continue
            fresh = [row for row in batch.rows if row.id not in self._sent]
            if fresh:
                sent_at = anyio.current_time()
                yield b"".join(_chunk(row) for row in fresh)
            self._advance_low_mark(batch)
            if len(batch.rows) == _BATCH:
                continue
            if batch.is_over:
                yield event("end", {"state": batch.state})
                return
            if anyio.current_time() - sent_at >= KEEP_ALIVE_S:
                sent_at = anyio.current_time()
                yield ALIVE
            await self.watch.wait(_LOOK_S, mark)

    def _advance_low_mark(self, batch: EventBatch) -> None:
        """Move the low mark past events so old that no smaller id can appear any more."""
        self._sent |= {row.id: row.at for row in batch.rows}
        is_full = len(batch.rows) == _BATCH  # then go on at any rate, or the same batch would come again
        for event_id in sorted(self._sent):
            if not is_full and batch.now - self._sent[event_id] < _MAX_TRANSACTION_TIME:
                break
            self._low = event_id
            del self._sent[event_id]


def _chunk(row: UntypedRow) -> bytes:
    return event("event", dict(row._mapping), event_id=str(row.id))  # noqa: SLF001 (public in spite of its name)


def watch_of(request: HTTPConnection, context: AppContext) -> EventWatch:
    """The event watch of this process."""
    state = request.app.state
    if not hasattr(state, "event_watch"):
        state.event_watch = EventWatch(context)
    watch: EventWatch = state.event_watch
    return watch


class EventWatch:
    """Wakes followers when there are new events. Polls only while there are followers."""

    def __init__(self, context: AppContext) -> None:
        self._context = context
        self._newest = -1
        self._changed = asyncio.Event()
        self._followers = 0
        self._stop = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def subscribe(self) -> AsyncIterator[None]:
        self._followers += 1
        if self._task is None:
            self._stop = asyncio.Event()
            self._task = asyncio.create_task(self._poll(self._stop))
        try:
            yield
        finally:
            self._followers -= 1
            if not self._followers and self._task is not None:
                task, self._task = self._task, None
                self._stop.set()
                # Not cancelled but awaited: a poll in progress holds a database connection.
                with CancelScope(shield=True):
                    await task

    def mark(self) -> asyncio.Event:
        """Get it before reading and pass it to ``wait``: then events in between are not missed."""
        return self._changed

    async def wait(self, timeout_s: float, since: asyncio.Event | None = None) -> bool:
        """True when an event was added since ``since`` (or since this call), false after ``timeout_s``."""
        return await _wait(since or self._changed, timeout_s)

    async def _poll(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            try:
                newest = await run_in_threadpool(self._read)
            except TrainmasterError:
                newest = self._newest  # the database is away: the followers wait with us
            if newest != self._newest:
                self._newest = newest
                self._changed.set()
                self._changed = asyncio.Event()
            await _wait(stop, _POLL_S)

    def _read(self) -> int:
        with self._context.read() as work:
            return newest_event_id(work.session)


async def _wait(event: asyncio.Event, timeout_s: float) -> bool:
    try:
        async with asyncio.timeout(timeout_s):
            return await event.wait()
    except TimeoutError:
        return False
