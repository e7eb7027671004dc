"""Disk usage of a folder: allocated bytes, as ``du`` counts them, by a walk that hostile trees cannot mislead.

Each folder is opened relative to its parent's descriptor, and no link is followed, so that the walk never leaves the
tree. It holds three descriptors at any depth: it returns to a parent by ``..``, which it compares with the folder that
it came from, as fts(3) does. Folders that vanish or move during the walk are left out.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Final

from core.domain.errors import Forbidden, NotFound
from core.storage.tree import Tree

_OPEN: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_BLOCK_BYTES: Final = 512  # the unit of st_blocks, stat(2)


@dataclass(slots=True)
class _Folder:
    """A folder on the way to the current one. ``children``: the names of its folders that are still to be walked."""

    name: str
    identity: tuple[int, int]
    children: list[str]


@dataclass(slots=True)
class DiskUsage:
    """Counts one or several trees; a file with several names (hard links) counts once.

    Args:
        pace: called with a number of entries that were read; it may sleep, and may raise to end the walk.
        batch_size: entries between two calls of ``pace``.
    """

    pace: Callable[[int], None]
    batch_size: int = 256
    unreadable: int = 0  # folders that the platform's user may not read
    _linked: set[tuple[int, int]] = field(default_factory=set)
    _pending: int = 0

    def measure(self, tree: Tree, path: str = "", *, skips: Collection[str] = ()) -> int:
        """The allocated bytes of the folder ``path`` and of all below it; 0: it does not exist, or is a link.

        Args:
            skips: names in ``path`` itself that are left out.

        Raises:
            Unavailable: the volume is away.
        """
        if path and tree.is_link(path):
            return 0
        try:
            with tree.open_folder(path) as top:
                return self._walk(top, skips)
        except Forbidden:
            self.unreadable += 1
        except NotFound:
            pass
        return 0

    def measure_files(self, tree: Tree, path: str, *, prefix: str) -> int:
        """The allocated bytes of the files in the folder ``path`` whose names begin with ``prefix``."""
        try:
            with tree.open_folder(path) as top:
                return self._scan(top, takes=lambda name: name.startswith(prefix))[0]
        except NotFound:
            return 0

    def _walk(self, top: int, skips: Collection[str]) -> int:
        fd = os.dup(top)
        try:
            total, children = self._scan(fd, takes=lambda name: name not in skips)
            total += os.fstat(fd).st_blocks * _BLOCK_BYTES
            way = [_Folder("", _identity(fd), children)]
            while way:
                if not way[-1].children:
                    way.pop()
                    if way:
                        fd = self._return(fd, top, way)
                    continue
                name = way[-1].children.pop()
                child = self._open(name, fd)
                if child is None:
                    continue
                os.close(fd)
                fd = child
                below, children = self._scan(fd)
                total += below + os.fstat(fd).st_blocks * _BLOCK_BYTES
                way.append(_Folder(name, _identity(fd), children))
        finally:
            os.close(fd)
        return total

    def _scan(self, folder: int, takes: Callable[[str], bool] = lambda _: True) -> tuple[int, list[str]]:
        """The allocated bytes of the files in a folder, and the names of its folders."""
        total = 0
        children: list[str] = []
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    self._count()
                    if not takes(entry.name):
                        continue
                    if entry.is_dir(follow_symlinks=False):
                        children.append(entry.name)
                    else:
                        total += self._size_of(entry)
        except OSError:  # deleted, or the file system has a fault there
            pass
        return total, children

    def _size_of(self, entry: os.DirEntry[str]) -> int:
        try:
            status = entry.stat(follow_symlinks=False)
        except OSError:
            return 0
        if stat.S_ISDIR(status.st_mode):  # replaced meanwhile
            return 0
        if status.st_nlink > 1:
            identity = (status.st_dev, status.st_ino)
            if identity in self._linked:
                return 0
            self._linked.add(identity)
        return status.st_blocks * _BLOCK_BYTES

    def _open(self, name: str, parent: int) -> int | None:
        try:
            return os.open(name, _OPEN, dir_fd=parent)
        except PermissionError:
            self.unreadable += 1
        except OSError:  # deleted, or replaced by a link or a file
            pass
        return None

    def _return(self, fd: int, top: int, way: list[_Folder]) -> int:
        """The descriptor of the last folder of ``way``, to which ``fd`` was a child. Closes ``fd``."""
        self._count()
        try:
            parent = os.open("..", _OPEN, dir_fd=fd)
        except OSError:  # deleted meanwhile, or no longer readable
            parent = None
        if parent is not None and _identity(parent) != way[-1].identity:  # moved meanwhile
            os.close(parent)
            parent = None
        os.close(fd)
        return self._descend(top, way) if parent is None else parent

    def _descend(self, top: int, way: list[_Folder]) -> int:
        """The same from the top, by names; ``way`` is cut where a folder is gone."""
        fd = os.dup(top)
        for number, folder in enumerate(way[1:], start=1):
            self._pending += 1
            child = self._open(folder.name, fd)
            if child is None:
                del way[number:]
                break
            os.close(fd)
            fd = child
        return fd

    def _count(self) -> None:
        self._pending += 1
        if self._pending >= self.batch_size:
            pending, self._pending = self._pending, 0
            self.pace(pending)


def _identity(fd: int) -> tuple[int, int]:
    status = os.fstat(fd)
    return status.st_dev, status.st_ino
