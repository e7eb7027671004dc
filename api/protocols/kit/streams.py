"""Request bodies in blocks, writing them to files, the text of logs, and thread limits of streams."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from typing import Final

from anyio import CapacityLimiter, to_thread
from starlette.datastructures import State

from api.app.graceful_shutdown import GracefulShutdown
from core.storage.logs.files import parse_line
from core.storage.logs.merge import LogMerge

BLOCK_BYTES: Final = 2**20  # written at once
_BATCH_LINES: Final = 500  # of a log, read at once


async def large_blocks(data: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The same data in blocks large enough for a switch to another thread."""
    pending = bytearray()
    async for block in data:
        pending += block
        if len(pending) >= BLOCK_BYTES:
            yield bytes(pending)
            pending.clear()
    if pending:
        yield bytes(pending)


def write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def limiter_of(state: State, name: str, threads: int) -> CapacityLimiter:
    """The app's thread limit of this name, so that streams never use up the request handlers' threads."""
    if not hasattr(state, name):
        setattr(state, name, CapacityLimiter(threads))
    limiter: CapacityLimiter = getattr(state, name)
    return limiter


async def new_log_text(
    merge: LogMerge, *, is_final: bool, shutdown: GracefulShutdown, limiter: CapacityLimiter
) -> AsyncIterator[str]:
    """The lines of a log that were written since the last call.

    Args:
        is_final: whether no more follow: then a last line without its end is one, too.
    """
    await to_thread.run_sync(merge.refresh, limiter=limiter)
    while not shutdown.is_stopping:
        lines = await to_thread.run_sync(lambda: merge.step(max_lines=_BATCH_LINES, is_final=is_final), limiter=limiter)
        if lines:
            yield "".join(f"{parse_line(line.raw).text}\n" for line in lines)
        if not merge.is_truncated:
            return
