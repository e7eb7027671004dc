"""API models of notification channels and notifications."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Final, Literal

from pydantic import Field

from trainmaster.wire.base import WireModel, WireRequest
from trainmaster.wire.webhooks import Description, EventTypes

DEFAULT_EVENT_TYPES: Final = (
    "job.succeeded", "job.failed", "job.expired", "attempt.preempted", "replica.lost", "storage.*", "node.unready",
    "node.quarantined",
)  # fmt: skip
ServiceUrl = Annotated[
    str,
    Field(
        min_length=1,
        max_length=2_000,
        description="Of a service of Apprise, such as `slack://…`, `mailtos://…`, `ntfys://topic`; it is stored sealed "
        "and never shown.",
    ),
]


class ChannelView(WireModel):
    """Where people are notified. ``project``: `null` for the caller's own jobs. ``service``: without secrets."""

    id: str
    project: str | None
    service: str
    description: str
    event_types: list[str]
    is_enabled: bool
    created_at: datetime


class ChannelCreate(WireRequest):
    url: ServiceUrl
    project: str | None = Field(
        default=None, max_length=100, description="All events of this project (its admins); `null`: of your own jobs."
    )
    event_types: EventTypes = Field(default_factory=lambda: list(DEFAULT_EVENT_TYPES))
    description: Description = ""


class ChannelChange(WireRequest):
    """Omitted fields stay."""

    url: ServiceUrl | None = None
    event_types: EventTypes | None = None
    description: Description | None = None
    is_enabled: bool | None = None


class NotificationView(WireModel):
    """One event for one channel. ``attempts``: messages that failed, and the one that was sent."""

    id: int
    event_type: str
    text: str
    state: Literal["waiting", "sent", "dead"]
    attempts: int
    error: str
    created_at: datetime
    finished_at: datetime | None
