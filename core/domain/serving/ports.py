"""Parsing of ports that users write as text."""

from __future__ import annotations

from typing import Final

_MOST: Final = 65_535
_DIGITS: Final = 5


def read_port(text: str) -> int | None:
    """``None``: not a port from 1 to 65535 in ASCII digits (``str.isdigit`` accepts digits that ``int`` refuses)."""
    if not (text.isascii() and text.isdecimal() and len(text) <= _DIGITS):
        return None
    return int(text) if 1 <= int(text) <= _MOST else None
