"""How long a client says that its body is."""

from __future__ import annotations

import re
from typing import Final

_LENGTH: Final = re.compile(r"[0-9]+")
_DIGITS: Final = 18  # beyond any limit of ours, and short enough for Python to read


def content_length(text: str) -> int | None:
    """Bytes, of a Content-Length; ``None`` for none.

    Digits are those of ASCII (RFC 9110, 8.6): ``str.isdigit`` takes others, which ``int`` does not read.
    """
    if not _LENGTH.fullmatch(text):
        return None
    digits = text.lstrip("0") or "0"
    return int(digits) if len(digits) <= _DIGITS else 10**_DIGITS
