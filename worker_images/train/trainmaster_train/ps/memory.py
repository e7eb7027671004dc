"""Keeps memory that was used once."""

from __future__ import annotations

import ctypes
import os

# glibc's names for these, from malloc.h.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_KEPT_BYTES = 1 << 30
_LARGEST_KEPT_BYTES = 32 << 20  # the most that glibc takes


def keep_freed_memory() -> None:
    """Have the allocator keep what is freed (up to 1 GiB) instead of giving it back to the kernel at once.

    libzmq allocates memory for every frame that it receives. glibc would return it after each message, and each next
    one would be written to fresh pages: pushing and pulling 100 MB took two to three times as long. Does nothing
    where the C library knows no such thing, or the user has chosen (``MALLOC_TRIM_THRESHOLD_``).
    """
    if "MALLOC_TRIM_THRESHOLD_" in os.environ or "MALLOC_MMAP_THRESHOLD_" in os.environ:
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _LARGEST_KEPT_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
