"""API models of the difference between two jobs' code."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from trainmaster.wire.base import WireModel


class CodeFileDifference(WireModel):
    """A file that differs.

    A text is ``null`` if the file does not exist on that side, or for the reason in ``note``.
    """

    path: str
    change: Literal["added", "removed", "changed"]
    size_before: int | None = None
    size_after: int | None = None
    text_before: str | None = None
    text_after: str | None = None
    note: str = ""


class CodeDifference(WireModel):
    """Differences between two code archives. ``before``, ``after``: their digests; ``null`` for a job without code."""

    before: str | None = None
    after: str | None = None
    same_count: int = Field(description="Number of equal files.")
    differ_count: int
    items: list[CodeFileDifference] = Field(description="Different files by path; at most 500.")
