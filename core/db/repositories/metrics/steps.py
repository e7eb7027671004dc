"""Metric values at given steps, such as those of checkpoints, in a few statements for any number of steps."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence
from typing import Final

from sqlalchemy import select, tuple_
from sqlalchemy.orm import Session
from trainmaster.spec.enums import role_order

from core.db.engine import UntypedRow
from core.db.repositories.metrics.reads import pending_points
from core.db.tables import MetricChunk, MetricSeries, MetricStream
from core.domain.metrics import Points, unpack

_STREAMS_AT_ONCE: Final = 64
_CHUNKS_AT_ONCE: Final = 100


def values_at(
    session: Session,
    owner_id: str,
    steps: Sequence[int],
    names: Sequence[str],
    *,
    replicas: int | None = None,
    chunks: int | None = None,
) -> dict[int, dict[str, float]]:
    """The finite values of ``names`` that the job reported at each of ``steps``, by step.

    If several processes reported a step, the newest attempt wins; within it, the chief before workers, and the first of
    a role before the others.

    Args:
        replicas: only the first so many replicas of each role; ``None``: all.
        chunks: read at most about so many chunks for a few dozen replicas; beyond that the last names are left out of
            the whole result. ``None``: no limit.
    """
    values: dict[tuple[int, str], float] = {}
    wanted = list(names)
    streams = _by_weight(session, owner_id, replicas)
    for start in range(0, len(streams), _STREAMS_AT_ONCE):
        left = sorted({step for step in steps if any((step, name) not in values for name in wanted)})
        if not left or not wanted:
            break
        page = streams[start : start + _STREAMS_AT_ONCE]
        series = session.execute(
            select(MetricSeries.id, MetricSeries.stream_id, MetricSeries.name).where(
                MetricSeries.stream_id.in_(page), MetricSeries.name.in_(wanted), MetricSeries.kind == "scalar"
            )
        ).all()
        # Segments first, then chunks: points compacted meanwhile are read twice, but never missed.
        waiting = pending_points(session, {row.stream_id for row in series}, {row.id for row in series})
        places = _places(session, series, left)
        if chunks is not None:
            _cut(wanted, series, places, chunks)
        found = _values_in_chunks(session, places, set(left))
        weight = {stream: place for place, stream in enumerate(page)}
        for row in sorted(series, key=lambda row: weight[row.stream_id]):
            of_series = found.get(row.id, {})
            of_series.update(_at(waiting.get(row.id, Points()), set(left)))
            for step, value in of_series.items():
                values.setdefault((step, row.name), value)
    every: dict[int, dict[str, float]] = {step: {} for step in steps}
    for step, of_step in every.items():
        for name in wanted:
            value = values.get((step, name), math.nan)
            if math.isfinite(value):
                of_step[name] = value
    return every


def _by_weight(session: Session, owner_id: str, replicas: int | None) -> list[int]:
    """The job's streams, in order of precedence."""
    query = select(MetricStream.id, MetricStream.attempt, MetricStream.role, MetricStream.index.label("place"))
    rows = session.execute(query.where(MetricStream.owner_id == owner_id)).all()
    rows = sorted(rows, key=lambda row: (-row.attempt, role_order(row.role), row.place))
    heard: Counter[tuple[int, str]] = Counter()
    found = []
    for row in rows:
        heard[row.attempt, row.role] += 1
        if replicas is None or heard[row.attempt, row.role] <= replicas:
            found.append(row.id)
    return found


def _places(session: Session, series: Sequence[UntypedRow], steps: Sequence[int]) -> list[tuple[int, int]]:
    """(series, number) of the chunks that may hold one of ``steps``, which are sorted."""
    rows = session.execute(
        select(MetricChunk.series_id, MetricChunk.number, MetricChunk.step_min, MetricChunk.step_max)
        .where(
            MetricChunk.series_id.in_([row.id for row in series]),
            MetricChunk.step_min <= steps[-1],
            MetricChunk.step_max >= steps[0],
        )
        .order_by(MetricChunk.series_id, MetricChunk.number)
    )
    return [
        (row.series_id, row.number)
        for row in rows
        if bisect_left(steps, row.step_min) < bisect_right(steps, row.step_max)
    ]


def _cut(names: list[str], series: Sequence[UntypedRow], places: list[tuple[int, int]], limit: int) -> None:
    """Drop the last names and their chunks, until at most ``limit`` chunks remain."""
    name_of = {row.id: row.name for row in series}
    count = Counter(name_of[number] for number, _ in places)
    while names and count.total() > limit:
        del count[names.pop()]
    places[:] = [place for place in places if name_of[place[0]] in count]


def _values_in_chunks(
    session: Session, places: Sequence[tuple[int, int]], steps: set[int]
) -> dict[int, dict[int, float]]:
    """The last value at each of ``steps``, by series and step."""
    found: dict[int, dict[int, float]] = {}
    for start in range(0, len(places), _CHUNKS_AT_ONCE):
        rows = session.execute(
            select(MetricChunk.series_id, MetricChunk.data)
            .where(tuple_(MetricChunk.series_id, MetricChunk.number).in_(places[start : start + _CHUNKS_AT_ONCE]))
            .order_by(MetricChunk.series_id, MetricChunk.number)
        )
        for row in rows:
            found.setdefault(row.series_id, {}).update(_at(unpack(row.data), steps))
    return found


def _at(points: Points, steps: set[int]) -> dict[int, float]:
    return {step: value for step, value in zip(points.steps, points.values, strict=True) if step in steps}
