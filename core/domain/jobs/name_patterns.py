"""Names of jobs that are run again and again."""

from __future__ import annotations

import re


def pattern_of(name: str) -> str:
    """The name with its run-specific parts as a star: ``sweep-31`` becomes ``sweep-*``, and so does
    ``sweep-3fa81c``.
    """
    parts = re.split(r"([-_.])", name)
    return "".join("*" if _is_hash(part) else re.sub(r"\d+", "*", part) for part in parts)


def _is_hash(part: str) -> bool:
    return len(part) >= 6 and re.fullmatch(r"[0-9a-f]*\d[0-9a-f]*", part) is not None
