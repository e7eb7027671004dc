"""Validation of arguments from scripts: each error is one sentence that names the argument."""

from __future__ import annotations

import operator
from typing import Any

_SHOWN_CHARS = 60


def whole_number(name: str, value: Any) -> int:
    """``value`` as an ``int``; also accepts a tensor or NumPy scalar with a whole number.

    Raises:
        ValueError: it is not a whole number.
    """
    if isinstance(value, float) and value.is_integer():
        return int(value)
    index: Any = value
    try:
        return operator.index(index)
    except TypeError:
        raise ValueError(f"{name}: {shown(value)} is not a whole number") from None


def seconds(name: str, value: Any) -> float:
    """``value`` as seconds.

    Raises:
        ValueError: it is not a number above 0.
    """
    if isinstance(value, (int, float)) and value > 0:
        return float(value)
    raise ValueError(f"{name}: {shown(value)} is not a number of seconds above 0")


def shown(value: Any) -> str:
    """``value`` as shown in messages."""
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "…"
