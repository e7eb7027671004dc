"""What a replica's runtime reports, with the attempt's token."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import Field

from trainmaster.wire.base import WireModel, WireRequest


class ReportItem(WireModel):
    """One fact. Items of a replica are numbered from 1 without gaps; a repeated number is dropped by the server.

    ``heartbeat``: data empty. ``progress``: ``{"step", "steps", "epoch", "metrics": {name: value}}``, each optional.
    ``checkpoint``: ``{"path" (relative to the output), "step", "metrics", "size_bytes"}``.
    ``event``: ``{"kind", "reason"}``, a line for the job's history.
    ``metrics``: ``{"series": [NewPoints], "objects": [NewObject]}``; a progress' metrics are points of its step besides.
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
    """``acked``: the largest number the server has; everything up to it may leave the spool."""

    acked: int
