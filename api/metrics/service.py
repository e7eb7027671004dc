"""Charts, lists and objects of the metrics of one or many jobs, and the stream of a job's new points.

The stream has server-sent events, and is resumable at each event.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, cast

import anyio
import orjson
from sqlalchemy import select
from trainmaster.wire.base import Page
from trainmaster.wire.metrics import (
    MetricKind,
    MetricName,
    MetricObjectView,
    MetricSuggestion,
    MetricSuggestions,
)

from api.app.graceful_shutdown import GracefulShutdown
from api.app.unit_of_work import AppContext, UnitOfWork
from api.auth import JobAccess
from api.http.paging import cut, make_cursor, read_cursor
from api.http.sse import ALIVE, KEEP_ALIVE_S, event, guarded
from api.metrics.columns import Plain, chart_fields, point_fields, series_fields, stream_cursor, write_stream_cursor
from core.db.repositories.metrics.reads import (
    ChartWindow,
    SeriesFilter,
    StoredSeries,
    find_names,
    find_series,
    list_objects,
    position_of,
    read_chart,
    read_points,
)
from core.db.tables import Attempt, MetricObject, MetricSeries, MetricStream, Replica
from core.domain.errors import InvalidRequest, NotFound, Unavailable
from core.domain.jobs.states import JobState
from core.domain.metrics import SYSTEM
from core.domain.studies.metric_sources import SUGGESTIONS_KEY

# Of one response: series, and buckets of all series together.
_SERIES_LIMIT: Final = 200
_BUCKET_LIMIT: Final = 100_000
_BUCKETS_MIN: Final = 50
_OBJECT_LIMIT_BYTES: Final = 4 * 2**20  # of histograms and texts in one answer
# Poll interval: a quarter of the two seconds within which a point must be on the chart.
_POLL_S: Final = 0.5
_EVENT_POINTS: Final = 20_000  # of one event
_POLL_POINTS: Final = 100_000  # of one poll: a client that was away for long gets the rest with the next poll, at once


@dataclass(frozen=True, slots=True)
class ChartQuery:
    """``buckets``: the maximum per series; fewer if there are very many series."""

    only: SeriesFilter
    window: ChartWindow
    buckets: int


def list_metrics(
    context: AppContext, access: JobAccess, only: SeriesFilter, *, limit: int, cursor: str | None
) -> Plain:
    """A page of the job's series, by attempt, role, index and name."""
    after = read_cursor(cursor, (int,))[0] if cursor is not None else None
    with context.read() as work:
        job = access.load(work.session)
        page, has_more = cut(find_series(work.session, [job.id], only, limit=limit + 1, after=after), limit)
    return {
        "items": [series_fields(series, series.owner_id) for series in page],
        "next_cursor": make_cursor(page[-1].id) if has_more else None,
    }


def list_names(
    context: AppContext, access: JobAccess, only: SeriesFilter, *, limit: int, cursor: str | None
) -> Page[MetricName]:
    """A page of the names of the job's series."""
    after = read_cursor(cursor, (int,))[0] if cursor is not None else None
    with context.read() as work:
        job = access.load(work.session)
        page, has_more = cut(find_names(work.session, job.id, only, limit=limit + 1, after=after), limit)
    return Page(
        items=[MetricName(name=row.name, kind=row.kind) for row in page],
        next_cursor=make_cursor(page[-1].id) if has_more else None,
    )


def suggest_patterns(context: AppContext, access: JobAccess) -> MetricSuggestions:
    """Patterns for lines of the job's log, as the replicas of its last attempt reported them at their end."""
    with context.read() as work:
        job = access.load(work.session)
        has_metrics = find_names(work.session, job.id, SeriesFilter(without_prefix=SYSTEM), limit=1)
        if has_metrics or not JobState(job.state).is_terminal:
            return MetricSuggestions()
        query = select(Replica.progress).join(Attempt, Attempt.id == Replica.attempt_id)
        query = query.where(Attempt.job_id == job.id, Attempt.number == job.attempt_count)
        reported = work.session.scalars(query.order_by(Replica.role, Replica.index)).all()
    # The replicas of a job print the same lines: those of the first are enough.
    found = ((progress or {}).get(SUGGESTIONS_KEY) for progress in reported)
    first: list[Any] = next((entries for entries in found if entries), [])
    return MetricSuggestions(suggestions=[MetricSuggestion.model_validate(entry) for entry in first])


