"""Prometheus metrics of one application, in a registry of its own."""

from __future__ import annotations

import os
import socket

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from api.prometheus.predictions import PredictionMetrics

# Seconds. The budgets (50 ms for a list, 100 ms for a submission) lie on edges, so that a dashboard can tell.
_LATENCY_BUCKETS = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)


class RequestMetrics:
    """Counts requests in this process; metrics from the database are read for each scrape of ``/metrics``.

    ``process``: a unique name of this API process, over all machines.
    """

    def __init__(self) -> None:
        self.process = f"{socket.gethostname()}:{os.getpid()}"
        self.registry = CollectorRegistry()
        self.request_seconds = Histogram(
            "trainmaster_request_seconds",
            "Time from a request's arrival to the start of its answer.",
            ["operation", "method"],
            buckets=_LATENCY_BUCKETS,
            registry=self.registry,
        )
        self.requests = Counter(
            "trainmaster_requests", "Requests answered.", ["operation", "method", "status"], registry=self.registry
        )
        self.requests_in_flight = Gauge(
            "trainmaster_requests_in_flight", "Requests being answered now.", registry=self.registry
        )
        self.predictions = PredictionMetrics(self.registry)

    def record(self, *, operation: str, method: str, status: int, seconds: float) -> None:
        self.requests.labels(operation, method, str(status)).inc()
        self.request_seconds.labels(operation, method).observe(seconds)
