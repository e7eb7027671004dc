"""Metrics as plain JSON values, without a pydantic model for each number."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable
from typing import Any

import orjson

from core.db.repositories.metrics.reads import ChartData, StoredSeries
from core.domain.metrics.digests import Digests
from core.domain.metrics.points import Points

Plain = dict[str, Any]


def plain_value(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def series_fields(series: StoredSeries, job: str) -> Plain:
    """The fields of a ``MetricView``."""
    return {
        "job": job,
        "attempt": series.attempt,
        "role": series.role,
        "index": series.index,
        "name": series.name,
        "kind": series.kind,
        "count": series.count,
        "last_step": series.last_step,
        "last_time_s": None if series.last_time is None else series.last_time / 1000,
        "last_value": None if series.last_value is None else plain_value(series.last_value),
        "low": series.low,
        "high": series.high,
    }


def chart_fields(chart: ChartData) -> Plain:
    """The fields of a ``ChartSeries``: all points, or buckets if there are too many."""
    return {
        "points": None if chart.points is None else point_fields(chart.points),
        "buckets": None if chart.digests is None else _bucket_fields(chart.digests),
    }


def point_fields(points: Points) -> Plain:
    return {
        "steps": points.steps.tolist(),
        "times_s": _seconds(points.times),
        "values": _values(points.values),
    }


def as_json(answer: Plain) -> bytes:
    return orjson.dumps(answer)


def _bucket_fields(digests: Digests) -> Plain:
    finite = [
        count - nan - positive - negative
        for count, nan, positive, negative in zip(
            digests.count, digests.nan, digests.positive, digests.negative, strict=True
        )
    ]
    return {
        "steps": digests.step_min.tolist(),
        "steps_to": digests.step_max.tolist(),
        "times_s": _seconds(digests.time_min),
        "times_to_s": _seconds(digests.time_max),
        "counts": digests.count.tolist(),
        "lows": _or_null(digests.low),
        "highs": _or_null(digests.high),
        "means": _or_null(
            total / count if count else math.nan for total, count in zip(digests.total, finite, strict=True)
        ),
        "firsts": _values(digests.first),
        "lasts": _values(digests.last),
        "not_finite": [count - known for count, known in zip(digests.count, finite, strict=True)],
    }


def _seconds(times: array[int]) -> list[float]:
    return [time / 1000 for time in times]


def _values(values: array[float]) -> list[Any]:
    plain: list[Any] = values.tolist()
    if not all(map(math.isfinite, plain)):
        plain = [plain_value(value) for value in plain]
    return plain


def _or_null(values: Iterable[float]) -> list[float | None]:
    return [value if math.isfinite(value) else None for value in values]
