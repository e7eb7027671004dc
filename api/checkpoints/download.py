"""Download of a checkpoint: a file as it is; a folder or several files as a tar archive, created while it is sent."""

from __future__ import annotations

import os
import tarfile
from collections.abc import AsyncIterator, Iterator
from typing import Final

from starlette.concurrency import iterate_in_threadpool
from starlette.responses import Response, StreamingResponse

from api.files.service import OCTETS
from api.http.ranges import OpenFileResponse, attachment
from core.domain.errors import TrainmasterError
from core.inspection.discovery import CheckpointFiles, files_of
from core.storage.tree import Tree

_CHUNK: Final = 2**20


def answer(tree: Tree, landed: CheckpointFiles) -> Response:
    """The response. A tar has its Content-Length, so that clients see the progress and whether it is complete."""
    name = landed.path.rpartition("/")[2]
    if not landed.is_dir and len(landed.parts) == 1:
        return OpenFileResponse(tree.open_file(landed.parts[0]), media_type=OCTETS, name=name)
    above = landed.path.rpartition("/")[0]
    files = [
        (path, _head(path.removeprefix(f"{above}/") if above else path, status))
        for path, status in files_of(tree, landed)
    ]
    length = sum(len(head) + _padded(size) for _, (head, size) in files) + 2 * tarfile.BLOCKSIZE
    headers = {
        "Content-Length": str(length),
        "Content-Disposition": attachment(f"{name}.tar"),
        "Cache-Control": "no-store",
        "X-Content-Type-Options": "nosniff",
    }
    return StreamingResponse(_sent(tree, files), media_type="application/x-tar", headers=headers)


async def _sent(tree: Tree, files: list[tuple[str, tuple[bytes, int]]]) -> AsyncIterator[bytes]:
    async for chunk in iterate_in_threadpool(_chunks(tree, files)):
        yield chunk


def _chunks(tree: Tree, files: list[tuple[str, tuple[bytes, int]]]) -> Iterator[bytes]:
    for path, (head, size) in files:
        yield head
        try:
            fd = tree.open_file(path)
        except TrainmasterError as error:
            raise ConnectionAbortedError("a file was deleted while it was sent") from error
        try:
            at = 0
            while at < size:
                data = os.pread(fd, min(_CHUNK, size - at), at)
                if not data:
                    # Abort, so that the client does not take the archive for complete.
                    raise ConnectionAbortedError("a file became shorter while it was sent")
                at += len(data)
                yield data
        finally:
            os.close(fd)
        yield b"\0" * (_padded(size) - size)
    yield b"\0" * (2 * tarfile.BLOCKSIZE)


def _head(name: str, status: os.stat_result) -> tuple[bytes, int]:
    """A file's header in the tar, and the file's size in bytes."""
    entry = tarfile.TarInfo(name)
    entry.size = status.st_size
    entry.mtime = int(status.st_mtime)
    entry.mode = 0o644
    return entry.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape"), status.st_size


def _padded(size: int) -> int:
    return -(-size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
