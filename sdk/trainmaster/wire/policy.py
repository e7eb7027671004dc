"""The planner's settings on the wire."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import Field

from trainmaster.wire.base import WireModel, WireRequest
from trainmaster.wire.numbers import Finite


class SettingView(WireModel):
    """One setting. ``value``: times in seconds, `null` for off. ``text``: the same as people write it, such as `10m`, good for
    setting it. ``meaning``: one sentence.
    """

    name: str
    kind: Literal["choice", "switch", "duration", "durations", "number"]
    value: Any
    text: str
    default_text: str
    choices: list[str] = Field(default_factory=list)
    can_be_off: bool = False
    meaning: str


class PolicyView(WireModel):
    """``warnings``: what is allowed and probably not meant, a sentence each."""

    settings: list[SettingView]
    updated_at: datetime | None = None
    updated_by: str | None = None
    warnings: list[str] = Field(default_factory=list)


class PolicyUpdate(WireRequest):
    """``settings``: by name, what changes: a choice, `true` or `false`, a number, a time as seconds or like `10m`, `null` or `off`
    where it can be off; `default` for what it was at first.
    """

    settings: dict[str, Finite] = Field(min_length=1, max_length=64)
