"""Request bodies in blocks, and writing them to files."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from typing import Final

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
