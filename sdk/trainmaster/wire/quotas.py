"""API models of quotas: limits and guarantees of projects and their users."""

from __future__ import annotations

from typing import Final

from pydantic import Field

from trainmaster.wire.base import WireModel, WireRequest
from trainmaster.wire.numbers import AmountText, Weight

_MOST_NAMES: Final = 64


class QuotaLineView(WireModel):
    """One resource of a quota. ``what``: `jobs` (running jobs), `cpu` (CPUs), `memory` (bytes), `gpus` (of all models),
    or `gpus/<model>`. ``capacity``: total of the schedulable nodes.
    """

    what: str
    used: float = 0
    limit: float | None = None
    guaranteed: float | None = None
    user_limit: float | None = None  # of each user
    capacity: float | None = None


class QuotaUserView(WireModel):
    """A user of the project: present usage, individual limits, and guarantees inside the project."""

    user: str
    used: dict[str, float] = Field(default_factory=dict)
    limit: dict[str, float] = Field(default_factory=dict)
    guaranteed: dict[str, float] = Field(default_factory=dict)
    weight: float = 1.0


class QuotaView(WireModel):
    """A project's quota. ``max_priority``: maximum priority of its jobs. ``warnings``: about valid but probably
    unintended settings.
    """

    project: str
    weight: float
    max_priority: int | None = None
    lines: list[QuotaLineView] = Field(default_factory=list)
    users: list[QuotaUserView] = Field(default_factory=list)
    warnings: list[str] = Field(default_factory=list)


class QuotaUpdate(WireRequest):
    """Changes of a quota: `null` removes a limit, omitted fields stay unchanged. Keys: see ``QuotaLineView.what``."""

    limit: dict[str, AmountText] = Field(default_factory=dict, max_length=_MOST_NAMES)
    guaranteed: dict[str, AmountText] = Field(default_factory=dict, max_length=_MOST_NAMES)
    user_limit: dict[str, AmountText] = Field(
        default_factory=dict, max_length=_MOST_NAMES, description="Limits for each user of the project."
    )
    users: dict[str, dict[str, AmountText] | None] = Field(
        default_factory=dict,
        max_length=1000,
        description="Limits of single users instead of `user_limit`; `null` for a user removes all.",
    )
    user_guaranteed: dict[str, dict[str, AmountText] | None] = Field(
        default_factory=dict,
        max_length=1000,
        description="Guarantees of single users against other users of the project; `null` for a user removes all.",
    )
    user_weights: dict[str, Weight | None] = Field(
        default_factory=dict, max_length=1000, description="Weights of users inside the project; default: 1."
    )
    weight: Weight | None = Field(default=None, description="Weight of the project's fair share.")
    max_priority: int | str | None = Field(default=None, description="0 to 100, or low, normal, high, urgent.")
