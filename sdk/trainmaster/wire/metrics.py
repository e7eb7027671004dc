"""API models of the reports of replicas, and of job metrics: series and charts.

Numbers that JSON lacks are the texts ``"NaN"``, ``"Infinity"`` and ``"-Infinity"``. Times are seconds since 1970 with
millisecond precision.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import Field

from trainmaster.wire.base import WireModel, WireRequest

MetricKind = Literal["scalar", "histogram", "image", "text"]
# A number in responses and requests.
Value = float | Literal["NaN", "Infinity", "-Infinity"]


class ReportItem(WireModel):
    """One report. A replica's items are numbered from 1 without gaps; the server drops repeated numbers.

    ``heartbeat``: data empty. ``progress``: ``{"step", "steps", "epoch", "metrics": {name: value}}``, each optional.
    ``checkpoint``: ``{"path" (relative to the output), "step", "metrics", "size_bytes"}``.
    ``event``: ``{"kind", "reason"}``, an event of the job.
    ``metrics``: ``{"series": [NewPoints], "objects": [NewObject]}``; metrics of a ``progress`` item also become points.
    """

    seq: int = Field(ge=1)
    at: datetime
    kind: Literal["heartbeat", "progress", "checkpoint", "event", "metrics"]
    data: dict[str, Any] = Field(default_factory=dict)


class Report(WireRequest):
    role: str
    index: int = Field(ge=0)
    generation: int = Field(default=1, ge=1)
    items: list[ReportItem] = Field(max_length=1000)


class ReportAnswer(WireModel):
    """``acked``: highest stored number; items up to it may be removed from the spool."""

    acked: int


class NewPoints(WireModel):
    """New points of a series: ``steps``, ``values`` and ``times_s`` (default: now) have the same length."""

    name: str
    steps: list[int]
    values: list[float]
    times_s: list[float] | None = None


class NewObject(WireModel):
    """A histogram, image or text.

    ``data``: of a histogram ``{"edges": [n + 1 increasing numbers], "counts": [n numbers]}``; of an image its file
    (PNG, JPEG, GIF or WebP) in base64; of a text the text.
    """

    name: str
    kind: Literal["histogram", "image", "text"]
    step: int = 0
    time_s: float | None = None
    data: Any


class NewMetrics(WireModel):
    """Content of a report item of kind ``metrics``. ``is_printed``: parsed from log lines without a user's pattern;
    such values are ignored if the script reports the same metric otherwise.
    """

    series: list[NewPoints] = Field(default_factory=list, max_length=5000)
    objects: list[NewObject] = Field(default_factory=list, max_length=200)
    is_printed: bool = False


class MetricsBatch(WireRequest):
    """``batch``: increasing number of the batch of ``writer``, for de-duplication."""

    role: str
    index: int = Field(ge=0, le=2**31 - 1)
    writer: str = Field(default="", max_length=100)
    batch: int | None = Field(default=None, ge=0, le=2**53)
    series: list[NewPoints] = Field(default_factory=list, max_length=5000)
    objects: list[NewObject] = Field(default_factory=list, max_length=200)


class MetricsAnswer(WireModel):
    """Numbers of accepted points and objects. ``faults``: a message for each rejected series or object."""

    points: int
    objects: int
    is_repeated: bool = False
    faults: list[str] = Field(default_factory=list)


class MetricView(WireModel):
    """One series with its newest point and the range of its finite values. ``count``: number of points or objects."""

    job: str
    attempt: int
    role: str
    index: int
    name: str
    kind: MetricKind
    count: int
    last_step: int | None = None
    last_time_s: float | None = None
    last_value: Value | None = None
    low: float | None = None
    high: float | None = None


class MetricName(WireModel):
    """A name of series."""

    name: str
    kind: MetricKind


class MetricSuggestion(WireModel):
    """A log line that looks like a metric, and the entry of ``metric_patterns`` that reads it."""

    line: str
    pattern: str


class MetricSuggestions(WireModel):
    """Of a job that has ended without metrics; else empty."""

    suggestions: list[MetricSuggestion] = Field(default_factory=list)


class PointColumns(WireModel):
    """Points as columns of the same length."""

    steps: list[int]
    times_s: list[float]
    values: list[Value]


class BucketColumns(WireModel):
    """A downsampled series: consecutive buckets of points, as columns of the same length.

    Each bucket has its range of steps and times, number of points, minimum, maximum and mean of the finite values (null
    without any), first and last value, and number of NaN or infinite values. So peaks are preserved.
    """

    steps: list[int]
    steps_to: list[int]
    times_s: list[float]
    times_to_s: list[float]
    counts: list[int]
    lows: list[float | None]
    highs: list[float | None]
    means: list[float | None]
    firsts: list[Value]
    lasts: list[Value]
    not_finite: list[int]


class ChartSeries(MetricView):
    """A series in the window: its points, or buckets if there are many points."""

    points: PointColumns | None = None
    buckets: BucketColumns | None = None


class MetricsChart(WireModel):
    """Series for a chart. ``cursor``: `Last-Event-ID` (or `after`) for the stream of later points."""

    series: list[ChartSeries]
    is_cut: bool = Field(default=False, description="Whether there are more series than a response may have.")
    cursor: str = ""


class MetricObjectView(WireModel):
    """A histogram (``data``: edges and counts), a text (``data``), or an image (content at ``url``)."""

    id: int
    step: int
    time_s: float
    kind: MetricKind
    media_type: str
    data: Any = None
    url: str | None = None


class GpuUse(WireModel):
    """Usage of one GPU in the window. ``is_idle``: allocated, but practically unused."""

    index: int
    utilisation_percent: float | None = None
    memory_bytes: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    ecc_uncorrected: float | None = Field(
        default=None, description="Uncorrected memory errors since the driver was loaded."
    )
    xid: float | None = Field(default=None, description="NVIDIA's XID of the newest driver or hardware error.")
    is_idle: bool = False


class ReplicaUse(WireModel):
    """Average resource usage of a replica in the window; ``None``: unknown."""

    attempt: int
    role: str
    index: int
    at_s: float | None = None
    cpu_percent: float | None = Field(default=None, description="100 is one core.")
    memory_bytes: float | None = None
    memory_peak_bytes: float | None = None
    disk_read_bytes_s: float | None = None
    disk_written_bytes_s: float | None = None
    network_received_bytes_s: float | None = None
    network_sent_bytes_s: float | None = None
    gpus: list[GpuUse] = Field(default_factory=list)


class ResourceSummary(WireModel):
    """Resource usage of a job. ``notes``: remarks such as idle GPUs or ranks that deviate from the others."""

    window_s: float
    replicas: list[ReplicaUse]
    notes: list[str] = Field(default_factory=list)
