"""Decoding of elements to numbers."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from core.inspection.model import ITEM_BYTES, Tensor, Unreadable

if TYPE_CHECKING:
    from numpy.typing import NDArray

Numbers: TypeAlias = "NDArray[np.float64]"

# Elements per block, 4 MiB as float64: several passes are fastest within a processor's cache.
BLOCK: Final = 2**19
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


def blocks(tensor: Tensor) -> Iterator[Numbers]:
    """All elements as float64, at most ``BLOCK`` at once; a complex element as real and imaginary part.

    Raises:
        Unreadable: they cannot be read or decoded.
    """
    if tensor.data is None or tensor.dtype not in ITEM_BYTES:
        raise Unreadable(tensor.note or "Its elements cannot be read.")
    item = ITEM_BYTES[tensor.dtype]
    step = BLOCK * item
    rest = b""
    seen = 0
    for chunk in tensor.data.chunks():
        seen += len(chunk)
        data = rest + bytes(chunk) if rest else chunk
        whole = len(data) - len(data) % item
        for at in range(0, whole, step):
            yield decode(data[at : min(at + step, whole)], tensor.dtype, is_big_endian=tensor.is_big_endian)
        rest = bytes(data[whole:])
    if rest or seen * tensor.repeats != item * tensor.count:
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
