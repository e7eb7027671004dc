"""Parsing of Content-Length."""

from __future__ import annotations

import re
from typing import Final

_LENGTH: Final = re.compile(r"[0-9]+")
_DIGITS: Final = 18  # beyond any limit of the platform, and short enough for Python to parse


def content_length(text: str) -> int | None:
    """The value of a Content-Length header in bytes; ``None`` if it is not a number.

    Only ASCII digits count (RFC 9110, 8.6): ``str.isdigit`` accepts others, which ``int`` cannot read.
    """
    if not _LENGTH.fullmatch(text):
        return None
    digits = text.lstrip("0") or "0"
    return int(digits) if len(digits) <= _DIGITS else 10**_DIGITS
