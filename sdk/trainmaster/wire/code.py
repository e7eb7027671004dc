"""Where the code of two jobs differs, on the wire."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from trainmaster.wire.base import WireModel


class CodeFileDifference(WireModel):
    """A file that is not alike in both. A text is ``null`` where the file is not there, or where ``note`` says why."""

    path: str
    change: Literal["added", "removed", "changed"]
    size_before: int | None = None
    size_after: int | None = None
    text_before: str | None = None
    text_after: str | None = None
    note: str = ""


class CodeDifference(WireModel):
    """Digests are those of the archives; ``null`` of a job without code."""

    before: str | None = None
    after: str | None = None
    same_count: int = Field(description="Files that are alike in both.")
    differ_count: int
    items: list[CodeFileDifference] = Field(description="By path; the first 500.")
