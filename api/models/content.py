"""Downloads of a version's files: one file, or all as a tar, both with ranges: the files are immutable."""

from __future__ import annotations

import os
import tarfile
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from starlette.concurrency import iterate_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from api.files.service import media_type_of
from api.http.ranges import ByteRange, OpenFileResponse, attachment, parse_range
from core.domain.errors import TrainmasterError
from core.registry.versions import ReadyFile, ReadyVersion
from core.storage.registry import KnownFile
from core.storage.tree import Tree

_CHUNK: Final = 2**20


def file_answer(tree: Tree, file: ReadyFile) -> Response:
    name = file.path.rpartition("/")[2]
    headers = {"X-Content-SHA256": file.known.sha256}
    return OpenFileResponse(tree.open_file(file.path), media_type=media_type_of(name), name=name, headers=headers)


def archive_answer(tree: Tree, version: ReadyVersion, request: Request) -> Response:
    """All files as a tar in a folder with the model's name; always the same bytes, so that downloads can be resumed."""
    above = f"{version.model}-{version.version}"
    pieces = list(_pieces(version, above))
    size = sum(piece.size for piece in pieces)
    tag = f'"{version.digest}"'
    headers = {
        "Accept-Ranges": "bytes",
        "Content-Disposition": attachment(f"{above}.tar"),
        "ETag": tag,
        "Cache-Control": "private, no-cache",
        "X-Content-Type-Options": "nosniff",
    }
    wanted: ByteRange | None = None
    if "range" in request.headers and request.headers.get("if-range", tag) == tag:
        wanted = parse_range(request.headers["range"], size)
    chosen = wanted or ByteRange(0, size)
    headers["Content-Length"] = str(chosen.length)
    if wanted is not None:
        headers["Content-Range"] = f"bytes {chosen.start}-{chosen.end - 1}/{size}"
    status = 200 if wanted is None else 206
    if request.method == "HEAD":
        return Response(None, status, headers, media_type="application/x-tar")
    return StreamingResponse(_sent(tree, pieces, chosen), status, headers, media_type="application/x-tar")


@dataclass(frozen=True, slots=True)
class _Piece:
    """Bytes of the archive: a header or padding (``data``), or a file's content (``path``)."""

    size: int
    data: bytes = b""
    path: str = ""


def _pieces(version: ReadyVersion, above: str) -> Iterator[_Piece]:
    mtime = 0  # modification times of files in the registry have no meaning
    for file in version.manifest:
        head = _head(f"{above}/{file.path}", file, mtime)
        yield _Piece(len(head), head)
        yield _Piece(file.size_bytes, path=f"{version.path}/{file.path}")
        yield _Piece(_padding(file.size_bytes), b"\0" * _padding(file.size_bytes))
    end = b"\0" * (2 * tarfile.BLOCKSIZE)
    yield _Piece(len(end), end)


def _head(name: str, file: KnownFile, mtime: int) -> bytes:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mtime, entry.mode = file.size_bytes, mtime, 0o644
    return entry.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


def _padding(size: int) -> int:
    return -size % tarfile.BLOCKSIZE


async def _sent(tree: Tree, pieces: Sequence[_Piece], chosen: ByteRange) -> AsyncIterator[bytes]:
    async for chunk in iterate_in_threadpool(_chunks(tree, pieces, chosen)):
        yield chunk


def _chunks(tree: Tree, pieces: Sequence[_Piece], chosen: ByteRange) -> Iterator[bytes]:
    at = 0
    for piece in pieces:
        start, end = max(chosen.start - at, 0), min(chosen.end - at, piece.size)
        at += piece.size
        if start >= end:
            continue
        if not piece.path:
            yield piece.data[start:end]
            continue
        yield from _of_file(tree, piece.path, start, end)


def _of_file(tree: Tree, path: str, start: int, end: int) -> Iterator[bytes]:
    try:
        fd = tree.open_file(path)
    except TrainmasterError as error:
        raise ConnectionAbortedError("the version was deleted while it was sent") from error
    try:
        while start < end:
            data = os.pread(fd, min(_CHUNK, end - start), start)
            if not data:
                # Abort, so that the client does not take the archive for complete.
                raise ConnectionAbortedError("a file is shorter than it was")
            start += len(data)
            yield data
    finally:
        os.close(fd)
