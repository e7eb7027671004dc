"""Retention policies of projects, and what they would delete."""

from __future__ import annotations

from datetime import datetime

from pydantic import Field

from trainmaster.wire.base import WireModel


class RetentionPolicyView(WireModel):
    """For how long data of ended jobs are kept after their end, by kind: `outputs`, `logs`, `metrics`, `events`,
    `code` and `jobs` (everything). In seconds; `null`: for ever.
    """

    project: str
    keep: dict[str, float | None] = Field(default_factory=dict)


class RetentionPolicyUpdate(WireModel):
    """Kinds that are not named stay. Durations such as `30d`; `null`: for ever."""

    keep: dict[str, str | float | None] = Field(default_factory=dict)


class RetentionPreviewLine(WireModel):
    """``jobs``: whose data would be deleted now. ``bytes``: freed; ``is_partial``: at least, as measuring takes long;
    `null`: not measured. ``oldest``: the first end of these jobs.
    """

    kind: str
    keep_s: float
    jobs: int
    bytes: int | None = None
    is_partial: bool = False
    oldest: datetime | None = None


class RetentionPreview(WireModel):
    """What a policy would delete now. Pinned jobs and sources of registered models are not among it."""

    project: str
    lines: list[RetentionPreviewLine] = Field(default_factory=list)
