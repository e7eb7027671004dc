"""Processes from /proc: which live, since when, their parents, and which carry a mark."""

from __future__ import annotations

import os

# In the environment of every process of a replica; what the runtime left behind is found again by it.
MARK_VARIABLE = "TRAINMASTER_REPLICA"


def boot_id() -> str:
    """Changes with every boot of the machine; empty where the kernel does not tell."""
    return _read("/proc/sys/kernel/random/boot_id").decode().strip()


def start_ticks(pid: int) -> int | None:
    """Clock ticks from boot to the start of ``pid``; with the pid and the boot it names one process for ever.

    ``None`` when there is none, or only its zombie.
    """
    fields = _stat(pid)
    return None if fields is None or fields[0] in (b"Z", b"X") else int(fields[19])


def parent(pid: int) -> int | None:
    fields = _stat(pid)
    return None if fields is None else int(fields[1])


def descendants(root: int) -> list[int]:
    """Every live process below ``root``, in no order. A subreaper's list is complete: orphans come back to it."""
    children: dict[int, list[int]] = {}
    for pid in pids():
        fields = _stat(pid)
        if fields is not None and fields[0] not in (b"Z", b"X"):
            children.setdefault(int(fields[1]), []).append(pid)
    below_root: list[int] = []
    front = [root]
    while front:
        below = children.pop(front.pop(), [])
        below_root += below
        front += below
    return below_root


def marked(mark: str) -> list[int]:
    """Live processes whose environment carries ``mark``; those of other users stay unseen."""
    variable = (MARK_VARIABLE + "=" + mark).encode()
    return [pid for pid in pids() if variable in _read("/proc/%d/environ" % pid).split(b"\0") and start_ticks(pid)]


def pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def memory_bytes(pid: int) -> int:
    """Resident memory that is the process's own: pages shared with files or other processes are left out."""
    fields = _read("/proc/%d/statm" % pid).split()
    return (int(fields[1]) - int(fields[2])) * _PAGE if len(fields) > 2 else 0


def thread_count(pid: int) -> int:
    fields = _stat(pid)
    return 0 if fields is None else int(fields[17])


def cpu_ticks(pid: int) -> int:
    """Clock ticks that the process and its children that are gone have computed."""
    fields = _stat(pid)
    return 0 if fields is None else sum(map(int, fields[11:15]))


def io_lines(pid: int) -> list[bytes]:
    """Lines of /proc/<pid>/io; none where it may not be read."""
    return _read("/proc/%d/io" % pid).splitlines()


def network_lines() -> list[bytes]:
    """Interfaces and their counts, of the network that the calling process sees."""
    return _read("/proc/self/net/dev").splitlines()[2:]


def kernel_oom_kills() -> int:
    """How many processes the kernel has killed for memory since boot, on the whole machine."""
    for line in _read("/proc/vmstat").splitlines():
        if line.startswith(b"oom_kill "):
            return int(line.split()[1])
    return 0


_PAGE = os.sysconf("SC_PAGE_SIZE")


def _stat(pid: int) -> list[bytes] | None:
    """Fields of /proc/<pid>/stat from the state on (field 3 of proc(5) is index 0)."""
    text = _read("/proc/%d/stat" % pid)
    # The name in brackets may hold anything, blanks and brackets too.
    return text[text.rindex(b")") + 2 :].split() if text else None


def _read(path: str) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY)
    except OSError:
        return b""
    try:
        chunks: list[bytes] = []
        while True:
            chunk = os.read(fd, 65_536)
            if not chunk:
                return b"".join(chunks)
            chunks.append(chunk)
    except OSError:
        return b""
    finally:
        os.close(fd)
