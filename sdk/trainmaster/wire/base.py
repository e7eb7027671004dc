"""Base classes of the API models."""

from __future__ import annotations

from datetime import datetime
from typing import Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field

T = TypeVar("T")


class WireModel(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, populate_by_name=True)


class WireRequest(BaseModel):
    """A request body; unknown fields are rejected."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Page(WireModel, Generic[T]):
    """One page of a list. ``next_cursor``: cursor of the next page; ``None`` on the last page."""

    items: list[T]
    next_cursor: str | None = None


class ProblemError(WireModel):
    path: str
    message: str
    hint: str | None = None


class ProblemEvent(WireModel):
    """One event in the history of the object."""

    at: datetime
    kind: str
    actor: str
    reason: str = ""


class Problem(WireModel):
    """``application/problem+json`` (RFC 9457). ``detail``: a message that says what to do."""

    type: str = "about:blank"
    title: str
    status: int
    code: str
    detail: str
    field: str | None = None
    errors: list[ProblemError] = Field(default_factory=list)
    history: list[ProblemEvent] | None = Field(
        default=None, description="For an illegal transition: the object's last events, oldest first."
    )
    request_id: str | None = None
