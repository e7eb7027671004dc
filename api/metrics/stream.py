"""New points as server-sent events, resumable at each."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final

import anyio

from api.app.graceful_shutdown import GracefulShutdown
from api.app.unit_of_work import AppContext
from api.http.sse import ALIVE, KEEP_ALIVE_S, event, guarded
from api.metrics.columns import point_fields, series_fields
from api.metrics.cursor import of_counts
from api.metrics.service import SERIES_LIMIT
from core.db.repositories.metrics.reads import SeriesFilter, find_series, position_of, read_points
from core.domain.errors import Unavailable

# Seconds between two looks: a point is on the chart within half of the two seconds that it may take.
_LOOK_S: Final = 0.5
_BATCH_POINTS: Final = 20_000  # of one event
_LOOK_POINTS: Final = 100_000  # of one look: who comes back after long gets the rest by the next, at once


@dataclass(slots=True)
class MetricStreamer:
    """One client's stream.

    ``look``: whether the caller may still read, and whether the job has ended; raises when they may not. ``seen``: points
    that the client has, by series; ``None``: it wants only what comes from now on. ``run``: calls
    a function in a thread.
    """

    context: AppContext
    job_id: str
    only: SeriesFilter
    look: Callable[[], Awaitable[bool]]
    run: Callable[..., Awaitable[Any]]
    shutdown: GracefulShutdown
    seen: dict[int, int] | None
    _position: tuple[tuple[int, int], ...] = field(default=(), init=False)
    _has_more: bool = field(default=False, init=False)

    def events(self) -> AsyncIterator[bytes]:
        """Chunks of the stream. Ends with ``end`` when the job is over, when the server goes down, or with ``error``."""
        return guarded(self._events())

    async def _events(self) -> AsyncIterator[bytes]:
        spoke_at = anyio.current_time()
        while not self.shutdown.is_stopping:
            try:
                is_over = await self.look()
                chunks = await self.run(self._read)
            except Unavailable:
                self._has_more = is_over = False
                chunks = []  # the database is away: wait with the client
            for chunk in chunks:
                spoke_at = anyio.current_time()
                yield chunk
            if is_over and not self._has_more:
                yield event("end", {})
                return
            if anyio.current_time() - spoke_at >= KEEP_ALIVE_S:
                spoke_at = anyio.current_time()
                yield ALIVE
            if not self._has_more:
                await anyio.sleep(_LOOK_S)

    def _read(self) -> list[bytes]:
        """What is new as events. Blocks."""
        with self.context.read() as work:
            position = position_of(work.session, self.job_id)
            if self.seen is not None and position == self._position:
                return []
            self._has_more = False
            found = find_series(work.session, [self.job_id], self.only, limit=SERIES_LIMIT)
            found = [one for one in found if one.kind == "scalar"]
            if self.seen is None:
                self.seen = {one.id: one.count for one in found}
                self._position = position
                return [b"id: " + of_counts(self.seen).encode() + b"\n\n"]
            chunks = []
            room = _LOOK_POINTS
            for one in found:
                start = self.seen.get(one.id, 0)
                while start < one.count and room > 0:
                    points = read_points(work.session, one, start, _BATCH_POINTS)
                    start += len(points)
                    room -= len(points)
                    self.seen[one.id] = start
                    data = {**series_fields(one, one.owner_id), "count": start, "points": point_fields(points)}
                    chunks.append(event("points", data, event_id=of_counts(self.seen)))
            self._has_more = room <= 0
            self._position = () if self._has_more else position
        return chunks
