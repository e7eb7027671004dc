"""Reading metrics: series, their points, and charts of any window in a bounded number of buckets."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Final

from sqlalchemy import func, select, tuple_
from sqlalchemy.orm import Session

from core.db.engine import UntypedRow, UntypedSelect
from core.db.repositories.metrics.writes import CHUNK_POINTS, COARSE_POINTS, FINE_POINTS, gather
from core.db.tables import MetricChunk, MetricObject, MetricSegment, MetricSeries, MetricStream
from core.domain.errors import NotFound, Unavailable
from core.domain.metrics import (
    By,
    Digests,
    Points,
    digest_buckets,
    merge_buckets,
    sorted_points,
    unpack,
    unpack_digests,
)

_TRIES: Final = 5
_ORDER: Final = (
    MetricStream.owner_id,
    MetricStream.attempt,
    MetricStream.role,
    MetricStream.index,
    MetricSeries.name,
    MetricSeries.kind,
)
_SEGMENTS_AT_ONCE: Final = 100
_SERIES_AT_ONCE: Final = 500
# Windows of up to this many points per bucket are read point by point, larger ones from digests.
_EXACT: Final = 32
_EXACT_LIMIT: Final = 65_536


@dataclass(frozen=True, slots=True)
class SeriesFilter:
    """Which series of the owners; fields that are ``None`` or empty do not restrict."""

    attempt: int | None = None
    role: str | None = None
    index: int | None = None
    names: Sequence[str] = ()
    kind: str | None = None
    prefix: str = ""
    without_prefix: str = ""


@dataclass(frozen=True, slots=True)
class StoredSeries:
    """A series as of one moment. ``low`` and ``high``: of the finite values, ``None`` without any.

    ``count`` points in all (of objects: how many were written), of which ``chunked`` are in chunks and the rest in
    ``pending``. ``last_time``: milliseconds since 1970. ``stream_id``, ``compactions`` and ``last_segment``: the
    position from which a follower continues (:func:`newer_segments`).
    """

    id: int
    owner_id: str
    attempt: int
    role: str
    index: int
    name: str
    kind: str
    count: int
    last_step: int | None
    last_time: int | None
    last_value: float | None
    low: float | None
    high: float | None
    chunked: int
    pending: Points = field(repr=False)
    stream_id: int = 0
    compactions: int = 0
    last_segment: int = 0


@dataclass(frozen=True, slots=True)
class StreamMark:
    """A stream as of one moment; ``points`` changes whenever data is added."""

    id: int
    owner_id: str
    attempt: int
    role: str
    index: int
    points: int
    compactions: int


@dataclass(frozen=True, slots=True)
class ChartWindow:
    """An interval of steps, or of milliseconds since 1970; both ends inclusive, ``None``: open."""

    by: By = "step"
    low: int | None = None
    high: int | None = None

    def has(self, lowest: int, highest: int) -> bool:
        """Whether the window contains all of ``lowest`` to ``highest``."""
        return (self.low is None or self.low <= lowest) and (self.high is None or highest <= self.high)

    def misses(self, lowest: int, highest: int) -> bool:
        return (self.low is not None and highest < self.low) or (self.high is not None and lowest > self.high)


@dataclass(frozen=True, slots=True)
class ChartData:
    """A window's points if they are few, else digests of runs of points; ordered by step or time."""

    points: Points | None
    digests: Digests | None


def find_series(
    session: Session,
    owner_ids: Sequence[str],
    only: SeriesFilter = SeriesFilter(),
    *,
    limit: int,
    after: int | None = None,
) -> list[StoredSeries]:
    """A consistent snapshot of the jobs' series, by attempt, role, index and name, at most ``limit``.

    Args:
        after: the id of a series: only those after it.

    Raises:
        NotFound: the series ``after`` no longer exists.
        Unavailable: concurrent writes left no consistent snapshot; never observed.
    """
    for _ in range(_TRIES):
        before = _streams(session, owner_ids, only)
        found = _series_at(session, before, only, limit, after)
        if before.keys() and _compactions(session, list(before)) != {n: row.compactions for n, row in before.items()}:
            continue  # points were compacted meanwhile: some were read twice or not at all
        return found
    raise Unavailable("The metrics change too fast to be read; try again in a moment.", retry_after_s=1.0)


