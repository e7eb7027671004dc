"""API models of webhooks and their deliveries."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from trainmaster.wire.base import WireModel, WireRequest

EventTypes = Annotated[
    list[Annotated[str, Field(max_length=100, pattern=r"^(\*|[a-z_]+\.([a-z_]+|\*))$")]],
    Field(
        min_length=1,
        max_length=50,
        description="Kinds of events: such as `job.failed`, `job.*` for all of jobs, `*` for all.",
    ),
]
WebhookUrl = Annotated[str, Field(min_length=1, max_length=2_000, description="https:// or http://; it gets POSTs.")]
Description = Annotated[str, Field(max_length=1_000)]
DeliveryStateName = Literal["waiting", "delivered", "dead"]


class WebhookView(WireModel):
    """An endpoint that events are sent to. ``project``: `null` for events of the whole platform.

    ``waiting`` and ``dead``: numbers of deliveries. ``disabled_reason``: why the platform disabled it.
    """

    id: str
    project: str | None
    url: str
    description: str
    event_types: list[str]
    is_enabled: bool
    disabled_reason: str
    old_secret_until: datetime | None = Field(description="Until then the secret before the last rotation signs, too.")
    waiting: int
    dead: int
    created_at: datetime


class WebhookWithSecret(WebhookView):
    """``secret``: shown this once."""

    secret: str


class WebhookCreate(WireRequest):
    project: str | None = Field(
        default=None, max_length=100, description="`null`: events of the whole platform (platform admins)."
    )
    url: WebhookUrl
    event_types: EventTypes
    description: Description = ""


class WebhookChange(WireRequest):
    """Omitted fields stay."""

    url: WebhookUrl | None = None
    event_types: EventTypes | None = None
    description: Description | None = None
    is_enabled: bool | None = Field(
        default=None, description="While it is disabled, no events are added and waiting ones are kept."
    )


class WebhookRotate(WireRequest):
    overlap_hours: float = Field(
        default=24.0, ge=0, le=720, description="For so long messages are signed with the old secret as well."
    )


class DeliveryView(WireModel):
    """One event for one webhook. ``attempts``: since the last replay. ``error``: why the last one failed."""

    id: int
    event_id: int | None = Field(description="`null`: a test.")
    event_type: str
    object: str
    state: DeliveryStateName
    attempts: int
    next_at: datetime | None = Field(description="Of the next attempt.")
    response_status: int | None
    response_excerpt: str
    error: str
    duration_ms: int | None
    created_at: datetime
    finished_at: datetime | None
    body: str = Field(description="What is sent.")
