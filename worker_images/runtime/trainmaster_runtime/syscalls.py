"""The few system calls that Python does not offer (before 3.12, or at all)."""

from __future__ import annotations

import ctypes
import os

CLONE_NEWNS = 0x00020000
CLONE_NEWUSER = 0x10000000

MS_RDONLY = 0x1
MS_NOSUID = 0x2
MS_NODEV = 0x4
MS_REMOUNT = 0x20
MS_BIND = 0x1000
MS_REC = 0x4000
MS_SLAVE = 0x80000
MNT_DETACH = 0x2

_FALLOC_FL_KEEP_SIZE = 0x1
_FALLOC_FL_PUNCH_HOLE = 0x2
_Offset = ctypes.c_long  # off_t of 64 bit systems

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_CHILD_SUBREAPER = 36

_AT_FDCWD = -100
_AT_RECURSIVE = 0x8000
_MOUNT_ATTR_RDONLY = 0x1
_SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41, "riscv64": 41, "ppc64le": 203, "s390x": 217}
_SYS_MOUNT_SETATTR = 442  # the same on every architecture (asm-generic, Linux 5.12)

_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent(signal_number: int) -> None:
    """Let the kernel send ``signal_number`` to this process when the thread that forked it ends."""
    _call(_libc.prctl, _PR_SET_PDEATHSIG, ctypes.c_ulong(signal_number), 0, 0, 0)


def adopt_orphans() -> None:
    """Become the parent of every orphan below this process."""
    _call(_libc.prctl, _PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(1), 0, 0, 0)


def be_dumpable() -> None:
    """Let processes of the same user open this one's /proc files again, after a change of credentials closed them."""
    _call(_libc.prctl, _PR_SET_DUMPABLE, ctypes.c_ulong(1), 0, 0, 0)


def unshare(flags: int) -> None:
    _call(_libc.unshare, flags)


def setns(fd: int, kind: int) -> None:
    _call(_libc.setns, fd, kind)


def mount(source: str, target: str, kind: str | None, flags: int, options: str = "") -> None:
    _call(
        _libc.mount,
        os.fsencode(source),
        os.fsencode(target),
        kind.encode() if kind else None,
        ctypes.c_ulong(flags),
        options.encode() if options else None,
    )


def unmount(target: str, flags: int) -> None:
    _call(_libc.umount2, os.fsencode(target), flags)


def pivot_root(new: str, old: str) -> None:
    number = _SYS_PIVOT_ROOT.get(os.uname().machine)
    if number is None:
        raise OSError(38, "pivot_root is not known for " + os.uname().machine)
    _call(_libc.syscall, ctypes.c_long(number), os.fsencode(new), os.fsencode(old))


def punch_hole(fd: int, start: int, end: int) -> None:
    """Give the room of these bytes back; the file's size stays, and they read as zeros. Raises ``OSError`` EOPNOTSUPP."""
    _call(_libc.fallocate, fd, _FALLOC_FL_KEEP_SIZE | _FALLOC_FL_PUNCH_HOLE, _Offset(start), _Offset(end - start))


def make_read_only(path: str) -> None:
    """Make the mount at ``path`` and all below it read-only. Raises ``OSError`` ENOSYS before Linux 5.12."""
    # struct mount_attr: attr_set, attr_clr, propagation, userns_fd; four 64 bit numbers.
    attributes = (ctypes.c_uint64 * 4)(_MOUNT_ATTR_RDONLY, 0, 0, 0)
    _call(
        _libc.syscall,
        ctypes.c_long(_SYS_MOUNT_SETATTR),
        ctypes.c_int(_AT_FDCWD),
        os.fsencode(path),
        ctypes.c_uint(_AT_RECURSIVE),
        ctypes.byref(attributes),
        ctypes.c_size_t(ctypes.sizeof(attributes)),
    )


def _call(function: ctypes._NamedFuncPointer, *arguments: object) -> None:
    ctypes.set_errno(0)
    if function(*arguments) == -1:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
