"""A job's trace, as a collector gets it over OTLP."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("opentelemetry.sdk", reason="the extra telemetry is not installed")
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from core.telemetry import SpanPlace

pytestmark = pytest.mark.e2e


class Collector(ThreadingHTTPServer):
    """Receives OTLP over HTTP. ``spans``: of all services, with the service's name."""

    def __init__(self) -> None:
        self.spans: list[tuple[str, Any]] = []
        super().__init__(("127.0.0.1", 0), _Receiver)

    def of_trace(self, trace_id: int) -> dict[str, Any]:
        """By their names."""
        wanted = trace_id.to_bytes(16)
        return {span.name: span for _, span in list(self.spans) if span.trace_id == wanted}


class _Receiver(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        assert isinstance(self.server, Collector)
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            names = {attribute.key: attribute.value.string_value for attribute in resource.resource.attributes}
            for scope in resource.scope_spans:
                self.server.spans += [(names["service.name"], span) for span in scope.spans]
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - http.server's names
        pass


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_a_job_is_one_trace_from_its_submission_to_its_end(
    tmp_path: Path, launch: Any, eventually: Any, collector: Collector
) -> None:
    env = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{collector.server_address[1]}",
        "OTEL_BSP_SCHEDULE_DELAY": "200",
    }
    platform = launch(tmp_path / "home", env=env)
    try:
        command = ["sh", "-c", "echo $TRACEPARENT; sleep 0.5"]
        job = platform.client.submit({"name": "traced", "command": command, "max_restarts": 0})
        job.wait(timeout_s=120)
        place = SpanPlace(job.id)
        wanted = {"submit_job", "job", "queue", "attempt 1", "start", "executor.create", "replica worker-0"}
        wanted |= {"prepare", "first line", "command"}
        eventually(
            lambda: wanted <= collector.of_trace(place.trace_id).keys(),
            within_s=60,
            what=f"all spans came, only {sorted(collector.of_trace(place.trace_id))}",
        )
        spans = collector.of_trace(place.trace_id)
        assert spans.keys() == wanted
        names = {span.span_id: span.name for span in spans.values()}
        assert {name: names.get(span.parent_span_id) for name, span in spans.items()} == {
            "job": None,
            "submit_job": "job",
            "queue": "job",
            "attempt 1": "job",
            "start": "attempt 1",
            "executor.create": "attempt 1",
            "replica worker-0": "attempt 1",
            "prepare": "replica worker-0",
            "first line": "replica worker-0",
            "command": "replica worker-0",
        }
        assert all(span.start_time_unix_nano <= span.end_time_unix_nano for span in spans.values())
        assert spans["command"].end_time_unix_nano - spans["command"].start_time_unix_nano > 0.5e9
        # A program of the user's finds its place in the environment.
        attempt = spans["attempt 1"]
        printed = next(line.text for line in job.logs())
        assert printed == f"00-{attempt.trace_id.hex()}-{attempt.span_id.hex()}-01"
        services = {service for service, _ in collector.spans}
        assert {"trainmaster-api", "trainmaster-worker"} <= services
        assert "trainmaster.tick" in {span.name for _, span in collector.spans}
    finally:
        platform.end()
