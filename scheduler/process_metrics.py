"""Prometheus metrics of a scheduler process or a beat, and a small HTTP server for its probes: ``/live``, ``/ready``
and ``/metrics``.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest

# Seconds. Reconciling an attempt takes milliseconds, a tick over thousands of jobs a second.
_BUCKETS = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0)
_READ_S: Final = 5.0


class ProcessMetrics:
    """Metrics in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.task_seconds = Histogram(
            "trainmaster_task_seconds",
            "Time that one run of a task took.",
            ["task"],
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self.tasks = Counter(
            "trainmaster_tasks", "Runs of tasks by their outcome.", ["task", "outcome"], registry=self.registry
        )
        self.beat_messages = Counter(
            "trainmaster_beat_messages", "Messages that this beat has sent.", ["task"], registry=self.registry
        )

    def add_gauge(self, name: str, text: str, value: Callable[[], float]) -> None:
        """A gauge ``trainmaster_<name>`` whose value is read at each scrape."""
        Gauge(f"trainmaster_{name}", text, registry=self.registry).set_function(value)

    @contextmanager
    def timed(self, task: str) -> Iterator[None]:
        began_s = time.perf_counter()
        try:
            yield
        finally:
            self.task_seconds.labels(task).observe(time.perf_counter() - began_s)


@dataclass(frozen=True, slots=True)
class ProcessProbe:
    """``why_dead`` and ``why_not_ready`` give a sentence, or an empty one when all is well. They must not block.

    A process is dead when a restart would help; an unreachable database is no such reason.
    """

    why_dead: Callable[[], str]
    why_not_ready: Callable[[], str]
    registry: CollectorRegistry


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Stay silent about a prober that hung up: probers of a slow machine time out."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


def serve_probe(probe: ProcessProbe, host: str, port: int) -> ThreadingHTTPServer:
    """Serve from now on, in a thread; ``shutdown()`` ends it. Raises ``OSError`` when the port is taken."""

    class Answer(BaseHTTPRequestHandler):
        timeout = _READ_S

        def do_GET(self) -> None:
            match self.path.partition("?")[0]:
                case "/live":
                    self._tell(probe.why_dead())
                case "/ready":
                    self._tell(probe.why_dead() or probe.why_not_ready())
                case "/metrics":
                    self._send(200, CONTENT_TYPE_LATEST, generate_latest(probe.registry))
                case _:
                    self._send(404, "text/plain", b"Available: /live, /ready and /metrics.\n")

        def _tell(self, why_not: str) -> None:
            self._send(503 if why_not else 200, "text/plain", (why_not or "ok").encode() + b"\n")

        def _send(self, status: int, kind: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - http.server's names
            """A line per probe would drown the others."""

    server = _Server((host, port), Answer)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, name="probe", daemon=True).start()
    return server
