"""Shared memory of a worker and a ps on one machine: gradients and new values are exchanged without sending them.

The worker creates it, and passes its file descriptor through a local socket of the ps, with a ticket that only the peer
of their connection can know. If that fails (another machine, container or system), values are sent in frames. The
requests themselves always use the connection: they say which slot holds what, and neither side writes to memory that
the other one may read. So shared memory changes neither the order nor the result.

:func:`retain_freed_memory` tunes the memory of the process itself: glibc's allocator.
"""

from __future__ import annotations

import array
import ctypes
import mmap
import os
import secrets
import socket
from typing import Any, Dict, List, Optional, Sequence

import torch

from trainmaster_train.ps.errors import ParameterServerError
from trainmaster_train.ps.layout import ShardLayout, SlabBlock
from trainmaster_train.ps.wire.messages import split_address

_ALIGNED_TO = 4096
# Linux's names for these; Python's mmap has the first alone, from 3.8 on.
_MADV_HUGEPAGE = 14
_MADV_POPULATE_WRITE = 23
_TICKET_BYTES = 128
_MAX_OFFERS = 256
# glibc's names for these, from malloc.h.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8
_USER_SETTINGS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_ARENA_MAX")
_RETAINED_BYTES = 1 << 30
_MAX_RETAINED_BYTES = 32 << 20  # the most that glibc takes


class SharedMemory:
    """``gradients[slot][slab]`` and ``values[slot][slab]``, flat, of all slabs of a worker's model.

    A push in slot ``t`` lies in ``gradients[t]``, the values of its answer are written to ``values[t]``. The creating
    process owns ``descriptor``, and closes it.
    """

    def __init__(self, layout: ShardLayout, slots: int, buffer: Any, descriptor: int = -1) -> None:
        self.descriptor = descriptor
        self.slots = slots
        at = 0

        def flats() -> List[torch.Tensor]:
            nonlocal at
            made = []
            for slab in layout.slabs:
                made.append(torch.frombuffer(buffer, dtype=slab.dtype, count=slab.size, offset=at))
                at += _aligned(slab.size * slab.dtype.itemsize)
            return made

        self.gradients = [flats() for _ in range(slots)]
        self.values = [flats() for _ in range(slots)]

    def close(self) -> None:
        """Close the descriptor. The memory itself lives as long as its tensors."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
        self.descriptor = -1


class SharedShard:
    """The part of a worker's memory that belongs to one ps: its own ``blocks``."""

    def __init__(self, memory: SharedMemory, blocks: Sequence[SlabBlock]) -> None:
        def own(flats: Sequence[torch.Tensor]) -> List[torch.Tensor]:
            return [flats[block.slab][block.begin : block.end] for block in blocks]

        self.gradients = [own(flats) for flats in memory.gradients]
        self._values = [own(flats) for flats in memory.values]

    def write(self, slot: int, numbers: range, values: Sequence[torch.Tensor]) -> None:
        """Write the ``values`` of the blocks ``numbers`` for the worker."""
        for number in numbers:
            self._values[slot][number].copy_(values[number])


def create_shared_memory(layout: ShardLayout, slots: int) -> Optional[SharedMemory]:
    """Create shared memory, filled with zeros; ``None`` if the system lacks support or memory."""
    size = _size(layout, slots)
    if not size:
        return None
    try:
        import fcntl  # not on every system

        descriptor = os.memfd_create("trainmaster-ps", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except (AttributeError, ImportError, OSError):
        return None
    try:
        os.ftruncate(descriptor, size)
        # A shrinking file would kill the processes that have it mapped.
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        buffer = mmap.mmap(descriptor, size)
        _allocate_pages(buffer, descriptor, size)
        return SharedMemory(layout, slots, buffer, descriptor)
    except (AttributeError, OSError, ValueError):
        os.close(descriptor)
        return None


def map_shared_memory(descriptor: int, layout: ShardLayout, slots: int) -> Optional[SharedMemory]:
    """Map the memory of a descriptor from a worker, and close that; ``None`` if its size or seals are wrong."""
    import fcntl

    size = _size(layout, slots)
    try:
        is_right = os.fstat(descriptor).st_size == size
        if not is_right or not fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
            return None
        return SharedMemory(layout, slots, mmap.mmap(descriptor, size))
    except (OSError, ValueError):
        return None
    finally:
        os.close(descriptor)


class FdReceiver:
    """Receives file descriptors at a ps. ``name``: of the socket; empty if the system has no abstract sockets."""

    def __init__(self) -> None:
        self.name = ""
        self._offers: Dict[bytes, int] = {}
        try:
            self._socket: Optional[socket.socket] = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            name = f"trainmaster-ps-{secrets.token_hex(16)}"
            self._socket.setblocking(False)
            self._socket.bind("\0" + name)
            self.name = name
        except (AttributeError, OSError):
            self._socket = None

    def take(self, ticket: bytes) -> Optional[int]:
        """The descriptor that was sent with ``ticket``, if any: it arrives before a request that was sent later."""
        while self._socket is not None:
            try:
                data, passed, _, _ = self._socket.recvmsg(
                    _TICKET_BYTES, socket.CMSG_SPACE(array.array("i").itemsize), socket.MSG_CMSG_CLOEXEC
                )
            except OSError:
                break
            for descriptor in _descriptors(passed):
                self._drop(data)
                self._offers[data] = descriptor
            if len(self._offers) > _MAX_OFFERS:  # from unknown processes on this machine
                self._drop(next(iter(self._offers)))
        return self._offers.pop(ticket, None)

    def close(self) -> None:
        for ticket in list(self._offers):
            self._drop(ticket)
        if self._socket is not None:
            self._socket.close()

    def _drop(self, ticket: bytes) -> None:
        descriptor = self._offers.pop(ticket, None)
        if descriptor is not None:
            os.close(descriptor)


def send_descriptor(memory: SharedMemory, socket_name: str, ticket: bytes) -> bool:
    """Send ``memory`` to the :class:`FdReceiver` with that name; ``False`` if there is none on this machine."""
    passed = array.array("i", [memory.descriptor])
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.setblocking(False)
            sock.sendmsg([ticket], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, passed)], 0, "\0" + socket_name)
    except (AttributeError, OSError):
        return False
    return True


def is_local_address(address: str) -> bool:
    """Whether ``host:port`` is an address of this machine (or container)."""
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(split_address(address)[0], 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as sock:
            sock.bind(place)
    except (OSError, UnicodeError, ParameterServerError):
        return False
    return True


def _size(layout: ShardLayout, slots: int) -> int:
    return 2 * slots * sum(_aligned(slab.size * slab.dtype.itemsize) for slab in layout.slabs)


def _aligned(size: int) -> int:
    return -(-size // _ALIGNED_TO) * _ALIGNED_TO


def _allocate_pages(buffer: mmap.mmap, descriptor: int, size: int) -> None:
    """Allocate all pages now, huge ones if possible: a page that is missing later would kill the process."""
    try:
        buffer.madvise(_MADV_HUGEPAGE)
    except (AttributeError, OSError):
        pass
    try:
        buffer.madvise(_MADV_POPULATE_WRITE)
    except (AttributeError, OSError):  # an older kernel, or no memory: then this raises
        os.posix_fallocate(descriptor, 0, size)


def _descriptors(passed: Sequence[Any]) -> List[int]:
    descriptors = array.array("i")
    for level, kind, data in passed:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
    return list(descriptors)


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
