"""Checkpoints on the wire: which there are, what is inside of one, and how far two are apart."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import Field

from trainmaster.wire.base import Page, WireModel, WireRequest

TensorKind = Literal["weight", "optimizer"]
Change = Literal["added", "removed", "reshaped", "moved", "same", "unread"]


class TensorView(WireModel):
    """``dtype`` as torch names it. ``size_bytes`` is unknown where ``dtype`` is not decoded. ``note``: why the elements cannot
    be read; empty where they can.
    """

    name: str
    shape: list[int]
    dtype: str
    count: int = Field(description="Elements.")
    size_bytes: int | None = None
    kind: TensorKind
    layer: str = ""
    file: str = ""
    note: str = ""


class TensorPage(Page[TensorView]):
    """Tensors in the order of the checkpoint. The other fields tell of the whole checkpoint, on each page."""

    format: str
    tensor_count: int
    found_count: int = Field(description="Tensors that fit the query.")
    weight_count: int = Field(description="Elements of all weights: what is called the number of parameters.")
    weight_bytes: int
    optimizer_bytes: int
    values: dict[str, Any] = Field(default_factory=dict, description="What is no tensor, such as epochs, by its path.")
    notes: list[str] = Field(default_factory=list, description="Sentences for people, such as a missing file.")


class HistogramView(WireModel):
    """Equal bins from ``low`` to ``high``."""

    low: float
    high: float
    counts: list[int]


class TensorStatistics(WireModel):
    """Of one tensor; ``null`` where there is no such number. Minimum to norm are those of the finite elements."""

    name: str
    count: int | None = None
    nan_count: int | None = None
    infinite_count: int | None = None
    zero_share: float | None = Field(default=None, description="Between 0 and 1.")
    minimum: float | None = None
    maximum: float | None = None
    mean: float | None = None
    standard_deviation: float | None = None
    norm: float | None = Field(default=None, description="Euclidean.")
    histogram: HistogramView | None = None
    note: str = Field(default="", description="Why it has none, or what to know about them.")


class TensorDifference(WireModel):
    """One tensor in two checkpoints. The figures are there where ``change`` is ``moved`` or ``same``."""

    name: str
    layer: str = ""
    kind: TensorKind
    change: Change
    shape_before: list[int] | None = None
    shape_after: list[int] | None = None
    dtype_before: str | None = None
    dtype_after: str | None = None
    norm_before: float | None = None
    norm_after: float | None = None
    norm_moved: float | None = None
    relative_norm: float | None = Field(default=None, description="Norm of the move over the norm before.")
    cosine: float | None = Field(default=None, description="Of the angle between the two.")
    largest_move: float | None = None
    changed_count: int | None = Field(default=None, description="Elements that are not equal.")
    unknown_count: int | None = Field(default=None, description="Elements that are NaN or infinite in one of them.")
    note: str = ""


class LayerDifference(WireModel):
    """The weights of one layer together."""

    layer: str
    tensor_count: int
    relative_norm: float | None = None
    cosine: float | None = None


class DifferencePage(Page[TensorDifference]):
    """First what appeared, went or changed its shape, then the rest in the order of the first checkpoint. The counts are of
    all; ``layers`` are on the last page.
    """

    added_count: int
    removed_count: int
    reshaped_count: int
    common_count: int
    layers: list[LayerDifference] | None = None


class RetentionRequest(WireRequest):
    """Which complete checkpoints stay; all others are deleted by and by. At least one rule must be stated."""

    last: int | None = Field(default=None, ge=1, le=10_000, description="So many newest.")
    best: int | None = Field(default=None, ge=1, le=10_000, description="So many best by `metric`.")
    metric: str | None = Field(default=None, min_length=1, max_length=250)
    mode: Literal["min", "max"] = Field(default="min", description="Whether a small or a large metric is good.")
    every: int | None = Field(default=None, ge=1, le=10**15, description="Those whose step this number divides.")


class RetentionView(WireModel):
    """``null`` everywhere: nothing is deleted."""

    last: int | None = None
    best: int | None = None
    metric: str | None = None
    mode: Literal["min", "max"] = "min"
    every: int | None = None
    user: str | None = None
    updated_at: datetime | None = None
