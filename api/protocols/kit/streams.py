"""Request bodies in blocks, writing them to files, and thread limits of streams."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from typing import Final

from anyio import CapacityLimiter
from starlette.datastructures import State

BLOCK_BYTES: Final = 2**20  # written at once


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
