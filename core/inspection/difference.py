"""Difference of two checkpoints: added, removed and reshaped tensors, and the distance of the others."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from core.inspection.layers import cosine, ratio
from core.inspection.model import Tensor, Unreadable
from core.inspection.values import Numbers, blocks


@dataclass(slots=True)
class _Sums:
    before: float = 0.0  # squares
    after: float = 0.0
    moved: float = 0.0
    product: float = 0.0
    largest: float = 0.0
    changed: int = 0
    unknown: int = 0  # either is NaN or infinite


def difference(before: Tensor, after: Tensor, check: Callable[[], None] = lambda: None) -> dict[str, Any]:
    """The distance of two tensors of one shape, as JSON.

    ``relative_norm``: norm of the change over norm of the original; ``cosine``: of the angle between the two; each
    ``None`` if
    undefined, as for zeros. Elements of which either is NaN or infinite are counted in ``unknown_count`` and left out
    of the rest.
    """
    sums = _Sums()
    if before.repeats > 1 or after.repeats > 1 or before.is_ordered != after.is_ordered:
        sentence = "The elements of the two are stored in different orders, which are not compared here."
        return {"change": "unread", "note": sentence}
    try:
        with np.errstate(all="ignore"):
            for one, other in _pairs(blocks(before), blocks(after)):
                check()
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
        "largest_move": sums.largest if math.isfinite(sums.largest) else None,
        "changed_count": sums.changed,
        "unknown_count": sums.unknown,
        "product": sums.product if math.isfinite(sums.product) else None,
        "note": "",
    }


def _take(sums: _Sums, one: Numbers, other: Numbers) -> None:
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
