"""Advisory file locks. The kernel releases them when the holder dies, so that no stale lock remains."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


def try_lock(fd: int) -> bool:
    """Lock the open file; ``False`` if another process holds it. The lock lives as long as the open file."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_locked(path: Path) -> bool:
    """Whether a process holds the file now; false if the file does not exist.

    Raises:
        OSError: it cannot be opened.
    """
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        return not try_lock(fd)
    finally:
        os.close(fd)
