"""Files of warm starts, below the executor's folder ``warm``.

================================  ====================================================================================
``<key>/about.json``              how to start a parent; written by the executor
``<key>/waiting``                 held by the standby process of this key
``<key>/hints/<command>``         the framework that the command was seen to use
``<key>/<framework>/lock``        held by the parent for as long as it lives
``<key>/<framework>/parent.json``  its pid and start
``<key>/<framework>/socket``      where it takes orders
``<key>/<framework>/used``        touched at each start
``<key>/<framework>/unfit``       why there can be none; forgotten after an hour
``room``                          held while room for a parent is made
================================  ====================================================================================
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal

from trainmaster_runtime import clock
from trainmaster_runtime.process import procfs
from trainmaster_runtime.record import read_json

FRAMEWORKS = ("torch", "tensorflow")
_UNFIT_S = 3_600.0
_FORGET_S = 7 * 86_400.0
_ROOM_S = 30.0  # it takes milliseconds
_LOOK_S = 0.1


def try_lock(path: str) -> int | None:
    """Lock ``path`` and return its descriptor; ``None``: another process holds the lock."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd


def write(path: str, text: str) -> None:
    """Replace ``path``, readable by its owner alone."""
    temporary = "%s.%d.new" % (path, os.getpid())
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(fd, "w") as stream:
        stream.write(text)
    os.rename(temporary, path)


def is_unfit(folder: str) -> bool:
    """Whether a parent was tried here of late and cannot be."""
    try:
        return clock.now() - os.stat(folder + "/unfit").st_mtime < _UNFIT_S
    except OSError:
        return False


def make_room(root: str, most: int) -> bool:
    """End the parents that have rested longest until there are fewer than ``most``; remove pools that were unused for
    long.

    ``False``: another process held the lock for so long that nothing was done.
    """
    end = clock.monotonic() + _ROOM_S
    while True:
        room = try_lock(root + "/room")
        if room is not None:
            break
        if clock.monotonic() > end:
            return False
        clock.pause(_LOOK_S)
    try:
        resting = []
        for key in os.listdir(root):
            is_old = _is_old(root + "/" + key)
            for framework in FRAMEWORKS:
                folder = "%s/%s/%s" % (root, key, framework)
                if not os.path.isdir(folder):
                    continue
                lock = try_lock(folder + "/lock")
                if lock is None:
                    is_old = False
                    resting.append((_used(folder), folder))
                else:
                    os.close(lock)
            if is_old:
                shutil.rmtree(root + "/" + key, ignore_errors=True)
        for _, folder in sorted(resting)[: max(0, len(resting) - most + 1)]:
            _end(folder)
        return True
    finally:
        os.close(room)


def _is_old(folder: str) -> bool:
    try:
        return os.path.isdir(folder) and clock.now() - os.stat(folder + "/about.json").st_mtime > _FORGET_S
    except OSError:
        return False


def _used(folder: str) -> float:
    try:
        return os.stat(folder + "/used").st_mtime
    except OSError:
        return 0.0


def _end(folder: str) -> None:
    parent = read_json(folder + "/parent.json")
    if parent is not None and procfs.start_ticks(parent["pid"]) == parent["start_ticks"]:
        try:
            os.kill(parent["pid"], signal.SIGTERM)
        except OSError:  # gone already
            pass