def find_names(
    session: Session, owner_id: str, only: SeriesFilter = SeriesFilter(), *, limit: int, after: int | None = None
) -> Sequence[UntypedRow]:
    """(name, kind, id) of the job's distinct series names over all replicas, by name and kind.

    Args:
        after: an id returned with a name: only names after it.

    Raises:
        NotFound: the series ``after`` no longer exists.
    """
    query = select(MetricSeries.name, MetricSeries.kind, func.min(MetricSeries.id).label("id"))
    query = query.join(MetricStream, MetricStream.id == MetricSeries.stream_id).where(MetricStream.owner_id == owner_id)
    query = _chosen(query, only)
    if after is not None:
        query = query.where(tuple_(MetricSeries.name, MetricSeries.kind) > _key_of(session, [owner_id], after)[-2:])
    query = query.group_by(MetricSeries.name, MetricSeries.kind).order_by(MetricSeries.name, MetricSeries.kind)
    return session.execute(query.limit(limit)).all()


def position_of(session: Session, owner_id: str) -> tuple[tuple[int, int], ...]:
    """(stream, points) of each stream of a job; changes whenever data is added."""
    query = select(MetricStream.id, MetricStream.points).where(MetricStream.owner_id == owner_id)
    return tuple((row[0], row[1]) for row in session.execute(query.order_by(MetricStream.id)))


def marks_of(session: Session, owner_ids: Sequence[str]) -> dict[str, tuple[StreamMark, ...]]:
    """The streams of many jobs; jobs without metrics are left out."""
    columns = (MetricStream.id, MetricStream.owner_id, MetricStream.attempt, MetricStream.role, MetricStream.index)
    query = select(*columns, MetricStream.points, MetricStream.compactions)
    query = query.where(MetricStream.owner_id.in_(owner_ids)).order_by(MetricStream.id)
    found: dict[str, tuple[StreamMark, ...]] = {}
    for row in session.execute(query):
        found[row.owner_id] = (*found.get(row.owner_id, ()), StreamMark(*row))
    return found


def newer_segments(
    session: Session, last: Mapping[int, int], series_ids: Collection[int], compactions: Mapping[int, int]
) -> dict[int, tuple[int, dict[int, Points]]]:
    """By stream: the number of its newest segment, and the points of the segments after ``last``, by series.

    Streams that were compacted since ``compactions`` are left out; read those by their count.
    """
    if not last:
        return {}
    query = (
        select(MetricSegment.stream_id, MetricSegment.id, MetricSegment.data)
        .where(MetricSegment.stream_id.in_(last), MetricSegment.id > min(last.values()))
        .order_by(MetricSegment.id)
    )
    found = {stream_id: (newest, dict[int, Points]()) for stream_id, newest in last.items()}
    for row in session.execute(query):
        newest, points = found[row.stream_id]
        if row.id > last[row.stream_id]:
            for series_id, new in gather([row.data], series_ids).items():
                points.setdefault(series_id, Points()).extend(new)
            found[row.stream_id] = (max(newest, row.id), points)
    now = _compactions(session, list(last))
    return {stream_id: newest for stream_id, newest in found.items() if now.get(stream_id) == compactions[stream_id]}


def read_points(session: Session, series: StoredSeries, start: int, limit: int) -> Points:
    """At most ``limit`` points from number ``start`` on, counted from 0 in order of arrival."""
    end = min(series.count, start + limit)
    found = Points()
    if start < series.chunked:
        first, last = start // CHUNK_POINTS, (min(end, series.chunked) - 1) // CHUNK_POINTS
        query = _chunks(series, MetricChunk.number, MetricChunk.data)
        for row in session.execute(query.where(MetricChunk.number.between(first, last))):
            base = row.number * CHUNK_POINTS
            upper = min(end, series.chunked) - base
            found.extend(unpack(row.data)[max(0, start - base) : max(0, upper)])
    if end > series.chunked:
        found.extend(series.pending[max(0, start - series.chunked) : end - series.chunked])
    return found


