"""Statistics of one tensor's decoded elements, in two passes over its bytes, and the distance of two tensors."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from core.inspection.layers import cosine, ratio
from core.inspection.model import ITEM_BYTES, Tensor, Unreadable

if TYPE_CHECKING:
    from numpy.typing import NDArray


Numbers: TypeAlias = "NDArray[np.float64]"

# Elements per block, 4 MiB as float64: several passes are fastest within a processor's cache.
_BLOCK: Final = 2**19
_PLAIN: Final = {
    "float64": "f8", "float32": "f4", "float16": "f2", "complex128": "f8", "complex64": "f4",
    "int64": "i8", "int32": "i4", "int16": "i2", "int8": "i1",
    "uint64": "u8", "uint32": "u4", "uint16": "u2", "uint8": "u1", "bool": "u1",
}  # fmt: skip
# Exponent and mantissa bits, bias, and meaning of the topmost codes: OCP 8-bit Floating Point Specification, and the
# "fnuz" formats of https://arxiv.org/abs/2206.02915.
_EIGHT_BITS: Final = {
    "float8_e4m3fn": (4, 3, 7, "nan at all ones"),
    "float8_e5m2": (5, 2, 15, "as IEEE"),
    "float8_e4m3fnuz": (4, 3, 8, "nan at minus zero"),
    "float8_e5m2fnuz": (5, 2, 16, "nan at minus zero"),
}
BINS: Final = 48


def blocks(tensor: Tensor) -> Iterator[Numbers]:
    """All elements as float64, at most ``_BLOCK`` at once; a complex element as real and imaginary part.

    Raises:
        Unreadable: they cannot be read or decoded.
    """
    if tensor.data is None or tensor.dtype not in ITEM_BYTES:
        raise Unreadable(tensor.note or "Its elements cannot be read.")
    item = ITEM_BYTES[tensor.dtype]
    step = _BLOCK * item
    rest = b""
    byte_count = 0
    for chunk in tensor.data.chunks():
        byte_count += len(chunk)
        data = rest + bytes(chunk) if rest else chunk
        whole = len(data) - len(data) % item
        for at in range(0, whole, step):
            yield decode(data[at : min(at + step, whole)], tensor.dtype, is_big_endian=tensor.is_big_endian)
        rest = bytes(data[whole:])
    if rest or byte_count * tensor.repeats != item * tensor.count:
        raise Unreadable("It has fewer or more elements in the file than its shape says; the file is damaged.")


def decode(data: bytes | memoryview, dtype: str, *, is_big_endian: bool = False) -> Numbers:
    """The elements of ``data`` as float64."""
    order = ">" if is_big_endian else "<"
    if dtype in _PLAIN:
        return np.frombuffer(data, dtype=order + _PLAIN[dtype]).astype(np.float64)
    if dtype == "bfloat16":
        halves = np.frombuffer(data, dtype=f"{order}u2").astype(np.uint32)
        return (halves << 16).view(np.float32).astype(np.float64)
    return _table(dtype)[np.frombuffer(data, dtype=np.uint8)]


@lru_cache(maxsize=8)
def _table(dtype: str) -> Numbers:
    codes: NDArray[Any] = np.arange(256)
    if dtype == "float8_e8m0fnu":
        powers = np.exp2(codes - 127.0)
        powers[255] = np.nan
        return powers
    exponent_bits, mantissa_bits, bias, top = _EIGHT_BITS[dtype]
    sign = np.where(codes & 0x80, -1.0, 1.0)
    exponent = (codes >> mantissa_bits) & (2**exponent_bits - 1)
    mantissa = codes & (2**mantissa_bits - 1)
    fraction = mantissa / 2.0**mantissa_bits
    found = sign * np.where(
        exponent == 0, fraction * 2.0 ** (1 - bias), (1 + fraction) * np.exp2(exponent - float(bias))
    )
    match top:
        case "nan at all ones":
            found[(codes & 0x7F) == 0x7F] = np.nan
        case "as IEEE":
            is_top = exponent == 2**exponent_bits - 1
            found[is_top & (mantissa == 0)] *= np.inf
            found[is_top & (mantissa != 0)] = np.nan
        case _:
            found[0x80] = np.nan
    return np.asarray(found, dtype=np.float64)


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
            for left, right in _pairs(blocks(before), blocks(after)):
                _take(sums, left, right)
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


def _take(sums: _DistanceSums, before: Numbers, after: Numbers) -> None:
    moved = after - before
    if not math.isfinite(float(moved.sum())):
        is_known = np.isfinite(before) & np.isfinite(after)
        sums.unknown += int(before.size - is_known.sum())
        before, after, moved = before[is_known], after[is_known], moved[is_known]
    if not before.size:
        return
    sums.before += float(np.dot(before, before))
    sums.after += float(np.dot(after, after))
    sums.product += float(np.dot(before, after))
    sums.moved += float(np.dot(moved, moved))
    sums.changed += int(np.count_nonzero(moved))
    sums.largest = max(sums.largest, float(np.abs(moved).max()))


def _pairs(lefts: Iterator[Numbers], rights: Iterator[Numbers]) -> Iterator[tuple[Numbers, Numbers]]:
    """Aligned chunks of both, however each is chunked."""
    left = right = np.zeros(0)
    while True:
        try:
            while not left.size:
                left = next(lefts)
            while not right.size:
                right = next(rights)
        except StopIteration:
            return  # each checks at its end that it matches its shape
        size = min(left.size, right.size)
        yield left[:size], right[:size]
        left, right = left[size:], right[size:]


def _root(squares: float) -> float | None:
    return math.sqrt(squares) if math.isfinite(squares) else None
