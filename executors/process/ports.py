"""Ports for gangs on one machine: free now, never the kernel's own, and not used again for as long as possible."""

from __future__ import annotations

import fcntl
import os
import socket
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from core.domain.errors import ExecutorTryAgain

_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")


@dataclass(frozen=True, slots=True)
class PortRange:
    first: int
    last: int

    @classmethod
    def parse(cls, text: str) -> PortRange:
        """``20000-29999``."""
        first, _, last = text.partition("-")
        port_range = cls(int(first), int(last))
        if not 1024 <= port_range.first <= port_range.last <= 65_535:
            raise ValueError(f"{text!r} is not a range of ports such as 20000-29999")
        return port_range


class PortBook:
    """Hands out ports in turn. A file holds the position, so that no attempt gets an earlier one's ports
    before the range has gone round: frameworks of a dead attempt may still answer, or be remembered, on them.
    """

    def __init__(self, path: Path, ports: PortRange) -> None:
        self._path = path
        self._range = ports

    def allocate(self, count: int, taken: frozenset[int]) -> list[int]:
        """``count`` fresh ports. Raises :class:`ExecutorTryAgain` when there are not so many."""
        with self._cursor() as cursor:
            ports: list[int] = []
            size = self._range.last - self._range.first + 1
            reserved = _kernel_ports(self._range)
            start = cursor[0] if self._range.first <= cursor[0] <= self._range.last else self._range.first
            for step in range(size):
                if len(ports) == count:
                    break
                port = self._range.first + (start - self._range.first + step) % size
                if port not in taken and port not in reserved and _is_free(port):
                    ports.append(port)
            if len(ports) < count:
                raise ExecutorTryAgain(
                    f"{count} ports are needed and {len(ports)} are free in {self._range.first}-{self._range.last}; "
                    "end other jobs, or widen TRAINMASTER_PROCESS_PORT_RANGE."
                )
            cursor[0] = ports[-1] + 1 if ports else start
            return ports

    def _beginning(self) -> int:
        """Where a new book begins: elsewhere for each data folder. Two platforms on one machine know nothing of each
        other, and a port is only bound some time after it was found free.
        """
        size = self._range.last - self._range.first + 1
        return self._range.first + zlib.crc32(str(self._path).encode()) % size

    @contextmanager
    def _cursor(self) -> Iterator[list[int]]:
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            text = os.read(fd, 32).strip()
            cursor = [int(text) if text.isdigit() else self._beginning()]
            yield cursor
            os.pwrite(fd, f"{cursor[0]:<16}\n".encode(), 0)
        finally:
            os.close(fd)


def _kernel_ports(port_range: PortRange) -> range:
    """The ports that the kernel gives to outgoing connections; none of them when they cover the whole range."""
    try:
        first, last = (int(word) for word in _EPHEMERAL.read_text().split())
    except (OSError, ValueError):
        return range(0)
    return range(0) if first <= port_range.first and port_range.last <= last else range(first, last + 1)


def _is_free(port: int) -> bool:
    """Whether a server may listen on ``port`` on every address. Without SO_REUSEADDR: also no late packets come."""
    for family, address in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):  # noqa: S104 - nothing listens
        try:
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                if family == socket.AF_INET6:
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                probe.bind((address, port))
        except OSError:
            if family == socket.AF_INET or (socket.has_ipv6 and _has_ipv6()):
                return False
    return True


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
            probe.bind(("::", 0))
    except OSError:
        return False
    return True
