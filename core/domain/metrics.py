"""Numeric series of trainings: points as columns, their compact form, digests (summaries of points), and limits.

A column is an ``array``, so that a million points are three objects. The compact form delta-encodes steps and times,
transposes the bytes (byte shuffle), and compresses: evenly growing numbers take next to nothing, and similar bytes of
values (sign, exponent) are adjacent. Some 6 bytes a point for a noisy loss, instead of 24.
"""

from __future__ import annotations

import math
import zlib
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from operator import eq, le, sub
from typing import Any, Final, Literal

NAME_LIMIT: Final = 250  # characters, as MLflow's: https://mlflow.org/docs/latest/rest-api.html
STEP_LIMIT: Final = 2**53  # every language's JSON keeps these exactly, and differences of two fit into 64 bits
TIME_LIMIT_MS: Final = 253_402_300_800_000  # the year 10000
SERIES_OF_REPLICA: Final = 5_000
SERIES_OF_JOB: Final = 50_000
POINTS_OF_JOB: Final = 200_000_000  # 1.5 GB or so
OBJECTS_OF_SERIES: Final = 100  # histograms, images, texts
OBJECT_BYTES: Final = 512 * 1024
OBJECT_BYTES_OF_JOB: Final = 256 * 2**20
BINS_LIMIT: Final = 1024
TEXT_LIMIT: Final = 64 * 1024  # bytes

# Prefix of the platform's own series, such as machine metrics.
SYSTEM: Final = "system/"
# A GPU below this is idle: even a training that always waits for its data has a higher utilisation.
IDLE_GPU_PERCENT: Final = 5.0
_GPU_UTILISATION: Final = ("system/gpu.", "/utilisation_percent")
_WIDTH: Final = 8  # bytes of each number, whole or real
_LEVEL: Final = 1  # of zlib: 9 saves a tenth more at ten times the work

By = Literal["step", "time"]

_WHOLE: Final = ("count", "step_min", "step_max", "time_min", "time_max", "nan", "positive", "negative")
_REAL: Final = ("low", "high", "first", "last", "total")


def name_fault(name: str) -> str | None:
    """Why ``name`` is no valid series name; ``None``: it is valid."""
    if not name or len(name) > NAME_LIMIT:
        return f"a metric's name has 1 to {NAME_LIMIT} characters, not {len(name):,}"
    if not name.isprintable():
        return (
            f"the metric's name {name[:60]!r} has characters that cannot be shown; use letters, digits, spaces "
            "and . _ / -"
        )
    return None


class Points:
    """Points in order of arrival. ``steps``: integers; ``times``: milliseconds since 1970; ``values``: any float, NaN
    and infinities included. All of one length.
    """

    __slots__ = ("steps", "times", "values")

    def __init__(self, steps: Iterable[int] = (), times: Iterable[int] = (), values: Iterable[float] = ()) -> None:
        """Raises ``OverflowError`` or ``TypeError`` for non-64-bit numbers, ``ValueError`` for unequal lengths."""
        self.steps = array("q", steps)
        self.times = array("q", times)
        self.values = array("d", values)
        if not len(self.steps) == len(self.times) == len(self.values):
            raise ValueError("steps, times and values differ in length")

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, part: slice) -> Points:
        return _of(self.steps[part], self.times[part], self.values[part])

    def extend(self, others: Points) -> None:
        self.steps.extend(others.steps)
        self.times.extend(others.times)
        self.values.extend(others.values)

    def chosen(self, places: Sequence[int]) -> Points:
        """The points at ``places``, in that order."""
        return Points(
            map(self.steps.__getitem__, places),
            map(self.times.__getitem__, places),
            map(self.values.__getitem__, places),
        )

    def finite_range(self, low: float | None, high: float | None) -> tuple[float | None, float | None]:
        """The smallest and largest of the finite values, ``low`` and ``high``; ``None``: there is none."""
        finite: Iterable[float] = self.values
        if not all(map(math.isfinite, self.values)):
            finite = [value for value in self.values if math.isfinite(value)]
        lows, highs = min(finite, default=low), max(finite, default=high)
        if lows is None or highs is None:
            return low, high
        return lows if low is None else min(low, lows), highs if high is None else max(high, highs)

    def pack(self) -> bytes:
        """The compact form; ``unpack`` gives exactly these points again, each NaN as a NaN."""
        columns = (_differences(self.steps), _differences(self.times), self.values)
        return zlib.compress(b"".join(_by_weight(column.tobytes()) for column in columns), _LEVEL)

    def to_bytes(self) -> bytes:
        """24 bytes a point, fast to write and read: for data that is compacted soon."""
        return self.steps.tobytes() + self.times.tobytes() + self.values.tobytes()


def count_gpu_samples(series: Mapping[str, Points]) -> tuple[int, int]:
    """Samples of GPUs' utilisation among ``series``, and how many of them show an idle GPU."""
    prefix, suffix = _GPU_UTILISATION
    found = [points.values for name, points in series.items() if name.startswith(prefix) and name.endswith(suffix)]
    return sum(map(len, found)), sum(value < IDLE_GPU_PERCENT for values in found for value in values)


def unpack(data: bytes) -> Points:
    """The inverse of ``pack``."""
    raw = zlib.decompress(data)
    size = len(raw) // 3
    steps, times, values = array("q"), array("q"), array("d")
    steps.frombytes(_in_turn(raw[:size]))
    times.frombytes(_in_turn(raw[size : 2 * size]))
    values.frombytes(_in_turn(raw[2 * size :]))
    return _of(array("q", accumulate(steps)), array("q", accumulate(times)), values)


def from_bytes(data: memoryview | bytes) -> Points:
    """The inverse of ``to_bytes``."""
    size = len(data) // 3
    steps, times, values = array("q"), array("q"), array("d")
    steps.frombytes(data[:size])
    times.frombytes(data[size : 2 * size])
    values.frombytes(data[2 * size :])
    return _of(steps, times, values)


def _of(steps: array[int], times: array[int], values: array[float]) -> Points:
    made = Points.__new__(Points)
    made.steps, made.times, made.values = steps, times, values
    return made


def _differences(column: array[int]) -> array[int]:
    made = array("q", column[:1])
    made.extend(map(sub, column[1:], column))
    return made


def _by_weight(data: bytes) -> bytes:
    return b"".join(data[start::_WIDTH] for start in range(_WIDTH))


def _in_turn(data: bytes) -> bytes:
    count = len(data) // _WIDTH
    made = bytearray(len(data))
    for start in range(_WIDTH):
        made[start::_WIDTH] = data[start * count : (start + 1) * count]
    return bytes(made)


class Digests:
    """Summaries of runs of points as columns, in order: a chart of a million points reads some thousand numbers.

    Digests merge into digests of longer runs without loss.

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
