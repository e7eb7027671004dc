"""The end of a forked process that has used torch.distributed.

A DDP module that is freed after ``destroy_process_group()``, as at the end of most programs, may hang on the
interpreter's
lock: 15 of 40 forked ranks did. When everything of the user's has run (threads joined, ``atexit`` called), such a
process writes out what is still in the buffers of open files, and leaves without the interpreter's teardown.
"""

from __future__ import annotations

import ctypes
import gc
import io
import os
import sys

_FILE = io.IOBase.__mro__[1]  # what all files are made of, those in C too; io.IOBase itself only knows them by name


def leave(code: int) -> None:
    """End this process with ``code``; returns where the interpreter's own way is safe, or must tell of an error."""
    distributed = sys.modules.get("torch.distributed.distributed_c10d")
    if distributed is None or getattr(distributed, "_default_pg_init_method", "?") is None:
        return
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
    except (OSError, ValueError):
        return  # the interpreter makes exit code 120 of it
    _close_files()
    ctypes.CDLL(None).fflush(None)
    os._exit(code)


def _close_files() -> None:
    standard = (sys.stdin, sys.stdout, sys.stderr, sys.__stdin__, sys.__stdout__, sys.__stderr__)
    spared = {id(part) for stream in standard for part in (stream, getattr(stream, "buffer", None))}
    # By their types alone: `isinstance` asks the object too, and some of torch's warn at any access.
    found = [o for o in gc.get_objects() if issubclass(type(o), _FILE) and id(o) not in spared]
    # What wraps another one goes first: its own buffer is still to be written.
    found.sort(key=lambda o: 0 if isinstance(o, io.TextIOBase) else 2 if isinstance(o, io.BufferedWriter) else 1)
    for stream in found:
        try:
            if not stream.closed and stream.writable():
                stream.close()
        except Exception:  # noqa: BLE001, S112 - of the user's own class, or a full disk: the teardown lets it pass, too
            continue
