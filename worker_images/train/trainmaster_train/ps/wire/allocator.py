"""Tuning of glibc's allocator: retains freed memory."""

from __future__ import annotations

import ctypes
import os

# glibc's names for these, from malloc.h.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8
_USER_SETTINGS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_ARENA_MAX")
_RETAINED_BYTES = 1 << 30
_MAX_RETAINED_BYTES = 32 << 20  # the most that glibc takes


def retain_freed_memory() -> None:
    """Have the allocator retain freed memory (up to 1 GiB) instead of returning it to the kernel at once.

    libzmq allocates memory for every frame that it receives, in threads of its own. glibc would return it after each
    message, and the next one would be written to fresh pages: pushing and pulling 100 MB took two to three times as
    long. Threads share one arena, because other arenas retain at most 64 MiB whatever the thresholds are. Does nothing
    if the C library has no ``mallopt``, or the user has set ``MALLOC_…`` variables.
    """
    if any(name in os.environ for name in _USER_SETTINGS):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _MAX_RETAINED_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _RETAINED_BYTES)
        mallopt(_M_ARENA_MAX, 1)
