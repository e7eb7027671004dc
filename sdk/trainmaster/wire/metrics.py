"""Metrics on the wire: what replicas report, what there is, and charts of it.

Numbers that JSON does not have stand as the texts ``"NaN"``, ``"Infinity"`` and ``"-Infinity"``. Times are seconds since
1970, exact to the millisecond.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from trainmaster.wire.base import WireModel, WireRequest

MetricKind = Literal["scalar", "histogram", "image", "text"]
# A number as answers have it; requests take the same.
Value = float | Literal["NaN", "Infinity", "-Infinity"]


class NewPoints(WireModel):
    """Points of one series in order of arrival: ``steps`` and ``values`` of one length, ``times_s`` too or left out (now)."""

    name: str
    steps: list[int]
    values: list[float]
    times_s: list[float] | None = None


class NewObject(WireModel):
    """``data``: of a histogram ``{"edges": [n + 1 numbers that grow], "counts": [n numbers]}``, of an image its file (PNG, JPEG,
    GIF or WebP) in base64, of a text the text.
    """

    name: str
    kind: Literal["histogram", "image", "text"]
    step: int = 0
    time_s: float | None = None
    data: Any


class NewMetrics(WireModel):
    """What a report item of kind ``metrics`` holds. ``is_printed``: read in lines that nobody named a pattern for, so that it
    counts only where the script does not tell it otherwise.
    """

    series: list[NewPoints] = Field(default_factory=list, max_length=5000)
    objects: list[NewObject] = Field(default_factory=list, max_length=200)
    is_printed: bool = False


class MetricsBatch(WireRequest):
    """``batch``: grows with each batch of ``writer``; one that came already is not taken again."""

    role: str
    index: int = Field(ge=0, le=2**31 - 1)
    writer: str = Field(default="", max_length=100)
    batch: int | None = Field(default=None, ge=0, le=2**53)
    series: list[NewPoints] = Field(default_factory=list, max_length=5000)
    objects: list[NewObject] = Field(default_factory=list, max_length=200)


class MetricsAnswer(WireModel):
    """What was taken. ``faults``: a sentence for each series or object that was not."""

    points: int
    objects: int
    is_repeated: bool = False
    faults: list[str] = Field(default_factory=list)


class MetricView(WireModel):
    """One series: its newest point, and the range of its finite values. ``count``: points so far, or objects written."""

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
    """What some series are called."""

    name: str
    kind: MetricKind


class PointColumns(WireModel):
    """Points as columns of one length."""

    steps: list[int]
    times_s: list[float]
    values: list[Value]


class BucketColumns(WireModel):
    """Runs of points as columns of one length, in order: the steps and times that they span, how many points they are, the
    lowest, highest and mean finite value (null: there is none), the first and last as they came, and how many are NaN or
    infinite. No peak is lost.
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
    """A series in the window: its points where these are few, else buckets."""

    points: PointColumns | None = None
    buckets: BucketColumns | None = None


class Chart(WireModel):
    """``cursor``: give it to the stream as `Last-Event-ID` (or `after`), and it tells what comes after this answer."""

    series: list[ChartSeries]
    is_cut: bool = Field(default=False, description="There are more series than one answer holds.")
    cursor: str = ""


class MetricObjectView(WireModel):
    """A histogram (``data``: edges and counts), a text (``data``), or an image, whose bytes are at ``url``."""

    id: int
    step: int
    time_s: float
    kind: MetricKind
    media_type: str
    data: Any = None
    url: str | None = None


class GpuUse(WireModel):
    """One GPU over the window. ``is_idle``: it did nothing worth its holding."""

    index: int
    utilisation_percent: float | None = None
    memory_bytes: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    ecc_uncorrected: float | None = Field(default=None, description="Memory errors since the driver was loaded.")
    xid: float | None = Field(default=None, description="The newest error of driver or hardware, by NVIDIA's number.")
    is_idle: bool = False


class ReplicaUse(WireModel):
    """What a replica used, as means over the window; ``None``: not known there."""

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
    """``notes``: what stands out, in sentences: idle GPUs, ranks that are far from the others."""

    window_s: float
    replicas: list[ReplicaUse]
    notes: list[str] = Field(default_factory=list)
