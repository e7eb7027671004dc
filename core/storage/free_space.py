"""Whether a volume has room for what is about to be written to it."""

from __future__ import annotations

import os
from typing import Final

from core.domain.errors import InsufficientStorage
from core.storage.tree import Tree

# Left free for everybody else on the volume.
RESERVE_BYTES: Final = 64 * 2**20


def demand_room(tree: Tree, size_bytes: int, whose: str, advice: str) -> None:
    """Raises ``InsufficientStorage``: the file system of ``tree`` has no room for so much.

    ``whose``: the sentence's first word, such as "The registry's volume". ``advice``: what to do, its last part.
    """
    with tree.open_folder() as fd:
        status = os.fstatvfs(fd)
    free = status.f_bavail * status.f_frsize
    if free < size_bytes + RESERVE_BYTES:
        raise InsufficientStorage(f"{whose} has no room for {size_bytes:,} bytes ({free:,} are free); {advice}")
