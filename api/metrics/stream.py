"""New points of a job's series as server-sent events, resumable at each event."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final

import anyio

from api.app.graceful_shutdown import GracefulShutdown
from api.app.unit_of_work import AppContext
from api.http.sse import ALIVE, KEEP_ALIVE_S, event, guarded
from api.metrics.columns import point_fields, series_fields, stream_cursor
from api.metrics.service import SERIES_LIMIT
from core.db.repositories.metrics.reads import SeriesFilter, find_series, position_of, read_points
from core.domain.errors import Unavailable

# Poll interval: a quarter of the two seconds within which a point must be on the chart.
_POLL_S: Final = 0.5
_BATCH_POINTS: Final = 20_000  # of one event
_POLL_POINTS: Final = 100_000  # of one poll: a client that was away for long gets the rest with the next poll, at once


@dataclass(slots=True)
class MetricStreamer:
    """One client's stream.

    ``check_is_over``: whether the job has ended; raises when the caller has lost access. ``counts``: the number of
    points that the client has, by series; ``None``: only points from now on. ``run``: calls a function in a thread.
    """

    context: AppContext
    job_id: str
    only: SeriesFilter
    check_is_over: Callable[[], Awaitable[bool]]
    run: Callable[..., Awaitable[Any]]
    shutdown: GracefulShutdown
    counts: dict[int, int] | None
    _position: tuple[tuple[int, int], ...] = field(default=(), init=False)
    _has_more: bool = field(default=False, init=False)

    def events(self) -> AsyncIterator[bytes]:
        """Chunks of the stream. Ends with ``end`` when the job has ended, when the server shuts down, or with
        ``error``.
        """
        return guarded(self._events())

    async def _events(self) -> AsyncIterator[bytes]:
        sent_at = anyio.current_time()
        while not self.shutdown.is_stopping:
            try:
                is_over = await self.check_is_over()
                chunks = await self.run(self._read)
            except Unavailable:
                self._has_more = is_over = False
                chunks = []  # the database is away: wait with the client
            for chunk in chunks:
                sent_at = anyio.current_time()
                yield chunk
            if is_over and not self._has_more:
                yield event("end", {})
                return
            if anyio.current_time() - sent_at >= KEEP_ALIVE_S:
                sent_at = anyio.current_time()
                yield ALIVE
            if not self._has_more:
                await anyio.sleep(_POLL_S)

    def _read(self) -> list[bytes]:
        """The new points as events. Blocks."""
        with self.context.read() as work:
            position = position_of(work.session, self.job_id)
            if self.counts is not None and position == self._position:
                return []
            self._has_more = False
            found = find_series(work.session, [self.job_id], self.only, limit=SERIES_LIMIT)
            found = [series for series in found if series.kind == "scalar"]
            if self.counts is None:
                self.counts = {series.id: series.count for series in found}
                self._position = position
                return [b"id: " + stream_cursor(self.counts).encode() + b"\n\n"]
            chunks = []
            room = _POLL_POINTS
            for series in found:
                start = self.counts.get(series.id, 0)
                while start < series.count and room > 0:
                    points = read_points(work.session, series, start, _BATCH_POINTS)
                    start += len(points)
                    room -= len(points)
                    self.counts[series.id] = start
                    data = {**series_fields(series, series.owner_id), "count": start, "points": point_fields(points)}
                    chunks.append(event("points", data, event_id=stream_cursor(self.counts)))
            self._has_more = room <= 0
            self._position = () if self._has_more else position
        return chunks
