"""Prometheus metrics of a scheduler process or a beat."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

# Seconds. Reconciling an attempt takes milliseconds, a tick over thousands of jobs a second.
_BUCKETS = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0)


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
