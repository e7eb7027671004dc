"""Reservations on the wire: nodes that an administrator keeps for one project for a time."""

from __future__ import annotations

from datetime import datetime

from pydantic import Field

from trainmaster.spec.fields import LabelKey, LabelValue, Name
from trainmaster.spec.model import MAX_ENTRIES
from trainmaster.wire.base import WireModel, WireRequest


class ReservationView(WireModel):
    """``name`` and ``project`` are `null` where the caller may not see the project."""

    id: str
    name: str | None = None
    project: str | None = None
    nodes: list[str]
    begins_at: datetime
    ends_at: datetime
    is_active: bool  # now
    warnings: list[str] = Field(default_factory=list)


class ReservationCreate(WireRequest):
    """Nodes by name, or all that carry the labels of ``node_selector``: at most ``count`` of them, those that are least used."""

    name: Name
    project: str = Field(max_length=100)
    nodes: list[str] = Field(default_factory=list, max_length=10_000)
    node_selector: dict[LabelKey, LabelValue] = Field(default_factory=dict, max_length=MAX_ENTRIES)
    count: int | None = Field(default=None, ge=1, le=10_000)
    begins_at: datetime | None = Field(default=None, description="Left out: now. Without an offset: UTC.")
    ends_at: datetime
