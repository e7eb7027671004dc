"""Statistics of one tensor's elements, in two passes over its bytes, and the distance of two tensors."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from core.inspection.layers import cosine, ratio
from core.inspection.model import Tensor, Unreadable
from core.inspection.values import Numbers, blocks

BINS: Final = 48


@dataclass(slots=True)
class _Sums:
    nans: int = 0
    infinities: int = 0
    zeros: int = 0
    count: int = 0  # finite elements
    low: float = math.inf
    high: float = -math.inf
    total: float = 0.0
    squares: float = 0.0
    counts: Any = field(default_factory=lambda: np.zeros(BINS, dtype=np.int64))

    def take(self, numbers: Numbers) -> Numbers:
        """Accumulate; returns the finite elements."""
        # A sum is finite if all terms are, except on overflow.
        if not math.isfinite(float(numbers.sum())):
            is_finite = np.isfinite(numbers)
            nans = int(np.isnan(numbers).sum())
            self.nans += nans
            self.infinities += numbers.size - int(is_finite.sum()) - nans
            numbers = numbers[is_finite]
        if numbers.size:
            self.count += numbers.size
            self.zeros += numbers.size - int(np.count_nonzero(numbers))
            self.low = min(self.low, float(numbers.min()))
            self.high = max(self.high, float(numbers.max()))
            self.total += float(numbers.sum())
            self.squares += float(np.dot(numbers, numbers))
        return numbers

    def sort(self, numbers: Numbers) -> None:
        """Count finite elements into the bins between minimum and maximum."""
        width = self.high - self.low
        if width > 0 and math.isfinite(BINS / width):
            places = ((numbers - self.low) * (BINS / width)).astype(np.intp)
            np.clip(places, 0, BINS - 1, out=places)  # the maximum is the last bin's upper edge
            self.counts += np.bincount(places, minlength=BINS)


def statistics(tensor: Tensor) -> dict[str, Any]:
    """The figures of one tensor as JSON; ``None`` for undefined ones.

    Min, max, mean and norm are those of the finite elements.
    """
    sums = _Sums()
    last: Numbers | None = None
    number = 0
    try:
        with np.errstate(all="ignore"):
            for number, block in enumerate(blocks(tensor), 1):  # noqa: B007 (the count is used below)
                last = sums.take(block)
            if number == 1 and last is not None:
                sums.sort(last)
            elif sums.low < sums.high:
                for block in blocks(tensor):
                    sums.sort(block[np.isfinite(block)] if sums.nans or sums.infinities else block)
    except Unreadable as error:
        return {"name": tensor.name, "note": error.sentence}
    return _figures(tensor, sums)


def _figures(tensor: Tensor, sums: _Sums) -> dict[str, Any]:
    every = sums.count + sums.nans + sums.infinities
    factor = tensor.repeats
    mean = sums.total / sums.count if sums.count else None
    spread = None
    if mean is not None:
        spread = math.sqrt(max(0.0, _plain(sums.squares / sums.count - mean * mean) or 0.0))
    histogram = None
    if sums.low < sums.high and sums.counts.any():
        histogram = {"low": sums.low, "high": sums.high, "counts": [int(count) * factor for count in sums.counts]}
    return {
        "name": tensor.name,
        "count": every * factor,
        "nan_count": sums.nans * factor,
        "infinite_count": sums.infinities * factor,
        "zero_share": sums.zeros / every if every else None,
        "minimum": sums.low if sums.count else None,
        "maximum": sums.high if sums.count else None,
        "mean": _plain(mean),
        "standard_deviation": _plain(spread),
        "norm": _plain(math.sqrt(sums.squares * factor)) if sums.count else (0.0 if not every else None),
        "histogram": histogram,
        "note": "Real and imaginary parts count as two elements." if tensor.dtype.startswith("complex") else "",
    }


def _plain(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


@dataclass(slots=True)
class _DistanceSums:
    """Sums over the elements of two tensors."""

    before: float = 0.0  # squares
    after: float = 0.0
    moved: float = 0.0
    product: float = 0.0
    largest: float = 0.0
    changed: int = 0
    unknown: int = 0  # either is NaN or infinite


def difference(before: Tensor, after: Tensor) -> dict[str, Any]:
    """The distance of two tensors of one shape, as JSON.

    ``relative_norm``: norm of the change over norm of the original; ``cosine``: of the angle between the two; each
    ``None`` if undefined, as for zeros. Elements of which either is NaN or infinite are counted in ``unknown_count``
    and left out of the rest.
    """
    sums = _DistanceSums()
    if before.repeats > 1 or after.repeats > 1 or before.is_ordered != after.is_ordered:
        sentence = "The elements of the two are stored in different orders, which are not compared here."
        return {"change": "unread", "note": sentence}
    try:
        with np.errstate(all="ignore"):
            for one, other in _pairs(blocks(before), blocks(after)):
                _take(sums, one, other)
    except Unreadable as error:
        return {"change": "unread", "note": error.sentence}
    is_same = sums.changed == 0 and sums.unknown == 0
    return {
        "change": "same" if is_same else "moved",
        "norm_before": _root(sums.before),
        "norm_after": _root(sums.after),
        "norm_moved": _root(sums.moved),
        "relative_norm": 0.0 if not sums.moved else ratio(math.sqrt(sums.moved), math.sqrt(sums.before)),
        "cosine": cosine(sums.product, sums.before, sums.after),
        "largest_move": _plain(sums.largest),
        "changed_count": sums.changed,
        "unknown_count": sums.unknown,
        "product": _plain(sums.product),
        "note": "",
    }


def _take(sums: _DistanceSums, one: Numbers, other: Numbers) -> None:
    moved = other - one
    if not math.isfinite(float(moved.sum())):
        is_known = np.isfinite(one) & np.isfinite(other)
        sums.unknown += int(one.size - is_known.sum())
        one, other, moved = one[is_known], other[is_known], moved[is_known]
    if not one.size:
        return
    sums.before += float(np.dot(one, one))
    sums.after += float(np.dot(other, other))
    sums.product += float(np.dot(one, other))
    sums.moved += float(np.dot(moved, moved))
    sums.changed += int(np.count_nonzero(moved))
    sums.largest = max(sums.largest, float(np.abs(moved).max()))


def _pairs(ones: Iterator[Numbers], others: Iterator[Numbers]) -> Iterator[tuple[Numbers, Numbers]]:
    """Aligned chunks of both, however each is chunked."""
    one = other = np.zeros(0)
    while True:
        try:
            while not one.size:
                one = next(ones)
            while not other.size:
                other = next(others)
        except StopIteration:
            return  # each checks at its end that it matches its shape
        size = min(one.size, other.size)
        yield one[:size], other[:size]
        one, other = one[size:], other[size:]


def _root(squares: float) -> float | None:
    return math.sqrt(squares) if math.isfinite(squares) else None
