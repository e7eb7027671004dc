"""Metrics of replicas from wire format to points and objects; unusable input becomes a sentence."""

from __future__ import annotations

import base64
import binascii
import itertools
import math
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Final

import orjson
from trainmaster.wire.metrics import NewObject, NewPoints

from core.db.repositories.metrics import writes
from core.domain.metrics.points import BINS_LIMIT, OBJECT_BYTES, STEP_LIMIT, TEXT_LIMIT, TIME_LIMIT_MS, Points

_IMAGES: Final = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
)


class MetricRejected(ValueError):
    """One unusable series or object; the sentence says why."""


def columns_of(series: Iterable[NewPoints], now: datetime, faults: list[str]) -> dict[str, Points]:
    """Points by name; unusable series are reported in ``faults``."""
    found: dict[str, Points] = {}
    for entry in series:
        try:
            points = _points(entry, now)
        except MetricRejected as refusal:
            faults.append(f"metric {entry.name[:60]!r}: {refusal}")
            continue
        known = found.get(entry.name)
        if known is None:
            found[entry.name] = points
        else:
            known.extend(points)
    return found


def objects_of(objects: Iterable[NewObject], now: datetime, faults: list[str]) -> list[writes.NewMetricObject]:
    """Objects in storage form; unusable ones are reported in ``faults``."""
    found = []
    for entry in objects:
        try:
            media_type, data = _content(entry)
            step, time = _step(entry.step), _milliseconds(entry.time_s, now)
        except MetricRejected as refusal:
            faults.append(f"{entry.kind} {entry.name[:60]!r}: {refusal}")
            continue
        found.append(writes.NewMetricObject(entry.name, entry.kind, step, time, media_type, data))
    return found


def _points(entry: NewPoints, now: datetime) -> Points:
    count = len(entry.values)
    if len(entry.steps) != count or (entry.times_s is not None and len(entry.times_s) != count):
        raise MetricRejected("steps, values and times_s differ in length")
    if not count:
        return Points()
    if not -STEP_LIMIT <= min(entry.steps) <= max(entry.steps) <= STEP_LIMIT:
        raise MetricRejected("a step is beyond 2^53")
    if entry.times_s is None:
        times: Sequence[int] = [_milliseconds(None, now)] * count
    else:
        # NaN compares false with everything, so it would pass a range check.
        if not (min(entry.times_s) >= 0 and max(entry.times_s) * 1000 < TIME_LIMIT_MS) or any(
            map(math.isnan, entry.times_s)
        ):
            raise MetricRejected("times_s are seconds since 1970")
        times = [int(time * 1000) for time in entry.times_s]
    return Points(entry.steps, times, entry.values)


def _step(step: int) -> int:
    if not -STEP_LIMIT <= step <= STEP_LIMIT:
        raise MetricRejected("its step is beyond 2^53")
    return step


def _milliseconds(time_s: float | None, now: datetime) -> int:
    if time_s is None:
        return int(now.timestamp() * 1000)
    if not 0 <= time_s * 1000 < TIME_LIMIT_MS:
        raise MetricRejected("time_s is seconds since 1970")
    return int(time_s * 1000)


def _content(entry: NewObject) -> tuple[str, bytes]:
    """The stored media type and bytes."""
    match entry.kind:
        case "histogram":
            return "application/json", orjson.dumps(_histogram(entry.data))
        case "text":
            if not isinstance(entry.data, str):
                raise MetricRejected("data is the text")
            data = entry.data.encode("utf-8", "replace")
            if len(data) > TEXT_LIMIT:
                data = data[:TEXT_LIMIT].decode("utf-8", "ignore").encode() + " … (cut)".encode()
            return "text/plain", data
        case "image":
            return _image(entry.data)


def _image(data: Any) -> tuple[str, bytes]:
    try:
        content = base64.b64decode(data, validate=True)
    except (TypeError, ValueError, binascii.Error):
        raise MetricRejected("data is not base64") from None
    if len(content) > OBJECT_BYTES:
        raise MetricRejected(f"images have at most {OBJECT_BYTES // 1024} KiB; make it smaller")
    for start, media_type in _IMAGES:
        if content.startswith(start):
            return media_type, content
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return "image/webp", content
    raise MetricRejected("it is no PNG, JPEG, GIF or WebP")


def _histogram(data: Any) -> dict[str, list[float]]:
    edges, counts = (data.get("edges"), data.get("counts")) if isinstance(data, dict) else (None, None)
    if not isinstance(edges, list) or not isinstance(counts, list) or len(edges) != len(counts) + 1:
        raise MetricRejected('data is {"edges": [n + 1 numbers], "counts": [n numbers]}')
    if not 1 <= len(counts) <= BINS_LIMIT:
        raise MetricRejected(f"it has {len(counts)} bins, and 1 to {BINS_LIMIT} are kept")
    for number in (*edges, *counts):
        if isinstance(number, bool) or not isinstance(number, int | float) or not math.isfinite(number):
            raise MetricRejected("edges and counts are finite numbers")
    if any(low > high for low, high in itertools.pairwise(edges)) or min(counts) < 0:
        raise MetricRejected("edges grow, and no count is below zero")
    return {"edges": [float(edge) for edge in edges], "counts": [float(count) for count in counts]}
