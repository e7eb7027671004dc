"""Sharded tensors: joining the pieces of a tensor."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import prod
from typing import Final

from core.inspection.model import CHUNK_BYTES, ElementSource, Unreadable

BUFFER_BYTES: Final = 64 * 2**20


@dataclass(frozen=True, slots=True)
class Concatenated:
    """The pieces one after another."""

    pieces: Sequence[ElementSource]

    def chunks(self) -> Iterator[bytes | memoryview]:
        for piece in self.pieces:
            yield from piece.chunks()


@dataclass(frozen=True, slots=True)
class Interleaved:
    """Row ``r`` is the next row of piece ``r % n``. ``row_bytes``: size of a row."""

    pieces: Sequence[ElementSource]
    rows: int
    row_bytes: int

    def chunks(self) -> Iterator[bytes]:
        readers = [_Rows(piece, self.row_bytes) for piece in self.pieces]
        rows: list[bytes] = []
        size = 0
        for row in range(self.rows):
            rows.append(readers[row % len(readers)].next())
            size += self.row_bytes
            if size >= CHUNK_BYTES:
                yield b"".join(rows)
                rows, size = [], 0
        yield b"".join(rows)


class _Rows:
    def __init__(self, data: ElementSource, row_bytes: int) -> None:
        self._chunks = data.chunks()
        self._row_bytes = row_bytes
        self._buffer = b""
        self._at = 0

    def next(self) -> bytes:
        while len(self._buffer) - self._at < self._row_bytes:
            chunk = next(self._chunks, None)
            if chunk is None:
                raise Unreadable("A piece of it has fewer rows than it should have.")
            self._buffer = self._buffer[self._at :] + bytes(chunk)
            self._at = 0
        self._at += self._row_bytes
        return self._buffer[self._at - self._row_bytes : self._at]


@dataclass(frozen=True, slots=True)
class Block:
    """A box of a larger tensor: ``offsets`` is its first corner, ``shape`` its extent."""

    offsets: tuple[int, ...]
    shape: tuple[int, ...]
    data: ElementSource


def joined(shape: tuple[int, ...], blocks: Sequence[Block], item_bytes: int) -> tuple[ElementSource, bool]:
    """The blocks as one tensor, and whether its elements are in row-major order.

    Raises:
        Unreadable: the blocks do not tile the shape.
    """
    blocks = sorted(blocks, key=lambda block: block.offsets)
    # Blocks stored by several ranks count once.
    blocks = [next(same) for _, same in groupby(blocks, key=lambda block: (block.offsets, block.shape))]
    for block in blocks:
        fits = len(block.shape) == len(block.offsets) == len(shape) and all(
            at >= 0 and at + size <= whole for at, size, whole in zip(block.offsets, block.shape, shape, strict=True)
        )
        if not fits:
            raise Unreadable("A piece of it lies outside of its shape; the checkpoint is damaged.")
    if sum(prod(block.shape) for block in blocks) != prod(shape):
        raise Unreadable("Pieces of it are missing or overlap; the checkpoint is incomplete.")
    if all(block.shape[1:] == shape[1:] for block in blocks) or len(blocks) == 1:
        return Concatenated([block.data for block in blocks]), True
    if prod(shape) * item_bytes <= BUFFER_BYTES:
        return _Boxes(shape, tuple(blocks), item_bytes), True
    return Concatenated([block.data for block in blocks]), False


@dataclass(frozen=True, slots=True)
class _Boxes:
    """Multi-dimensional blocks, assembled in memory."""

    shape: tuple[int, ...]
    blocks: tuple[Block, ...]
    item_bytes: int

    def chunks(self) -> Iterator[bytes]:
        import numpy as np

        kind = np.dtype(f"V{self.item_bytes}")
        whole = np.zeros(self.shape, dtype=kind)
        for block in self.blocks:
            place = tuple(slice(at, at + size) for at, size in zip(block.offsets, block.shape, strict=True))
            data = b"".join(block.data.chunks())
            if len(data) != prod(block.shape) * self.item_bytes:
                raise Unreadable("A piece of it is shorter than it should be.")
            whole[place] = np.frombuffer(data, dtype=kind).reshape(block.shape)
        flat = whole.tobytes()
        for at in range(0, len(flat), CHUNK_BYTES):
            yield flat[at : at + CHUNK_BYTES]
