"""Tar archives of files on a volume, created while they are sent; their size and any range of them are known before."""

from __future__ import annotations

import os
import tarfile
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from starlette.concurrency import iterate_in_threadpool

from api.http.ranges import ByteRange
from core.domain.errors import TrainmasterError
from core.storage.tree import Tree

_CHUNK: Final = 2**20


@dataclass(frozen=True, slots=True)
class TarMember:
    """A file at ``path`` on the volume, named ``name`` in the archive."""

    name: str
    path: str
    size_bytes: int
    mtime: int = 0

    def header(self) -> bytes:
        entry = tarfile.TarInfo(self.name)
        entry.size, entry.mtime, entry.mode = self.size_bytes, self.mtime, 0o644
        return entry.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


@dataclass(frozen=True, slots=True)
class _Piece:
    """Bytes of the archive: a header or padding (``data``), or a file's content (``path``)."""

    size: int
    data: bytes = b""
    path: str = ""


class TarArchive:
    def __init__(self, tree: Tree, members: Iterable[TarMember]) -> None:
        self._tree = tree
        self._pieces = list(_pieces(members))
        self.size_bytes = sum(piece.size for piece in self._pieces)

    async def stream(self, chosen: ByteRange) -> AsyncIterator[bytes]:
        async for chunk in iterate_in_threadpool(self._chunks(chosen)):
            yield chunk

    def _chunks(self, chosen: ByteRange) -> Iterator[bytes]:
        at = 0
        for piece in self._pieces:
            start, end = max(chosen.start - at, 0), min(chosen.end - at, piece.size)
            at += piece.size
            if start >= end:
                continue
            if piece.path:
                yield from self._content(piece.path, start, end)
            else:
                yield piece.data[start:end]

    def _content(self, path: str, start: int, end: int) -> Iterator[bytes]:
        # Errors abort the connection, so that the client does not take the archive for complete.
        try:
            fd = self._tree.open_file(path)
        except TrainmasterError as error:
            raise ConnectionAbortedError("a file was deleted while it was sent") from error
        try:
            while start < end:
                data = os.pread(fd, min(_CHUNK, end - start), start)
                if not data:
                    raise ConnectionAbortedError("a file became shorter while it was sent")
                start += len(data)
                yield data
        finally:
            os.close(fd)


def _pieces(members: Iterable[TarMember]) -> Iterator[_Piece]:
    for member in members:
        header, padding = member.header(), -member.size_bytes % tarfile.BLOCKSIZE
        yield _Piece(len(header), header)
        yield _Piece(member.size_bytes, path=member.path)
        yield _Piece(padding, b"\0" * padding)
    end = b"\0" * (2 * tarfile.BLOCKSIZE)
    yield _Piece(len(end), end)
