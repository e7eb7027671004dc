"""A filter of system calls for commands that run as a user of their own, in essence Docker's default profile.

Calls that set up mounts or namespaces, load code into the kernel, or have often been a way into it are refused. Tracing
stays, for debuggers and profilers: the kernel itself keeps it to processes of the same user.
https://docs.docker.com/engine/security/seccomp/
"""

from __future__ import annotations

import ctypes
import errno
import os

from trainmaster_runtime.process import syscalls

# Name: numbers on x86_64 and on aarch64; None: the architecture has no such call.
_REFUSED = {
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "mount_setattr": (442, 442),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "open_tree_attr": (467, 467),
    "setns": (308, 268),
    "unshare": (272, 97),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "bpf": (321, 280),
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "acct": (163, 89),
    "syslog": (103, 116),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "lookup_dcookie": (212, 18),
    "iopl": (172, None),
    "ioperm": (173, None),
    "nfsservctl": (180, 42),
    "vhangup": (153, 58),
    "fanotify_init": (300, 262),
}
_CLONE = (56, 220)
_CLONE3 = 435
_MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}  # column above, AUDIT_ARCH of linux/audit.h
_X32 = 0x40000000  # numbers of x86_64's other set of calls
_NEW_NAMESPACES = 0x7E020000  # CLONE_NEW… of linux/sched.h

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06  # linux/bpf_common.h
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16  # struct seccomp_data
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000


class _Instruction(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint16), ("jt", ctypes.c_uint8), ("jf", ctypes.c_uint8), ("k", ctypes.c_uint32))


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_uint16), ("instructions", ctypes.POINTER(_Instruction)))


def program(machine: str) -> list[tuple[int, int, int, int]]:
    """The filter as (code, jump if true, jump if false, operand); empty for an unknown architecture."""
    if machine not in _MACHINES:
        return []
    column, architecture = _MACHINES[machine]
    refused = [number for number in (numbers[column] for numbers in _REFUSED.values()) if number is not None]
    # (code, operand, label if true, label if false); None: the next one.
    steps: list[tuple[int, int, str | None, str | None]] = [
        (_LOAD, _ARCHITECTURE, None, None),
        (_EQUAL, architecture, None, "unknown"),
        (_LOAD, _NUMBER, None, None),
        (_AT_LEAST, _X32, "unknown", None),
        # The C library then uses clone, whose flags a filter can see.
        (_EQUAL, _CLONE3, "unknown", None),
        (_EQUAL, _CLONE[column], "clone", None),
        *((_EQUAL, number, "refused", None) for number in refused),
        (_RETURN, _ALLOW, None, None),
    ]
    labels = {"clone": len(steps), "refused": len(steps) + 3, "unknown": len(steps) + 4}
    steps += [
        (_LOAD, _FIRST_ARGUMENT, None, None),
        (_ANY_BIT, _NEW_NAMESPACES, "refused", None),
        (_RETURN, _ALLOW, None, None),
        (_RETURN, _ERRNO | errno.EPERM, None, None),
        (_RETURN, _ERRNO | errno.ENOSYS, None, None),
    ]
    return [
        (code, _jump(labels, if_true, at), _jump(labels, if_false, at), operand)
        for at, (code, operand, if_true, if_false) in enumerate(steps)
    ]


def _jump(labels: dict[str, int], label: str | None, at: int) -> int:
    return 0 if label is None else labels[label] - at - 1


def install() -> None:
    """Filter the calls of this process and its children from now on; it must have no new rights to gain.

    A kernel without filters is no error: the user id alone separates projects already.
    """
    instructions = program(os.uname().machine)
    if instructions:
        array = (_Instruction * len(instructions))(*(_Instruction(*each) for each in instructions))
        try:
            syscalls.set_filter(ctypes.byref(_Program(len(instructions), array)))
        except OSError:
            pass
