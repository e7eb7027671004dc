"""Requests to endpoints as they pass through this process, for Prometheus."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

# Seconds: a small model answers within milliseconds, a large one may take the minute that a deployment gives it.
_BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
# Pairs of project and endpoint that are told apart; the others are told together. Names come and go for years.
_MOST: Final = 2_000
_OTHERS: Final = "(others)"


class Predictions:
    """Counts what was asked, what came of it, and how long that took."""

    def __init__(self, registry: CollectorRegistry) -> None:
        place = ["project", "endpoint"]
        self.requests = Counter(
            "trainmaster_endpoint_requests",
            "Requests to endpoints. answered_by: model, or platform where no replica answered.",
            [*place, "deployment", "answered_by", "status"],
            registry=registry,
        )
        self.seconds = Histogram(
            "trainmaster_endpoint_request_seconds",
            "Time from a request's arrival at an endpoint to the start of the model's answer.",
            [*place, "deployment"],
            buckets=_BUCKETS,
            registry=registry,
        )
        self.open = Gauge(
            "trainmaster_endpoint_requests_in_flight",
            "Requests to endpoints that are being answered now.",
            place,
            registry=registry,
        )
        self.broken = Counter(
            "trainmaster_endpoint_broken_answers",
            "Answers that a replica broke off in the middle.",
            [*place, "deployment"],
            registry=registry,
        )
        self.unread = Counter(
            "trainmaster_endpoint_unread_answers",
            "Answers that were cut off because who asked did not take them.",
            [*place, "deployment"],
            registry=registry,
        )
        self._known: set[tuple[str, str]] = set()

    def begin(self, project: str, endpoint: str) -> Prediction:
        """A request has come."""
        place = (project, endpoint)
        if place not in self._known:
            if len(self._known) >= _MOST:
                place = (_OTHERS, _OTHERS)
            else:
                self._known.add(place)
        return Prediction(self, place)


class Prediction:
    """One request to an endpoint."""

    def __init__(self, counts: Predictions, place: tuple[str, str]) -> None:
        self._counts = counts
        self._place = place
        self._began_s = time.perf_counter()
        self._deployment = ""

    @contextmanager
    def open(self) -> Iterator[None]:
        """While it is open."""
        gauge = self._counts.open.labels(*self._place)
        gauge.inc()
        try:
            yield
        finally:
            gauge.dec()

    def answered(self, deployment: str, status: int) -> None:
        """A replica of ``deployment`` began an answer."""
        self._deployment = deployment
        self._counts.requests.labels(*self._place, deployment, "model", str(status)).inc()
        self._counts.seconds.labels(*self._place, deployment).observe(time.perf_counter() - self._began_s)

    def refused(self, status: int) -> None:
        """The platform answers in the model's place."""
        self._counts.requests.labels(*self._place, self._deployment, "platform", str(status)).inc()

    def broke_off(self) -> None:
        """The replica broke its answer off."""
        self._counts.broken.labels(*self._place, self._deployment).inc()

    def not_read(self) -> None:
        """Who asked did not take the answer."""
        self._counts.unread.labels(*self._place, self._deployment).inc()
