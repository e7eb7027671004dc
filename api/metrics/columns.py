"""Metrics as plain JSON values, without a pydantic model for each number, and a stream's position as text.

The position is the SSE id: ``1a:3k,1b:3k``, series ids and point counts in base 36.
"""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Iterable, Mapping
from typing import Any, Final

import orjson

from core.db.repositories.metrics.reads import ChartData, StoredSeries
from core.domain.errors import InvalidRequest
from core.domain.metrics import Digests, Points

Plain = dict[str, Any]
_STREAM_CURSOR: Final = re.compile(r"^$|^[0-9a-z]{1,12}:[0-9a-z]{1,12}(,[0-9a-z]{1,12}:[0-9a-z]{1,12}){0,399}$")
_BASE_36: Final = "0123456789abcdefghijklmnopqrstuvwxyz"


def _plain_value(value: float) -> float | str:
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
        "last_value": None if series.last_value is None else _plain_value(series.last_value),
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
        plain = [_plain_value(value) for value in plain]
    return plain


def _or_null(values: Iterable[float]) -> list[float | None]:
    return [value if math.isfinite(value) else None for value in values]


def write_stream_cursor(series: Iterable[StoredSeries]) -> str:
    return stream_cursor({item.id: item.count for item in series})


def stream_cursor(counts: Mapping[int, int]) -> str:
    return ",".join(f"{_in_base_36(number)}:{_in_base_36(count)}" for number, count in sorted(counts.items()))


def read_stream_cursor(text: str) -> dict[int, int]:
    """Number of points that the client has, by series. Raises ``InvalidRequest`` for an invalid cursor."""
    if not _STREAM_CURSOR.match(text):
        raise InvalidRequest(
            "Last-Event-ID is not an id of this stream; omit it to start from the beginning.", field="last-event-id"
        )
    pairs = [part.split(":") for part in text.split(",") if part]
    return {int(number, 36): int(count, 36) for number, count in pairs}


def _in_base_36(number: int) -> str:
    digits = ""
    while True:
        number, rest = divmod(number, 36)
        digits = _BASE_36[rest] + digits
        if not number:
            return digits
