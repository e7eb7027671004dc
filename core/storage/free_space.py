"""Checks a volume's free space before writing."""

from __future__ import annotations

import os
from typing import Final

from core.domain.errors import InsufficientStorage
from core.storage.tree import Tree

# Reserved on the volume for its other users.
RESERVE_BYTES: Final = 64 * 2**20


def demand_room(tree: Tree, size_bytes: int, whose: str, advice: str) -> None:
    """Raises ``InsufficientStorage`` if the file system of ``tree`` lacks the space.

    ``whose``: the sentence's first words, such as "The registry's volume". ``advice``: what to do, its last part.
    """
    with tree.open_folder() as fd:
        status = os.fstatvfs(fd)
    free = status.f_bavail * status.f_frsize
    if free < size_bytes + RESERVE_BYTES:
        raise InsufficientStorage(f"{whose} has no room for {size_bytes:,} bytes ({free:,} are free); {advice}")
