"""Non-contiguous tensors: transposed, sliced, expanded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Final

from core.inspection.model import CHUNK_BYTES, ElementSource, Unreadable

# The largest part of a storage that is reordered in memory.
HELD_BYTES: Final = 64 * 2**20


def spread(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, bool, int]:
    """The number of elements from the first to the last one, whether they are contiguous and in order, and how often
    each of
    them counts.
    """
    if not all(shape):
        return 0, True, 1
    repeats = 1
    extent = 1
    for size, stride in zip(shape, strides, strict=True):
        extent += (size - 1) * stride
        if stride == 0:
            repeats *= size
    expected = 1
    is_dense = True
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size != 1 and stride != expected:
            is_dense = False
        expected *= size
    return extent, is_dense, repeats


@dataclass(frozen=True, slots=True)
class Strided:
    """``source`` holds ``extent`` elements; those of the tensor are given in row-major order. Elements repeated along a
    dimension of stride 0 are given once.
    """

    source: ElementSource
    extent: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    item_bytes: int

    def chunks(self) -> Iterator[bytes]:
        import numpy as np
        from numpy.lib.stride_tricks import as_strided

        if self.extent * self.item_bytes > HELD_BYTES:
            raise Unreadable("It is a view whose elements lie apart in the file, too large to be put in order here.")
        held = np.frombuffer(b"".join(self.source.chunks()), dtype=np.dtype(f"V{self.item_bytes}"))
        if prod(size for size, stride in zip(self.shape, self.strides, strict=True) if stride) > self.extent:
            raise Unreadable("It is a view that shows the same elements in several places.")
        axes = [(size, stride) for size, stride in zip(self.shape, self.strides, strict=True) if stride or size == 1]
        shape = tuple(size for size, _ in axes)
        view = as_strided(held, shape, tuple(stride * self.item_bytes for _, stride in axes), writeable=False)
        flat = view.reshape(-1).tobytes()
        for at in range(0, len(flat), CHUNK_BYTES):
            yield flat[at : at + CHUNK_BYTES]