def chart(context: AppContext, accesses: Sequence[JobAccess], query: ChartQuery) -> Plain:
    """The series of these jobs that match the filter, each in the window."""
    with context.read() as work:
        jobs = {access.load(work.session).id: None for access in accesses}
        found = find_series(work.session, list(jobs), query.only, limit=_SERIES_LIMIT + 1)
        shown = found[:_SERIES_LIMIT]
        buckets = max(_BUCKETS_MIN, min(query.buckets, _BUCKET_LIMIT // max(1, len(shown))))
        series = [
            {
                **series_fields(item, item.owner_id),
                **chart_fields(read_chart(work.session, item, query.window, buckets)),
            }
            for item in shown
        ]
    return {"series": series, "is_cut": len(found) > _SERIES_LIMIT, "cursor": write_stream_cursor(shown)}


def objects(
    context: AppContext, access: JobAccess, only: SeriesFilter, *, limit: int, cursor: str | None
) -> dict[str, Any]:
    """A page of one series' histograms, images or texts, oldest first.

    Raises:
        NotFound: there is no such series.
        InvalidRequest: several series match; or the cursor is invalid.
    """
    after = read_cursor(cursor, (int,))[0] if cursor is not None else 0
    with context.read() as work:
        job = access.load(work.session)
        found = [series for series in find_series(work.session, [job.id], only, limit=100) if series.kind != "scalar"]
        if not found:
            raise NotFound(
                "There are no histograms, images or texts of this name; `GET …/metrics` lists what there is."
            )
        series = found[-1]
        if any((other.role, other.index, other.kind) != (series.role, series.index, series.kind) for other in found):
            raise InvalidRequest("Several series have this name: state role, index and kind.", field="name")
        rows = list_objects(work.session, series, after=after, limit=limit + 1)
    items: list[MetricObjectView] = []
    size = 0
    for row in rows[:limit]:
        size += 0 if series.kind == "image" else len(row.data)
        if size > _OBJECT_LIMIT_BYTES and items:
            break
        items.append(_object(row, job.id, series))
    is_last = len(items) == len(rows)
    return {"items": items, "next_cursor": None if is_last else make_cursor(items[-1].id)}


def image(context: AppContext, access: JobAccess, object_id: int) -> tuple[str, bytes]:
    """An image's media type and bytes. Raises ``NotFound``."""
    with context.read() as work:
        job = access.load(work.session)
        found = work.session.get(MetricObject, object_id)
        if found is None or not found.media_type.startswith("image/") or not _is_of(work, found, job.id):
            raise NotFound(f"The job has no image {object_id}; the oldest are deleted when there are many.")
        return found.media_type, found.data


def _is_of(work: UnitOfWork, found: MetricObject, job_id: str) -> bool:
    series = work.session.get(MetricSeries, found.series_id)
    stream = work.session.get(MetricStream, series.stream_id) if series is not None else None
    return stream is not None and stream.owner_id == job_id


def _object(row: Any, job_id: str, series: StoredSeries) -> MetricObjectView:
    data: Any = None
    if series.kind == "histogram":
        data = orjson.loads(row.data)
    elif series.kind == "text":
        data = row.data.decode("utf-8", "replace")
    return MetricObjectView(
        id=row.id,
        step=row.step,
        time_s=row.time / 1000,
        kind=cast("MetricKind", series.kind),
        media_type=row.media_type,
        data=data,
        url=f"/api/v1/jobs/{job_id}/metrics/images/{row.id}" if series.kind == "image" else None,
    )


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
            found = find_series(work.session, [self.job_id], self.only, limit=_SERIES_LIMIT)
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
                    points = read_points(work.session, series, start, _EVENT_POINTS)
                    start += len(points)
                    room -= len(points)
                    self.counts[series.id] = start
                    data = {**series_fields(series, series.owner_id), "count": start, "points": point_fields(points)}
                    chunks.append(event("points", data, event_id=stream_cursor(self.counts)))
            self._has_more = room <= 0
            self._position = () if self._has_more else position
        return chunks
