"""Deleting a tree of any depth with two descriptors, without following links."""

from __future__ import annotations

import errno
import os
from typing import Final

_OPEN: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Passes over a folder that is being written to, before giving up.
_PASS_LIMIT: Final = 10_000


def empty_folder(parent: int, name: str = ".") -> None:
    """Remove everything in the folder ``name`` of ``parent`` (a descriptor), whatever its depth.

    The simple equivalent is ``shutil.rmtree``, which recurses: a job that nests ten thousand folders breaks it. Here a
    folder's files are unlinked, and its subfolders are moved up to the top and emptied in turn, so that depth does not
    matter. Can be interrupted and repeated.

    Raises:
        OSError: the file system refuses, or the folder is being written to.
    """
    top = os.open(name, _OPEN, dir_fd=parent)
    try:
        serial = 0
        for _ in range(_PASS_LIMIT):
            folders = _unlink_files(top)
            if not folders:
                return
            for folder in folders:
                serial = _dissolve(top, folder, serial)
        raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), name)
    finally:
        os.close(top)


def _unlink_files(folder: int) -> list[str]:
    """Unlink everything but folders; returns the folders' names."""
    with os.scandir(folder) as entries:
        listed = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    for name, is_dir in listed:
        if not is_dir:
            try:
                os.unlink(name, dir_fd=folder)
            except FileNotFoundError:
                continue
    return [name for name, is_dir in listed if is_dir]


def _dissolve(top: int, name: str, serial: int) -> int:
    """Remove the folder ``name`` of ``top``: unlink its files, move its folders up into ``top``."""
    try:
        folder = os.open(name, _OPEN, dir_fd=top)
    except FileNotFoundError:
        return serial
    try:
        for child in _unlink_files(folder):
            serial = _move_up(folder, child, top, serial)
    finally:
        os.close(folder)
    try:
        os.rmdir(name, dir_fd=top)
    except OSError as error:
        # Written to meanwhile: the next pass handles it.
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
            raise
    return serial


def _move_up(folder: int, child: str, top: int, serial: int) -> int:
    try:
        os.rmdir(child, dir_fd=folder)
        return serial
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
    while True:
        serial += 1
        try:
            # rename succeeds onto an existing empty folder, which is fine; onto anything else it fails.
            os.rename(child, f".deleting-{serial}", src_dir_fd=folder, dst_dir_fd=top)
            return serial
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise
