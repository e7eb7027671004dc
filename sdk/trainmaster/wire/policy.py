"""API models of the scheduling policy's settings."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import Field

from trainmaster.wire.base import WireModel, WireRequest
from trainmaster.wire.numbers import Finite


class SettingView(WireModel):
    """One setting. ``value``: times in seconds, `null` for off. ``text``: the value as written by users, such as `10m`.

    ``meaning``: a description in one sentence.
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
    """All settings. ``warnings``: about valid but probably unintended settings."""

    settings: list[SettingView]
    updated_at: datetime | None = None
    updated_by: str | None = None
    warnings: list[str] = Field(default_factory=list)


class PolicyUpdate(WireRequest):
    """``settings``: new values by name: a choice, `true` or `false`, a number, a time in seconds or like `10m`, `null`
    or `off` if the setting can be off, or `default`.
    """

    settings: dict[str, Finite] = Field(min_length=1, max_length=64)
