"""New ids: a prefix, a sortable time, and random bits. Lower-case, so that they can be part of host names."""

from __future__ import annotations

import secrets
import time
from typing import Final

# Crockford's base 32 without letters that read like digits: https://www.crockford.com/base32.html
_ALPHABET: Final = "0123456789abcdefghjkmnpqrstvwxyz"


def _encode(number: int, width: int) -> str:
    digits = []
    for _ in range(width):
        number, rest = divmod(number, 32)
        digits.append(_ALPHABET[rest])
    return "".join(reversed(digits))


def new_id(prefix: str) -> str:
    """Like ``job-06f9s2m3k1q7w8x9y0z1``: 45 bits of milliseconds, then 50 random bits; sorts by creation time."""
    # Clock and randomness are arguments everywhere else; ids are the deliberate exception.
    milliseconds = time.time_ns() // 1_000_000
    return f"{prefix}-{_encode(milliseconds, 9)}{_encode(secrets.randbits(50), 10)}"
