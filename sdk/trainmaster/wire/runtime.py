"""API models of the reports of a replica's runtime, which are sent with the attempt's token."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import Field

from trainmaster.wire.base import WireModel, WireRequest


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
