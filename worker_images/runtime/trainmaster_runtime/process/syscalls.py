"""The few system calls that Python does not offer (before 3.12, or at all)."""

from __future__ import annotations

import ctypes
import os

CLONE_NEWNS = 0x00020000
CLONE_NEWUSER = 0x10000000

MS_RDONLY = 0x1
MS_NOSUID = 0x2
MS_NODEV = 0x4
MS_NOEXEC = 0x8
MS_REMOUNT = 0x20
MS_BIND = 0x1000
MS_REC = 0x4000
MS_SLAVE = 0x80000
MNT_DETACH = 0x2

_FALLOC_FL_KEEP_SIZE = 0x1
_FALLOC_FL_PUNCH_HOLE = 0x2
_Offset = ctypes.c_long  # off_t of 64 bit systems

_CAP_DAC_READ_SEARCH = 2
_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_MM = 35
_PR_SET_NO_NEW_PRIVS = 38
_PR_SET_MM_MAP = 14
_MAP_PRIVATE_ANONYMOUS = 0x22
_PROT_READ_WRITE = 0x3
_CAPABILITY_VERSION_3 = 0x20080522

_AT_FDCWD = -100
_AT_RECURSIVE = 0x8000
_MOUNT_ATTR_RDONLY = 0x1
_SECCOMP_SET_MODE_FILTER = 1
_SECCOMP_FILTER_FLAG_SPEC_ALLOW = 4
_SYS_SECCOMP = {"x86_64": 317, "aarch64": 277}
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


class _MemoryMap(ctypes.Structure):
    """``struct prctl_mm_map`` of linux/prctl.h."""

    _fields_ = (
        *((name, ctypes.c_uint64) for name in ("start_code", "end_code", "start_data", "end_data")),
        *((name, ctypes.c_uint64) for name in ("start_brk", "brk", "start_stack", "arg_start", "arg_end")),
        *((name, ctypes.c_uint64) for name in ("env_start", "env_end", "auxv")),
        ("auxv_size", ctypes.c_uint32),
        ("exe_fd", ctypes.c_uint32),
    )


def show_words(argv: list[str], env: dict[str, str]) -> None:
    """Let /proc/self/cmdline and /proc/self/environ show these, as after an execution. Any user may, from Linux 3.18
    on.

    Raises ``OSError`` where the kernel was built without CONFIG_CHECKPOINT_RESTORE.
    """
    words = b"".join(os.fsencode(word) + b"\0" for word in argv)
    text = words + b"".join(os.fsencode("%s=%s" % item) + b"\0" for item in env.items())
    _libc.mmap.restype = _libc.sbrk.restype = ctypes.c_void_p
    # Memory that is never freed: the kernel reads from it for as long as the process lives.
    area = _libc.mmap(
        None, ctypes.c_size_t(len(text) or 1), _PROT_READ_WRITE, _MAP_PRIVATE_ANONYMOUS, -1, ctypes.c_long(0)
    )
    if area in (None, ctypes.c_void_p(-1).value):
        raise OSError(12, os.strerror(12))
    ctypes.memmove(area, text, len(text))
    with open("/proc/self/stat", "rb") as stream:
        fields = stream.read().rpartition(b")")[2].split()
    split = area + len(words)
    # Numbers as in proc(5), which counts from 1 and the first two stand before the bracket.
    shown = _MemoryMap(
        start_code=int(fields[26 - 3]),
        end_code=int(fields[27 - 3]),
        start_data=int(fields[45 - 3]),
        end_data=int(fields[46 - 3]),
        start_brk=int(fields[47 - 3]),
        brk=_libc.sbrk(0),
        start_stack=int(fields[28 - 3]),
        arg_start=area,
        arg_end=split,
        env_start=split,
        env_end=area + len(text),
        exe_fd=0xFFFFFFFF,
    )
    _call(
        _libc.prctl,
        _PR_SET_MM,
        ctypes.c_ulong(_PR_SET_MM_MAP),
        ctypes.byref(shown),
        ctypes.c_ulong(ctypes.sizeof(shown)),
        ctypes.c_ulong(0),
    )


def drop_rights() -> None:
    """Drop all capabilities, as an execve by a user other than root does."""
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    none = (ctypes.c_uint32 * 6)()
    _call(_libc.capset, ctypes.byref(header), ctypes.byref(none))


def read_as_root() -> None:
    """Let this thread read all files, if that is permitted to it, whoever it opens them as."""
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    rights = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable of the first 32; the same of the others
    _call(_libc.capget, ctypes.byref(header), ctypes.byref(rights))
    rights[0] |= rights[1] & (1 << _CAP_DAC_READ_SEARCH)
    _call(_libc.capset, ctypes.byref(header), ctypes.byref(rights))


def refuse_new_rights() -> None:
    """No program that this process executes gets more rights than it has, as by its set-user-id bit."""
    _call(_libc.prctl, _PR_SET_NO_NEW_PRIVS, ctypes.c_ulong(1), 0, 0, 0)


def set_filter(program: object) -> None:
    """Install a seccomp filter. ``program``: a reference to a ``struct sock_fprog``. Raises ``OSError``."""
    number = _SYS_SECCOMP.get(os.uname().machine, 0)
    try:
        # Without this flag kernels before 5.16 slow the process down.
        flags = ctypes.c_ulong(_SECCOMP_FILTER_FLAG_SPEC_ALLOW)
        _call(_libc.syscall, ctypes.c_long(number), ctypes.c_ulong(_SECCOMP_SET_MODE_FILTER), flags, program)
    except OSError:
        _call(
            _libc.syscall, ctypes.c_long(number), ctypes.c_ulong(_SECCOMP_SET_MODE_FILTER), ctypes.c_ulong(0), program
        )


def file_user() -> int:
    """The user that this thread opens files as."""
    return int(_libc.setfsuid(ctypes.c_int(-1)))


def set_file_user(uid: int) -> None:
    """Open files as ``uid`` and its group of the same number from now on, in this thread. Raises ``OSError``."""
    _libc.setfsgid(ctypes.c_uint(uid))
    _libc.setfsuid(ctypes.c_uint(uid))
    if file_user() != uid:  # they return no error
        raise OSError(1, os.strerror(1))


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
    """Give the room of these bytes back; the file's size stays, and they read as zeros. Raises ``OSError``
    EOPNOTSUPP.
    """
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
