"""Processes from /proc: which live, since when, their parents, and which carry a mark."""

from __future__ import annotations

import os
import sys

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


class TcpConnection:
    """``local`` and ``remote``: address and port. ``inode``: of its socket; 0 once it is closed."""

    __slots__ = ("inode", "local", "remote")

    def __init__(self, local: tuple[str, int], remote: tuple[str, int], inode: int) -> None:
        self.local = local
        self.remote = remote
        self.inode = inode


def tcp_connections() -> list[TcpConnection]:
    """Open connections, and those that were closed within the last minute, of the network that this process sees.

    https://docs.kernel.org/networking/proc_net_tcp.html
    """
    connections = []
    for path in ("/proc/self/net/tcp", "/proc/self/net/tcp6"):
        for line in _read(path).splitlines()[1:]:
            fields = line.split()
            if len(fields) > 9 and fields[3] in _CONNECTED:
                connections.append(TcpConnection(_endpoint(fields[1]), _endpoint(fields[2]), int(fields[9])))
    return connections


# Established, and the states of its end; not those of its beginning, nor listening.
_CONNECTED = (b"01", b"04", b"05", b"06", b"08", b"09")


def _endpoint(text: bytes) -> tuple[str, int]:
    import socket

    address, _, port = text.partition(b":")
    words = bytes.fromhex(address.decode())
    # The kernel prints words of 32 bits in its own byte order.
    packed = b"".join(words[i : i + 4][:: -1 if sys.byteorder == "little" else 1] for i in range(0, len(words), 4))
    if len(packed) == 16 and packed.startswith(_MAPPED_IPV4):
        packed = packed[12:]
    family = socket.AF_INET if len(packed) == 4 else socket.AF_INET6
    return socket.inet_ntop(family, packed), int(port, 16)


_MAPPED_IPV4 = bytes(10) + b"\xff\xff"


def socket_inodes(processes: list[int]) -> set[int]:
    """Inodes of the sockets that ``processes`` have open."""
    inodes = set()
    for pid in processes:
        try:
            names = os.listdir("/proc/%d/fd" % pid)
        except OSError:
            continue
        for name in names:
            try:
                target = os.readlink("/proc/%d/fd/%s" % (pid, name))
            except OSError:
                continue
            if target.startswith("socket:["):
                inodes.add(int(target[8:-1]))
    return inodes


def of_attempt(attempt: str, own: str) -> dict[int, str]:
    """Names of the attempt's replicas on this machine, such as ``worker-1``, by the pid of their live processes.

    Those that carry the mark ``own`` are left out.
    """
    prefix, mark = (MARK_VARIABLE + "=" + attempt + "/").encode(), (MARK_VARIABLE + "=" + own).encode()
    found = {}
    for pid in pids():
        variables = _read("/proc/%d/environ" % pid).split(b"\0")
        other = next((variable for variable in variables if variable.startswith(prefix)), None)
        if other is not None and mark not in variables:
            found[pid] = other[len(prefix) :].rpartition(b".")[0].decode()
    return found


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
