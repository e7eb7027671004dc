"""Digests: summaries of runs of points, so that a chart of a million points reads some thousand numbers.

A digest of a run of points keeps its smallest and largest value, its first and last, the sum, the number of points, and
the number of non-finite ones. Digests merge into digests of longer runs without loss.
"""

from __future__ import annotations

import math
import zlib
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from operator import eq, le
from typing import Any, Final, Literal

from core.domain.metrics.points import Points

By = Literal["step", "time"]

_WHOLE: Final = ("count", "step_min", "step_max", "time_min", "time_max", "nan", "positive", "negative")
_REAL: Final = ("low", "high", "first", "last", "total")


class Digests:
    """Digests as columns, in order.

    ``count`` points with steps from ``step_min`` to ``step_max`` and times from ``time_min`` to ``time_max``
    (milliseconds); ``low``, ``high`` and ``total`` of the finite values among them (NaN, NaN and 0 when there is none);
    ``first`` and ``last`` as they came; ``nan``, ``positive`` and ``negative``: how many are NaN or infinite.
    """

    __slots__ = (*_WHOLE, *_REAL)

    count: array[int]
    step_min: array[int]
    step_max: array[int]
    time_min: array[int]
    time_max: array[int]
    nan: array[int]
    positive: array[int]
    negative: array[int]
    low: array[float]
    high: array[float]
    first: array[float]
    last: array[float]
    total: array[float]

    def __init__(self) -> None:
        for name in _WHOLE:
            setattr(self, name, array("q"))
        for name in _REAL:
            setattr(self, name, array("d"))

    def __len__(self) -> int:
        return len(self.count)

    def extend(self, others: Digests) -> None:
        for name in self.__slots__:
            getattr(self, name).extend(getattr(others, name))

    def chosen(self, places: Sequence[int]) -> Digests:
        """The digests at ``places``, in that order."""
        made = Digests()
        for name in self.__slots__:
            column = getattr(self, name)
            getattr(made, name).extend(map(column.__getitem__, places))
        return made

    def pack(self) -> bytes:
        return zlib.compress(b"".join(getattr(self, name).tobytes() for name in self.__slots__), 1)

    def lows_of(self, by: By) -> array[int]:
        return self.step_min if by == "step" else self.time_min

    def add(self, points: Points) -> None:
        """Append a digest of ``points``, of which there is at least one."""
        values: Any = points.values
        finite = values
        if not all(map(math.isfinite, values)):
            finite = [value for value in values if math.isfinite(value)]
        self.count.append(len(values))
        self.step_min.append(min(points.steps))
        self.step_max.append(max(points.steps))
        self.time_min.append(min(points.times))
        self.time_max.append(max(points.times))
        is_plain = finite is values
        self.nan.append(0 if is_plain else sum(map(math.isnan, values)))
        self.positive.append(0 if is_plain else values.count(math.inf))
        self.negative.append(0 if is_plain else values.count(-math.inf))
        self.low.append(min(finite, default=math.nan))
        self.high.append(max(finite, default=math.nan))
        self.total.append(sum(finite))
        self.first.append(values[0])
        self.last.append(values[-1])

    def merge(self, cuts: Iterable[tuple[int, int]]) -> Digests:
        """One merged digest for each non-empty range (start, end) of ``cuts``."""
        made = Digests()
        parts = [slice(start, end) for start, end in cuts]
        for name in ("count", "total"):
            column = getattr(self, name)
            getattr(made, name).extend([sum(column[part]) for part in parts])
        for name in ("nan", "positive", "negative"):
            column = getattr(self, name)
            # Nearly always there is none.
            getattr(made, name).extend([sum(column[part]) for part in parts] if any(column) else [0] * len(parts))
        for name in ("step_min", "time_min"):
            column = getattr(self, name)
            getattr(made, name).extend([min(column[part]) for part in parts])
        for name in ("step_max", "time_max"):
            column = getattr(self, name)
            getattr(made, name).extend([max(column[part]) for part in parts])
        least, largest = (min, max) if all(map(eq, self.low, self.low)) else (_least, _largest)
        made.low.extend([least(self.low[part]) for part in parts])
        made.high.extend([largest(self.high[part]) for part in parts])
        made.first.extend([self.first[part.start] for part in parts])
        made.last.extend([self.last[part.stop - 1] for part in parts])
        return made


def unpack_digests(data: bytes) -> Digests:
    """The inverse of ``pack``."""
    raw = memoryview(zlib.decompress(data))
    made = Digests()
    size = len(raw) // len(Digests.__slots__)
    for number, name in enumerate(Digests.__slots__):
        getattr(made, name).frombytes(raw[number * size : (number + 1) * size])
    return made


def digest_runs(points: Points, length: int) -> Digests:
    """A digest of every ``length`` points; the last one of the remainder."""
    made = Digests()
    for start in range(0, len(points), length):
        made.add(points[start : start + length])
    return made


def sorted_points(points: Points, by: By) -> Points:
    """``points`` by step or time; stable."""
    keys = points.steps if by == "step" else points.times
    if _grows(keys):
        return points
    return points.chosen(sorted(range(len(keys)), key=keys.__getitem__))


def digest_buckets(points: Points, by: By, buckets: int) -> Digests:
    """``points``, sorted by ``by``, in at most ``buckets`` runs of equal width in steps or time."""
    made = Digests()
    keys = points.steps if by == "step" else points.times
    for start, end in _cuts(keys, buckets):
        made.add(points[start:end])
    return made


def merge_buckets(digests: Digests, by: By, buckets: int) -> Digests:
    """``digests`` merged into at most ``buckets`` of equal width. A digest that crosses an edge belongs to the bucket
    of its start, so that a bucket reports the steps that are really in it.
    """
    keys = digests.lows_of(by)
    if not _grows(keys):
        digests = digests.chosen(sorted(range(len(keys)), key=keys.__getitem__))
        keys = digests.lows_of(by)
    return digests.merge(_cuts(keys, buckets))


def _cuts(keys: Sequence[int], buckets: int) -> Iterable[tuple[int, int]]:
    """(start, end) of each non-empty bucket. ``keys`` grow."""
    if not keys:
        return
    lowest, width = keys[0], keys[-1] - keys[0] + 1
    start = 0
    for number in range(1, buckets + 1):
        end = bisect_left(keys, lowest + -(-width * number // buckets), start)
        if end > start:
            yield start, end
            start = end


def _grows(keys: Sequence[int]) -> bool:
    return all(map(le, keys, keys[1:]))


def _least(values: array[float]) -> float:
    return min((value for value in values if value == value), default=math.nan)  # noqa: PLR0124 (NaN is unlike itself)


def _largest(values: array[float]) -> float:
    return max((value for value in values if value == value), default=math.nan)  # noqa: PLR0124 (the same)
