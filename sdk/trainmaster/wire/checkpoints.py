"""API models of checkpoints: their tensors, statistics and differences, and their retention."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import Field

from trainmaster.wire.base import Page, WireModel, WireRequest

TensorKind = Literal["weight", "optimizer"]
Change = Literal["added", "removed", "reshaped", "moved", "same", "unread"]


class TensorView(WireModel):
    """A tensor of a checkpoint. ``dtype``: torch's name. ``size_bytes``: unknown if the dtype is not decoded.

    ``note``: why its elements cannot be read; otherwise empty.
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
    """Tensors in the order of the checkpoint. The other fields describe the whole checkpoint, on every page."""

    format: str
    tensor_count: int
    found_count: int = Field(description="Number of tensors that match the query.")
    weight_count: int = Field(description="Number of parameters: elements of all weights.")
    weight_bytes: int
    optimizer_bytes: int
    values: dict[str, Any] = Field(
        default_factory=dict, description="Values other than tensors, such as epochs, by path."
    )
    notes: list[str] = Field(default_factory=list, description="Remarks, such as a missing file.")


class HistogramView(WireModel):
    """Histogram with bins of equal width from ``low`` to ``high``."""

    low: float
    high: float
    counts: list[int]


class TensorStatistics(WireModel):
    """Statistics of one tensor, over its finite elements; ``null``: undefined."""

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
    note: str = Field(default="", description="Why there are no statistics, or a remark.")


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
    relative_norm: float | None = Field(default=None, description="Norm of the difference divided by the norm before.")
    cosine: float | None = Field(default=None, description="Cosine similarity.")
    largest_move: float | None = None
    changed_count: int | None = Field(default=None, description="Number of different elements.")
    unknown_count: int | None = Field(
        default=None, description="Number of elements that are NaN or infinite in one of the two."
    )
    note: str = ""


class LayerDifference(WireModel):
    """The weights of one layer together."""

    layer: str
    tensor_count: int
    relative_norm: float | None = None
    cosine: float | None = None


class DifferencePage(Page[TensorDifference]):
    """Added, removed and reshaped tensors first, then the others in the order of the first checkpoint.

    The counts are totals; ``layers`` are only on the last page.
    """

    added_count: int
    removed_count: int
    reshaped_count: int
    common_count: int
    layers: list[LayerDifference] | None = None


class RetentionRequest(WireRequest):
    """Retention policy: a complete checkpoint is kept if any rule selects it, otherwise deleted later.

    At least one rule is required.
    """

    last: int | None = Field(default=None, ge=1, le=10_000, description="Keep so many newest checkpoints.")
    best: int | None = Field(default=None, ge=1, le=10_000, description="Keep so many best checkpoints by `metric`.")
    metric: str | None = Field(default=None, min_length=1, max_length=250)
    mode: Literal["min", "max"] = Field(default="min", description="Whether a small or a large value is better.")
    every: int | None = Field(default=None, ge=1, le=10**15, description="Keep checkpoints at multiples of this step.")


class RetentionView(WireModel):
    """The present retention policy; all rules `null`: nothing is deleted."""

    last: int | None = None
    best: int | None = None
    metric: str | None = None
    mode: Literal["min", "max"] = "min"
    every: int | None = None
    user: str | None = None
    updated_at: datetime | None = None
