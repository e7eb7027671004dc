"""Base classes of the API models, and number types of requests.

NaN and infinity are rejected: JSON has neither, and as ``null`` they would remove settings.
"""

from __future__ import annotations

from datetime import datetime
from math import isfinite
from typing import Annotated, Any, Final, Generic, TypeAlias, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

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


_LEAST_WEIGHT: Final = 0.001
_MOST_WEIGHT: Final = 1000.0


def _weight(value: float) -> float:
    if not _LEAST_WEIGHT <= value <= _MOST_WEIGHT:  # also rejects NaN
        raise ValueError(
            f"must be a number from {_LEAST_WEIGHT:g} to {_MOST_WEIGHT:g}; weight 2 gets twice the share of weight 1"
        )
    return value


def _finite(value: Any) -> Any:
    """``value``; rejects infinite numbers and NaN at any depth."""
    if isinstance(value, float) and not isfinite(value):
        raise ValueError(f"{value} is not a finite number")
    if isinstance(value, dict):
        for each in value.values():
            _finite(each)
    elif isinstance(value, list | tuple):
        for each in value:
            _finite(each)
    return value


# Weight of a fair share.
Weight: TypeAlias = Annotated[
    float,
    AfterValidator(_weight),
    Field(json_schema_extra={"minimum": _LEAST_WEIGHT, "maximum": _MOST_WEIGHT}),
]
# Any JSON value.
Finite: TypeAlias = Annotated[Any, AfterValidator(_finite)]
# An amount such as 16, 0.5 or "512Gi"; `null` removes the limit.
AmountText: TypeAlias = Annotated[int | float | str | None, AfterValidator(_finite)]
