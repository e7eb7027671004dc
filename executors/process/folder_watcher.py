"""Watches state folders by inotify: a new status, an exit, and the death of a runtime are noticed at once.

Only a hint. Without inotify (another system, its limits reached) periodic observations find the same, later.
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
import struct
import threading
import time
import weakref
from pathlib import Path
from typing import Final

from core.domain.ids import AttemptId

_IN_CLOSE_WRITE: Final = 0x8
_IN_MOVED_TO: Final = 0x80
_IN_Q_OVERFLOW: Final = 0x4000
_IN_IGNORED: Final = 0x8000
_IN_ONLYDIR: Final = 0x01000000
_MASK: Final = _IN_CLOSE_WRITE | _IN_MOVED_TO | _IN_ONLYDIR
_EVENT: Final = struct.Struct("iIII")  # watch, mask, cookie, length of the name that follows
_READ_BYTES: Final = 65_536

# What the runtime renames into place; other files are its own matter.
_WATCHED_FILES: Final = frozenset({b"runtime.json", b"status.json", b"exit.json"})
# The runtime holds it open for as long as it lives. The kernel closes a dead process's files a moment before the
# process is gone from /proc.
_LOCK: Final = b"lock"
_DYING_S: Final = 0.02


class FolderWatcher:
    """Watches every folder given to :meth:`watch`. Safe for threads; one of them calls :meth:`wait`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._folders: dict[int, Path] = {}
        self._watches: dict[Path, int] = {}
        self._libc = ctypes.CDLL(None, use_errno=True)
        try:
            self._fd = int(self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        except AttributeError:
            self._fd = -1
        if self._fd >= 0:
            weakref.finalize(self, os.close, self._fd)

    @property
    def is_unavailable(self) -> bool:
        """There is no inotify here."""
        return self._fd < 0

    def watch(self, folder: Path) -> None:
        """Report changes of ``folder`` from now on, until it is gone. Cheap to repeat."""
        if self.is_unavailable or folder in self._watches:
            return
        with self._lock:
            watch = self._libc.inotify_add_watch(self._fd, os.fsencode(folder), ctypes.c_uint32(_MASK))
            if watch >= 0:
                self._folders[watch] = folder
                self._watches[folder] = watch

    def wait(self, timeout_s: float) -> frozenset[AttemptId]:
        """Attempts of the folders in which something has happened; empty when nothing has within ``timeout_s``."""
        if self.is_unavailable:
            time.sleep(timeout_s)  # noqa: TID251 - no watch: only the timeout ends the wait
            return frozenset()
        end = time.monotonic() + timeout_s
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        # A file that is written and then renamed makes two events, and only the rename counts: wait on after the first.
        while poll.poll(max(0.0, end - time.monotonic()) * 1000):
            changed, is_dying = self._parse_events(self._read())
            if is_dying:
                time.sleep(_DYING_S)  # noqa: TID251 - see _DYING_S
            if changed:
                return changed
        return frozenset()

    def _read(self) -> bytes:
        try:
            return os.read(self._fd, _READ_BYTES)
        except OSError as error:
            if error.errno != errno.EAGAIN:
                raise
            return b""

    def _parse_events(self, data: bytes) -> tuple[frozenset[AttemptId], bool]:
        folders: set[Path] = set()
        is_dying = False
        at = 0
        with self._lock:
            while at < len(data):
                watch, mask, _, length = _EVENT.unpack_from(data, at)
                name = data[at + _EVENT.size : at + _EVENT.size + length].rstrip(b"\0")
                at += _EVENT.size + length
                if mask & _IN_Q_OVERFLOW:
                    folders.update(self._watches)
                    continue
                folder = self._folders.get(watch)
                if folder is None:
                    continue
                if mask & _IN_IGNORED:
                    del self._folders[watch]
                    self._watches.pop(folder, None)
                elif name == _LOCK and mask & _IN_CLOSE_WRITE:
                    is_dying = True
                    folders.add(folder)
                elif name in _WATCHED_FILES and mask & _IN_MOVED_TO:
                    folders.add(folder)
        return frozenset(AttemptId(folder.parent.name) for folder in folders), is_dying
