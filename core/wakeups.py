"""Wake-ups: hints to the scheduler that there is work. A lost one costs latency, never correctness.

Embedded, a wake-up is one datagram to the scheduler process on the same machine; in production, a Celery message.
"""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

from core.settings import Settings

if TYPE_CHECKING:
    from celery import Celery

TOPIC_TICK: Final = "tick"
TOPIC_FORECAST: Final = "forecast"
TOPIC_RECONCILE: Final = "reconcile"  # key: the attempt's id
TOPIC_STUDY: Final = "study"  # key: the study's id
TOPIC_MODELS: Final = "models"
TOPIC_WEBHOOKS: Final = "webhooks"
TOPIC_ENDPOINT: Final = "endpoint"  # key: the endpoint's id
TASK_OF_TOPIC: Final = {
    TOPIC_TICK: "trainmaster.tick",
    TOPIC_FORECAST: "trainmaster.forecast",
    TOPIC_RECONCILE: "trainmaster.reconcile",
    TOPIC_STUDY: "trainmaster.study",
    TOPIC_MODELS: "trainmaster.models",
    TOPIC_WEBHOOKS: "trainmaster.webhooks",
    TOPIC_ENDPOINT: "trainmaster.endpoint",
}
# A user waits for a forecast: it does not queue behind a thousand reconciles.
QUEUE_OF_TOPIC: Final = {
    TOPIC_TICK: "tick",
    TOPIC_FORECAST: "tick",
    TOPIC_RECONCILE: "reconcile",
    TOPIC_STUDY: "reconcile",
    TOPIC_MODELS: "maintenance",
    TOPIC_WEBHOOKS: "maintenance",
    TOPIC_ENDPOINT: "reconcile",
}
# The limit of sockaddr_un.sun_path on Linux is 108 bytes, the closing zero included.
_MAX_SOCKET_PATH: Final = 107
_MAX_MESSAGE: Final = 512
# More pending wake-ups are dropped: the broker is away, and the beat sends again when it is back.
_MAX_PENDING: Final = 1000
# The request for the platform's health waits for this answer.
_CHECK_WITHIN_S: Final = 0.3
_ANSWER_TTL_S: Final = 1.0
_AWAY: Final = (
    "Redis, the broker, does not answer; jobs are accepted, but the schedulers run at their own interval only"
)


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


class CeleryWakeup:
    """The channel of production: Celery messages sent by name, so that the sender needs none of the scheduler's code.

    Hands each wake-up to one background thread: a broker that is slow or away never delays a request.
    """

    def __init__(self, broker_url: str) -> None:
        # Importing Celery takes a quarter of a second: only processes that send through it pay for that.
        from celery import Celery

        self._app = Celery("trainmaster-wakeup", broker=broker_url, set_as_current=False)
        self._app.conf.update(
            broker_connection_timeout=2,
            broker_transport_options={"socket_timeout": 2, "socket_connect_timeout": 2},
            task_ignore_result=True,
        )
        self._waiting: queue.Queue[tuple[str, str]] = queue.Queue(_MAX_PENDING)
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self._problem: str | None = None
        self._checked_at = float("-inf")
        self._checking = threading.Lock()

    def problem(self, *, is_asking: bool = True) -> str | None:
        """What is wrong with the broker, in words: connects to it within about a second, or gives the last answer.

        Sent wake-ups tell nothing here: a quiet platform sends none for hours.
        """
        # One thread connects for all: the others would only wait for the same answer.
        if is_asking and self._checking.acquire(blocking=False):
            try:
                if time.monotonic() - self._checked_at >= _ANSWER_TTL_S:
                    self._problem = None if _answers(self._app) else _AWAY
                    self._checked_at = time.monotonic()
            finally:
                self._checking.release()
        return self._problem

    def notify(self, topic: str, key: str = "") -> None:
        try:
            self._waiting.put_nowait((topic, key))
        except queue.Full:
            return
        if self._thread is None or not self._thread.is_alive():  # not alive: the process has forked since
            with self._starting:
                if self._thread is None or not self._thread.is_alive():
                    self._thread = threading.Thread(target=self._send, name="wakeups", daemon=True)
                    self._thread.start()

    def _send(self) -> None:
        while True:
            topic, key = self._waiting.get()
            options: dict[str, Any] = {"retry": False, "ignore_result": True, "expires": 30}
            try:
                self._app.send_task(
                    TASK_OF_TOPIC[topic], args=(key,) if key else (), queue=QUEUE_OF_TOPIC[topic], **options
                )
            except Exception:  # noqa: BLE001, S110 - whatever the broker says, the wake-up may be lost
                pass


def make_wakeup(settings: Settings) -> Wakeup:
    """The wake-up channel to this platform's scheduler."""
    if settings.is_embedded_broker:
        return SocketWakeup(wakeup_socket_path(settings.run_dir))
    return CeleryWakeup(settings.broker_url)


def _answers(app: Celery) -> bool:
    # ``max_retries``: one immediate retry, since a connection may be refused by chance.
    patience = {"socket_timeout": _CHECK_WITHIN_S, "socket_connect_timeout": _CHECK_WITHIN_S}
    try:
        with app.connection_for_write(connect_timeout=_CHECK_WITHIN_S, transport_options=patience) as connection:
            connection.ensure_connection(max_retries=1, interval_start=0, interval_step=0, timeout=_CHECK_WITHIN_S)
    except Exception:  # noqa: BLE001 - any error of the broker's library means that it does not answer
        return False
    return True
