"""Job metrics: series, charts, histograms, images and texts, and resource usage."""

from __future__ import annotations

from collections.abc import Sequence

from trainmaster.client.calls.build import params, path, typed
from trainmaster.client.steps import Call, HttpRequest
from trainmaster.wire.base import Page
from trainmaster.wire.metrics import (
    MetricName,
    MetricObjectView,
    MetricsChart,
    MetricSuggestions,
    MetricView,
    ResourceSummary,
)


def list_metrics_page(
    job: str,
    *,
    names: Sequence[str] | None = None,
    prefix: str | None = None,
    attempt: int | None = None,
    role: str | None = None,
    index: int | None = None,
    kind: str | None = None,
    system: bool | None = None,
    limit: int | None = None,
    cursor: str | None = None,
) -> Call[Page[MetricView]]:
    """One page of the job's series with their newest points. ``system=False``: without the platform's own metrics."""
    query = params(
        name=names,
        prefix=prefix,
        attempt=attempt,
        role=role,
        index=index,
        kind=kind,
        system=system,
        limit=limit,
        cursor=cursor,
    )
    return typed(Page[MetricView], "list_metrics", "GET", path("/jobs/{job}/metrics", job=job), query=query)


def list_metric_names_page(
    job: str,
    *,
    prefix: str | None = None,
    kind: str | None = None,
    system: bool | None = None,
    limit: int | None = None,
    cursor: str | None = None,
) -> Call[Page[MetricName]]:
    """One page of the distinct names of the job's series."""
    query = params(prefix=prefix, kind=kind, system=system, limit=limit, cursor=cursor)
    where = path("/jobs/{job}/metrics/names", job=job)
    return typed(Page[MetricName], "list_metric_names", "GET", where, query=query)


def suggest_metric_patterns(job: str) -> Call[MetricSuggestions]:
    """Log lines that look like metrics, with patterns that read them: of a job that has ended without metrics."""
    where = path("/jobs/{job}/metrics/suggestions", job=job)
    return typed(MetricSuggestions, "suggest_metric_patterns", "GET", where)


def chart_metrics(
    job: str,
    *,
    names: Sequence[str] | None = None,
    prefix: str | None = None,
    attempt: int | None = None,
    role: str | None = None,
    index: int | None = None,
    by: str = "step",
    low: float | None = None,
    high: float | None = None,
    buckets: int | None = None,
) -> Call[MetricsChart]:
    """The job's metrics from ``low`` to ``high`` (steps, or seconds since 1970 with ``by="time"``).

    A series of at most ``buckets`` (500) points is complete; a longer one is downsampled to so many buckets with
    minimum and maximum, so that peaks are preserved.
    """
    query = params(
        name=names,
        prefix=prefix,
        attempt=attempt,
        role=role,
        index=index,
        by=by,
        buckets=buckets,
        **{"from": low, "to": high},
    )
    return typed(MetricsChart, "chart_metrics", "GET", path("/jobs/{job}/metrics/chart", job=job), query=query)


def compare_metrics(
    jobs: Sequence[str],
    *,
    names: Sequence[str] | None = None,
    prefix: str | None = None,
    role: str | None = None,
    index: int | None = None,
    by: str = "step",
    low: float | None = None,
    high: float | None = None,
    buckets: int | None = None,
) -> Call[MetricsChart]:
    """The metrics of several jobs in one window, for comparison; see ``chart_metrics``."""
    query = params(
        job=jobs,
        name=names,
        prefix=prefix,
        role=role,
        index=index,
        by=by,
        buckets=buckets,
        **{"from": low, "to": high},
    )
    return typed(MetricsChart, "compare_metrics", "GET", "/metrics/chart", query=query)


def list_metric_objects_page(
    job: str,
    name: str,
    *,
    kind: str | None = None,
    attempt: int | None = None,
    index: int | None = None,
    limit: int | None = None,
    cursor: str | None = None,
) -> Call[Page[MetricObjectView]]:
    """One page of the histograms, images or texts of one series, oldest first."""
    query = params(name=name, kind=kind, attempt=attempt, index=index, limit=limit, cursor=cursor)
    at = path("/jobs/{job}/metrics/objects", job=job)
    return typed(Page[MetricObjectView], "list_metric_objects", "GET", at, query=query)


def read_metric_image(job: str, image: int) -> Call[bytes]:
    """The content of an image that the job reported, by its ID."""
    request = HttpRequest("GET", path("/jobs/{job}/metrics/images/{image}", job=job, image=image))
    return Call("read_metric_image", request, lambda answer: answer.content)


def summarise_resources(
    job: str, *, attempt: int | None = None, window_s: float | None = None
) -> Call[ResourceSummary]:
    """Resource usage of each replica, averaged over its last ``window_s`` seconds (300), and remarks."""
    query = params(attempt=attempt, window_s=window_s)
    return typed(ResourceSummary, "summarise_resources", "GET", path("/jobs/{job}/resources", job=job), query=query)
