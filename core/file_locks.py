"""Advisory locks on files. The kernel drops one when its holder dies, so none is ever left behind."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


def take(fd: int) -> bool:
    """Lock the open file; ``False`` when somebody else holds it. The lock lives as long as the open file does."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_held(path: Path) -> bool:
    """Whether somebody holds the file now; not so when it is not there.

    Raises:
        OSError: it cannot be opened.
    """
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        return not take(fd)
    finally:
        os.close(fd)
