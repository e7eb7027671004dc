"""API models of reservations: nodes reserved for one project for a time."""

from __future__ import annotations

from datetime import datetime

from pydantic import Field

from trainmaster.spec.fields import LabelKey, LabelValue, Name
from trainmaster.spec.model import MAX_ENTRIES
from trainmaster.wire.base import WireModel, WireRequest


class ReservationView(WireModel):
    """A reservation. ``name`` and ``project`` are `null` if the caller may not see the project."""

    id: str
    name: str | None = None
    project: str | None = None
    nodes: list[str]
    begins_at: datetime
    ends_at: datetime
    is_active: bool  # now
    warnings: list[str] = Field(default_factory=list)


class ReservationCreate(WireRequest):
    """Reserve nodes by name, or by ``node_selector``: all with these labels, or the ``count`` least used of them."""

    name: Name
    project: str = Field(max_length=100)
    nodes: list[str] = Field(default_factory=list, max_length=10_000)
    node_selector: dict[LabelKey, LabelValue] = Field(default_factory=dict, max_length=MAX_ENTRIES)
    count: int | None = Field(default=None, ge=1, le=10_000)
    begins_at: datetime | None = Field(default=None, description="Default: now. Without an offset: UTC.")
    ends_at: datetime
