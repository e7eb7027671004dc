"""Quotas on the wire: what a project and each of its users may hold at the same time, and what is guaranteed to it."""

from __future__ import annotations

from typing import Final

from pydantic import Field

from trainmaster.wire.base import WireModel, WireRequest
from trainmaster.wire.numbers import AmountText, Weight

_MOST_NAMES: Final = 64


class QuotaLineView(WireModel):
    """One thing of a quota. ``what``: `jobs` that run at once, `cpu` (CPUs), `memory` (bytes), `gpus` of all models together, or
    `gpus/<model>`. ``capacity``: what all open nodes have together.
    """

    what: str
    used: float = 0
    limit: float | None = None
    guaranteed: float | None = None
    user_limit: float | None = None  # of each user
    capacity: float | None = None


class QuotaUserView(WireModel):
    """A user of the project: what the jobs hold now, limits of that user's own, and what is guaranteed inside the project."""

    user: str
    used: dict[str, float] = Field(default_factory=dict)
    limit: dict[str, float] = Field(default_factory=dict)
    guaranteed: dict[str, float] = Field(default_factory=dict)
    weight: float = 1.0


class QuotaView(WireModel):
    """``max_priority``: the largest priority that jobs of the project may have. ``warnings``: what is allowed and probably not
    meant, a sentence each.
    """

    project: str
    weight: float
    max_priority: int | None = None
    lines: list[QuotaLineView] = Field(default_factory=list)
    users: list[QuotaUserView] = Field(default_factory=list)
    warnings: list[str] = Field(default_factory=list)


class QuotaUpdate(WireRequest):
    """What changes; `null` takes away, what is not named stays. Keys as ``QuotaLineView.what``."""

    limit: dict[str, AmountText] = Field(default_factory=dict, max_length=_MOST_NAMES)
    guaranteed: dict[str, AmountText] = Field(default_factory=dict, max_length=_MOST_NAMES)
    user_limit: dict[str, AmountText] = Field(
        default_factory=dict, max_length=_MOST_NAMES, description="Of each user of the project."
    )
    users: dict[str, dict[str, AmountText] | None] = Field(
        default_factory=dict,
        max_length=1000,
        description="Of some users instead of that; `null` for a user: all of it.",
    )
    user_guaranteed: dict[str, dict[str, AmountText] | None] = Field(
        default_factory=dict,
        max_length=1000,
        description="What some users get back from other users of the project; `null` for a user: nothing.",
    )
    user_weights: dict[str, Weight | None] = Field(
        default_factory=dict, max_length=1000, description="Shares of users inside the project; 1 where none is set."
    )
    weight: Weight | None = Field(default=None, description="The project's share against the others'.")
    max_priority: int | str | None = Field(default=None, description="0 to 100, or low, normal, high, urgent.")