def read_chart(session: Session, series: StoredSeries, window: ChartWindow, buckets: int) -> ChartData:
    """The contents of ``window``: its points if at most ``buckets``, else at most ``buckets`` digests."""
    rows = [
        row
        for row in session.execute(
            _chunks(
                series,
                MetricChunk.number,
                MetricChunk.count.label("size"),
                MetricChunk.step_min,
                MetricChunk.step_max,
                MetricChunk.time_min,
                MetricChunk.time_max,
            )
        )
        if row.number * CHUNK_POINTS < series.chunked and not window.misses(*_span(row, window.by))
    ]
    pending = _in_window(series.pending, window)
    count = sum(row.size for row in rows) + len(pending)
    if count <= min(_EXACT_LIMIT, _EXACT * buckets):
        points = Points()
        for part in _points_of(session, series, [row.number for row in rows]):
            points.extend(_in_window(part, window))
        points.extend(pending)
        ordered = sorted_points(points, window.by)
        if len(ordered) <= buckets:
            return ChartData(ordered, None)
        return ChartData(None, digest_buckets(ordered, window.by, buckets))
    # One and a half per bucket: finer digests would show the same.
    coarse = 2 * (count // COARSE_POINTS) >= 3 * buckets
    return ChartData(None, merge_buckets(_digests(session, series, rows, window, is_coarse=coarse), window.by, buckets))


def values_since(session: Session, series: Sequence[StoredSeries], since: Mapping[int, int]) -> dict[int, list[float]]:
    """The finite values of each series since a time, both by the series' id; ``since``: milliseconds since 1970.

    A few statements for thousands of series; the values inside the window are held in memory.
    """
    found: dict[int, list[float]] = {entry.id: [] for entry in series if entry.id in since}
    chunked = {entry.id: entry.chunked for entry in series if entry.id in found}
    ids = list(found)
    for begin in range(0, len(ids), _SERIES_AT_ONCE):
        part = ids[begin : begin + _SERIES_AT_ONCE]
        query = (
            select(MetricChunk.series_id, MetricChunk.number, MetricChunk.data)
            .where(MetricChunk.series_id.in_(part), MetricChunk.time_max >= min(since[number] for number in part))
            .order_by(MetricChunk.series_id, MetricChunk.number)
        )
        with closing(session.execute(query, execution_options={"yield_per": _SEGMENTS_AT_ONCE})) as rows:
            for row in rows:
                points = unpack(row.data)[: max(0, chunked[row.series_id] - row.number * CHUNK_POINTS)]
                found[row.series_id] += _finite_since(points, since[row.series_id])
    for entry in series:
        if entry.id in found:
            found[entry.id] += _finite_since(entry.pending, since[entry.id])
    return found


def list_objects(session: Session, series: StoredSeries, *, after: int, limit: int) -> Sequence[UntypedRow]:
    """(id, step, time, media_type, data) of the series' objects with larger ids than ``after``, oldest first."""
    columns = (MetricObject.id, MetricObject.step, MetricObject.time, MetricObject.media_type, MetricObject.data)
    query = select(*columns).where(MetricObject.series_id == series.id, MetricObject.id > after)
    return session.execute(query.order_by(MetricObject.id).limit(limit)).all()


def _streams(session: Session, owner_ids: Sequence[str], only: SeriesFilter) -> dict[int, UntypedRow]:
    query = select(
        MetricStream.id,
        MetricStream.owner_id,
        MetricStream.attempt,
        MetricStream.role,
        MetricStream.index.label("replica_index"),
        MetricStream.compactions,
    ).where(MetricStream.owner_id.in_(owner_ids))
    for column, wanted in (
        (MetricStream.attempt, only.attempt),
        (MetricStream.role, only.role),
        (MetricStream.index, only.index),
    ):
        if wanted is not None:
            query = query.where(column == wanted)
    order = (MetricStream.owner_id, MetricStream.attempt, MetricStream.role, MetricStream.index)
    return {row.id: row for row in session.execute(query.order_by(*order))}


def _compactions(session: Session, streams: Sequence[int]) -> dict[int, int]:
    query = select(MetricStream.id, MetricStream.compactions).where(MetricStream.id.in_(streams))
    return {row[0]: row[1] for row in session.execute(query)}


def _chosen(query: UntypedSelect, only: SeriesFilter) -> UntypedSelect:
    """Restrict by the filter's names and kinds."""
    if only.names:
        query = query.where(MetricSeries.name.in_(only.names))
    if only.kind is not None:
        query = query.where(MetricSeries.kind == only.kind)
    if only.prefix:
        query = query.where(MetricSeries.name.startswith(only.prefix, autoescape=True))
    if only.without_prefix:
        query = query.where(~MetricSeries.name.startswith(only.without_prefix, autoescape=True))
    return query


def _key_of(session: Session, owner_ids: Sequence[str], series_id: int) -> tuple[Any, ...]:
    """The sort key of a series."""
    query = select(*_ORDER).join(MetricStream, MetricStream.id == MetricSeries.stream_id)
    row = session.execute(query.where(MetricSeries.id == series_id, MetricStream.owner_id.in_(owner_ids))).one_or_none()
    if row is None:
        raise NotFound("The metric at which this page begins no longer exists; begin with the first page.")
    return tuple(row)


def _series_at(
    session: Session, streams: dict[int, UntypedRow], only: SeriesFilter, limit: int, after: int | None
) -> list[StoredSeries]:
    if not streams:
        return []
    query = (
        select(MetricSeries)
        .join(MetricStream, MetricStream.id == MetricSeries.stream_id)
        .where(MetricSeries.stream_id.in_(streams))
    )
    if after is not None:
        owner_ids = {stream.owner_id for stream in streams.values()}
        query = query.where(tuple_(*_ORDER) > _key_of(session, list(owner_ids), after))
    query = _chosen(query, only).order_by(*_ORDER).limit(limit).execution_options(populate_existing=True)
    rows: list[MetricSeries] = list(session.execute(query).scalars())
    used = {row.stream_id for row in rows if row.kind == "scalar"}
    last: dict[int, int] = {}
    pending = pending_points(session, used, {row.id for row in rows}, last) if used else {}
    return [
        _series(row, streams[row.stream_id], pending.get(row.id, Points()), last.get(row.stream_id, 0)) for row in rows
    ]


def pending_points(
    session: Session, stream_ids: Collection[int], series_ids: Collection[int], last: dict[int, int] | None = None
) -> dict[int, Points]:
    """Points that are not in chunks yet, by series. ``last``: receives the newest segment's number of each stream."""
    query = select(MetricSegment.stream_id, MetricSegment.id, MetricSegment.data)
    query = query.where(MetricSegment.stream_id.in_(stream_ids)).order_by(MetricSegment.id)

    def data() -> Iterator[bytes]:
        for row in segments:
            if last is not None:
                last[row.stream_id] = row.id
            yield row.data

    # A few segments at a time: a large gang's would be a hundred megabytes.
    with closing(session.execute(query, execution_options={"yield_per": _SEGMENTS_AT_ONCE})) as segments:
        return gather(data(), series_ids)


def _series(row: MetricSeries, stream: UntypedRow, pending: Points, last_segment: int) -> StoredSeries:
    low, high = row.low, row.high
    last_step, last_time, last_value = row.last_step, row.last_time, row.last_value
    if row.kind == "scalar" and row.count and last_value is None:
        last_value = math.nan
    if pending:
        last_step, last_time, last_value = pending.steps[-1], pending.times[-1], pending.values[-1]
        low, high = pending.finite_range(low, high)
    return StoredSeries(
        id=row.id,
        owner_id=stream.owner_id,
        attempt=stream.attempt,
        role=stream.role,
        index=stream.replica_index,
        name=row.name,
        kind=row.kind,
        count=row.count + len(pending),
        last_step=last_step,
        last_time=last_time,
        last_value=last_value,
        low=low,
        high=high,
        chunked=row.count if row.kind == "scalar" else 0,
        pending=pending,
        stream_id=row.stream_id,
        compactions=stream.compactions,
        last_segment=last_segment,
    )


def _chunks(series: StoredSeries, *columns: Any) -> UntypedSelect:
    return select(*columns).where(MetricChunk.series_id == series.id).order_by(MetricChunk.number)


def _span(row: UntypedRow, by: By) -> tuple[int, int]:
    return (row.step_min, row.step_max) if by == "step" else (row.time_min, row.time_max)


def _points_of(session: Session, series: StoredSeries, numbers: Sequence[int]) -> Iterator[Points]:
    """The points of these chunks, without those added after ``series`` was read."""
    for start in range(0, len(numbers), 500):
        query = _chunks(series, MetricChunk.number, MetricChunk.data)
        for row in session.execute(query.where(MetricChunk.number.in_(numbers[start : start + 500]))):
            yield unpack(row.data)[: series.chunked - row.number * CHUNK_POINTS]


def _finite_since(points: Points, since: int) -> list[float]:
    return [
        value for at, value in zip(points.times, points.values, strict=True) if at >= since and math.isfinite(value)
    ]


def _in_window(points: Points, window: ChartWindow) -> Points:
    keys = points.steps if window.by == "step" else points.times
    if not keys or window.has(min(keys), max(keys)):
        return points
    return points.chosen([place for place, key in enumerate(keys) if window.has(key, key)])


def _digests(
    session: Session, series: StoredSeries, rows: Sequence[UntypedRow], window: ChartWindow, *, is_coarse: bool
) -> Digests:
    """Digests of the window. Chunks that cross its ends, or are not full, are read point by point."""
    whole = [
        row.number
        for row in rows
        if window.has(*_span(row, window.by)) and (row.number + 1) * CHUNK_POINTS <= series.chunked
    ]
    made = Digests()
    level = MetricChunk.coarse if is_coarse else MetricChunk.fine
    if whole:
        taken = set(whole)
        query = _chunks(series, MetricChunk.number).where(MetricChunk.number.between(whole[0], whole[-1]))
        for row in session.execute(query.add_columns(level.label("digests"))):
            if row.number in taken:
                made.extend(unpack_digests(row.digests))
    others = sorted({row.number for row in rows} - set(whole))
    length = COARSE_POINTS if is_coarse else FINE_POINTS
    for part in (*_points_of(session, series, others), series.pending):
        points = sorted_points(_in_window(part, window), window.by)
        for start in range(0, len(points), length):
            made.add(points[start : start + length])
    return made
