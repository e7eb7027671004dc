"""Prometheus metrics of one application, in a registry of its own: of all requests, and of those to endpoints."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric, disable_created_metrics

# Seconds. The budgets (50 ms for a list, 100 ms for a submission) lie on edges, so that a dashboard can tell.
_LATENCY_BUCKETS = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
# Seconds: a small model answers within milliseconds, a large one may take the minute that a deployment gives it.
_PREDICTION_BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
# Pairs of project and endpoint with labels of their own; others are counted together, which bounds the cardinality.
_ENDPOINT_LIMIT: Final = 2_000
_OTHERS: Final = "(others)"

# The times at which counters began: as many samples as counters, and no query needs them.
disable_created_metrics()  # type: ignore[no-untyped-call]


def process_name() -> str:
    """A unique name of this process, over all machines."""
    return f"{socket.gethostname()}:{os.getpid()}"


class RequestMetrics:
    """Counts requests in this process; metrics from the database are read for each scrape of ``/metrics``.

    ``other_process``: the metrics of a process that serves a part of the requests. ``process``: see ``process_name``.
    """

    def __init__(self) -> None:
        self.other_process: Callable[[], Iterable[Metric]] = list
        self.process = process_name()
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

    def collect(self) -> Iterator[Metric]:
        """All families, with the label ``process``.

        Behind a load balancer each scrape may reach another process; without the label their counters would seem to
        jump.
        """
        for family in self.registry.collect():
            own = Metric(family.name, family.documentation, family.type)
            own.samples = [
                sample._replace(labels={**sample.labels, "process": self.process}) for sample in family.samples
            ]
            yield own

    def record(self, *, operation: str, method: str, status: int, seconds: float) -> None:
        self.requests.labels(operation, method, str(status)).inc()
        self.request_seconds.labels(operation, method).observe(seconds)


class PredictionMetrics:
    """Counts requests to endpoints, their results and their latencies."""

    def __init__(self, registry: CollectorRegistry) -> None:
        labels = ["project", "endpoint"]
        self.requests = Counter(
            "trainmaster_endpoint_requests",
            "Requests to endpoints. answered_by: model, or platform where no replica answered.",
            [*labels, "deployment", "answered_by", "status"],
            registry=registry,
        )
        self.seconds = Histogram(
            "trainmaster_endpoint_request_seconds",
            "Time from a request's arrival at an endpoint to the start of the model's answer.",
            [*labels, "deployment"],
            buckets=_PREDICTION_BUCKETS,
            registry=registry,
        )
        self.open = Gauge(
            "trainmaster_endpoint_requests_in_flight",
            "Requests to endpoints that are being answered now.",
            labels,
            registry=registry,
        )
        self.broken = Counter(
            "trainmaster_endpoint_broken_answers",
            "Answers that a replica broke off in the middle.",
            [*labels, "deployment"],
            registry=registry,
        )
        self.unread = Counter(
            "trainmaster_endpoint_unread_answers",
            "Answers that were aborted because the client did not read them.",
            [*labels, "deployment"],
            registry=registry,
        )
        self._known: set[tuple[str, str]] = set()

    def begin(self, project: str, endpoint: str) -> PredictionRecording:
        """Start to record a request."""
        labels = (project, endpoint)
        if labels not in self._known:
            if len(self._known) >= _ENDPOINT_LIMIT:
                labels = (_OTHERS, _OTHERS)
            else:
                self._known.add(labels)
        return PredictionRecording(self, labels)


class PredictionRecording:
    """One request to an endpoint."""

    def __init__(self, counts: PredictionMetrics, labels: tuple[str, str]) -> None:
        self._counts = counts
        self._labels = labels
        self._began_s = time.perf_counter()
        self._deployment = ""

    @contextmanager
    def open(self) -> Iterator[None]:
        """A context for the time that the request is open."""
        gauge = self._counts.open.labels(*self._labels)
        gauge.inc()
        try:
            yield
        finally:
            gauge.dec()

    def answered(self, deployment: str, status: int) -> None:
        """A replica of ``deployment`` began an answer."""
        self._deployment = deployment
        self._counts.requests.labels(*self._labels, deployment, "model", str(status)).inc()
        self._counts.seconds.labels(*self._labels, deployment).observe(time.perf_counter() - self._began_s)

    def refused(self, status: int) -> None:
        """The platform answered instead of the model."""
        self._counts.requests.labels(*self._labels, self._deployment, "platform", str(status)).inc()

    def mark_interrupted(self) -> None:
        """The replica broke the connection during its answer."""
        self._counts.broken.labels(*self._labels, self._deployment).inc()

    def not_read(self) -> None:
        """The client did not read the answer."""
        self._counts.unread.labels(*self._labels, self._deployment).inc()
