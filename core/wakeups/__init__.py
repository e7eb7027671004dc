"""Wake-ups: hints to the scheduler that there is work. A lost one costs latency, never correctness.

That of the embedded mode is one datagram to the scheduler process on the same machine.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Protocol, runtime_checkable

from core.settings import Settings

TOPIC_TICK: Final = "tick"
TOPIC_FORECAST: Final = "forecast"
TOPIC_RECONCILE: Final = "reconcile"  # key: the attempt's id
TOPIC_STUDY: Final = "study"  # key: the study's id
TOPIC_MODELS: Final = "models"
TOPIC_ENDPOINT: Final = "endpoint"  # key: the endpoint's id
# The limit of sockaddr_un.sun_path on Linux is 108 bytes, the closing zero included.
_MAX_SOCKET_PATH: Final = 107
_MAX_MESSAGE: Final = 512


class Wakeup(Protocol):
    """Wakes the scheduler up after a commit. Never raises and never blocks for more than 50 ms."""

    def notify(self, topic: str, key: str = "") -> None: ...


@runtime_checkable
class ReportsProblem(Protocol):
    """A wake-up channel with a broker between the sender and the scheduler."""

    def problem(self, *, is_asking: bool = True) -> str | None:
        """What is wrong with the broker, in words, or ``None``. Without ``is_asking``: the last answer, at once."""
        ...


class NoWakeup:
    """Sends nothing; the scheduler's periodic tasks find the work."""

    def notify(self, topic: str, key: str = "") -> None:
        pass


def wakeup_socket_path(run_dir: Path) -> Path:
    """The socket on which the scheduler listens."""
    return run_dir / "wakeup.sock"


class SocketWakeup:
    """Sends ``topic key`` to a Unix datagram socket. Without a listener the wake-up is lost, as it may be."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def notify(self, topic: str, key: str = "") -> None:
        with (
            contextlib.suppress(OSError),
            _reachable(self._path) as address,
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender,
        ):
            # A full buffer means that the scheduler has plenty to do already: one more wake-up adds nothing.
            sender.setblocking(False)
            sender.sendto(f"{topic} {key}".encode()[:_MAX_MESSAGE], address)


class WakeupSocket:
    """The listening end. Close it to remove the socket's file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)  # left over from a scheduler that was killed
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        with _reachable(path) as address:
            self._socket.bind(address)
        path.chmod(0o600)

    def receive(self, timeout_s: float) -> tuple[str, str] | None:
        """The next wake-up as (topic, key), or ``None`` when none came in time or the socket was closed."""
        try:
            self._socket.settimeout(timeout_s)
            message = self._socket.recv(_MAX_MESSAGE).decode(errors="replace")
        except (TimeoutError, OSError):
            return None
        topic, _, key = message.partition(" ")
        return topic, key

    def close(self) -> None:
        self._socket.close()
        self._path.unlink(missing_ok=True)


@contextlib.contextmanager
def _reachable(path: Path) -> Iterator[str]:
    """An address of ``path`` that fits into sockaddr_un: a long path is reached through a descriptor of its folder."""
    if len(os.fsencode(path)) <= _MAX_SOCKET_PATH:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def make_wakeup(settings: Settings) -> Wakeup:
    """The wake-up channel to this platform's scheduler."""
    if settings.is_embedded_broker:
        return SocketWakeup(wakeup_socket_path(settings.run_dir))
    # Importing Celery takes a quarter of a second: only processes that send through it pay for that.
    from core.wakeups.celery import CeleryWakeup

    return CeleryWakeup(settings.broker_url)
