"""The bridge's process: a gRPC server with TLS, which is healthy if the platform answers."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

import grpc
import requests
from grpc_health.v1 import health, health_pb2, health_pb2_grpc  # pyright: ignore[reportMissingModuleSource]

from trainmaster.vertex_bridge.calls import OPERATIONS, PACKAGE, SERVICES, CallHandler, methods_of

# Concurrent calls. Each waits for the platform; deploying and predicting take longest.
WORKERS: Final = 32
_WAITING: Final = 8 * WORKERS  # further calls are rejected as RESOURCE_EXHAUSTED
# Above the platform's limit of 4 MiB of JSON, which is larger than the message; so the platform reports the error.
_MESSAGE_BYTES: Final = 64 * 2**20
_POLL_S: Final = 5.0
# A busy platform answers late; a stopped one refuses the connection at once.
_POLL_TIMEOUT_S: Final = 30.0
_GRACE_S: Final = 10.0  # of running calls when the bridge stops
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Tls:
    """A certificate (with its chain) and its key, as PEM."""

    certificate: bytes
    key: bytes


class CannotListen(Exception):
    """The address is not available, or the certificate does not match its key."""


class Bridge:
    """A server that runs from ``start`` to ``stop``."""

    def __init__(self, url: str, tls: Tls) -> None:
        self._url = url.rstrip("/")
        self._tls = tls
        self._health = health.HealthServicer()
        self._stopping = threading.Event()
        self._server: Any = None
        self._watch = threading.Thread(target=self._watch_platform, name="health", daemon=True)

    def start(self, address: str) -> int:
        """Listen on ``host:port``; returns the port, which is a free one for 0. Raises ``CannotListen``."""
        server = grpc.server(
            ThreadPoolExecutor(WORKERS, thread_name_prefix="call"),
            handlers=[CallHandler(methods_of(self._url, connections=WORKERS), self._url)],
            options=[
                ("grpc.max_receive_message_length", _MESSAGE_BYTES),
                ("grpc.max_send_message_length", -1),
                # Otherwise a second bridge on the same port would silently get a part of the calls.
                ("grpc.so_reuseport", 0),
            ],
            maximum_concurrent_rpcs=_WAITING,
        )
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        try:
            credentials = grpc.ssl_server_credentials([(self._tls.key, self._tls.certificate)])
            port: int = server.add_secure_port(address, credentials)
        except (RuntimeError, ValueError) as error:
            raise CannotListen(
                f"The bridge cannot listen on {address}: the address is in use or not of this machine, or the "
                "certificate and the key do not match."
            ) from error
        self._server = server
        self._set_health(self._answers())
        server.start()
        self._watch.start()
        return port

    def stop(self) -> None:
        """Accept no more calls, and wait at most ten seconds for running calls."""
        self._stopping.set()
        self._health.enter_graceful_shutdown()
        self._server.stop(_GRACE_S).wait()

    def wait(self) -> None:
        """Wait until it is stopped."""
        self._server.wait_for_termination()

    def _watch_platform(self) -> None:
        before: bool | None = None
        while not self._stopping.wait(_POLL_S):
            now = self._answers()
            if now != before and before is not None:
                _log.warning("The platform at %s %s.", self._url, "answers again" if now else "does not answer")
            before = now
            self._set_health(now)

    def _answers(self) -> bool:
        try:
            return bool(requests.get(f"{self._url}/api/v1/health", timeout=_POLL_TIMEOUT_S).status_code < 500)
        except requests.RequestException:
            return False

    def _set_health(self, answers: bool) -> None:
        status = health_pb2.HealthCheckResponse.SERVING if answers else health_pb2.HealthCheckResponse.NOT_SERVING
        for service in ("", OPERATIONS, *(f"{PACKAGE}.{name}" for name, _ in SERVICES)):
            self._health.set(service, status)


def serve(url: str, address: str, tls: Tls, *, ready: Callable[[int], None]) -> None:
    """Run the bridge until SIGINT or SIGTERM; ``ready`` gets the port. Raises ``CannotListen``."""
    import signal

    bridge = Bridge(url, tls)
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    ready(bridge.start(address))
    ended.wait()
    bridge.stop()
