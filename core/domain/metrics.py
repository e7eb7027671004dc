"""Points of a series as columns, their compact form, and the limits of a job's metrics.

A column is an ``array``, so that a million points are three objects. The compact form delta-encodes steps and times,
transposes the bytes (byte shuffle), and compresses: evenly growing numbers take next to nothing, and similar bytes of
values (sign, exponent) are adjacent. Some 6 bytes a point for a noisy loss, instead of 24.
"""

from __future__ import annotations

import math
import zlib
from array import array
from collections.abc import Iterable, Sequence
from itertools import accumulate
from operator import sub
from typing import Final

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
_WIDTH: Final = 8  # bytes of each number, whole or real
_LEVEL: Final = 1  # of zlib: 9 saves a tenth more at ten times the work


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
