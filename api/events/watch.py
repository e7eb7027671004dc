"""One poller of the events table per process, shared by all followers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from anyio import CancelScope
from starlette.concurrency import run_in_threadpool
from starlette.requests import HTTPConnection

from api.app.unit_of_work import AppContext
from core.db.repositories.events import newest_event_id
from core.domain.errors import TrainmasterError

# Poll interval while there are followers; it bounds their delay.
_POLL_S: Final = 0.25


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
    async def following(self) -> AsyncIterator[None]:
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
