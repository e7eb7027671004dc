"""Claims on event files: all replicas see the same output, and each file must be read by one of them.

A claim is a file next to the logs, created by the first replica, with the offset that was read; so the next attempt, or
the next start of this replica, goes on there.
"""

from __future__ import annotations

import json
import os
import zlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional


class FileClaim:
    """One event file that is ours to read, from ``offset`` on."""

    def __init__(self, fd: int, owner: str, offset: int) -> None:
        self._fd = fd
        self._owner = owner
        self.offset = offset

    def advance(self, offset: int) -> None:
        """What is before ``offset`` is in the spool. Never fails: at worst some points are sent again after a
        restart.
        """
        self.offset = offset
        try:
            os.pwrite(self._fd, _line(self._owner, offset), 0)
        except OSError:
            pass

    def close(self) -> None:
        os.close(self._fd)


class FileClaims:
    """Args: ``folder``: the same for all replicas and attempts of the job. ``owner``: ``<attempt>/<role>-<index>``."""

    def __init__(self, folder: str, owner: str) -> None:
        self._folder = folder
        self._owner = owner

    def take(self, path: str, offset: int) -> Optional[FileClaim]:
        """Claim ``path`` (relative to the output) from ``offset`` on; ``None`` when another replica of this attempt has
        it.

        What an earlier attempt read, or an earlier start of this replica, is not read again.
        """
        name = self._folder + "/%08x%08x" % (zlib.crc32(path.encode()), zlib.adler32(path.encode()))
        try:
            os.makedirs(self._folder, exist_ok=True)
            try:
                fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            except FileExistsError:
                return self._take_over(name)
            os.pwrite(fd, _line(self._owner, offset), 0)
        except OSError:
            return None
        return FileClaim(fd, self._owner, offset)

    def _take_over(self, name: str) -> Optional[FileClaim]:
        fd = os.open(name, os.O_RDWR | os.O_CLOEXEC)
        try:
            record = json.loads(os.pread(fd, 500, 0) or b"{}")
            owner, offset = str(record["owner"]), int(record["offset"])
            is_free = owner == self._owner or owner.split("/", maxsplit=1)[0] != self._owner.split("/")[0]
        except (OSError, ValueError, LookupError, TypeError):
            os.close(fd)  # its owner is just writing it
            return None
        if not is_free:
            os.close(fd)
            return None
        return FileClaim(fd, self._owner, offset)


def _line(owner: str, offset: int) -> bytes:
    # Of one length, so that a shorter one leaves nothing of a longer one behind.
    return (json.dumps({"owner": owner, "offset": offset}) + "\n").ljust(200).encode()
