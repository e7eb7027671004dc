"""Numbers that keep the text they were parsed from.

``VERSION: 1.10`` in YAML is the number 1.1, and ``LR: 1e-3`` is 0.001; in an environment variable or an argument the
user expects the text as written. Everywhere else these are plain numbers.
"""

from __future__ import annotations

from typing import Any, Self


class WrittenInt(int):
    """An int with the text it was read from."""

    text: str

    def __new__(cls, value: int, text: str) -> Self:
        number = super().__new__(cls, value)
        number.text = text
        return number

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (int(self), self.text))


class WrittenFloat(float):
    """A float with the text it was read from."""

    text: str

    def __new__(cls, value: float, text: str) -> Self:
        number = super().__new__(cls, value)
        number.text = text
        return number

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (float(self), self.text))


def as_text(value: Any) -> Any:
    """A number or a bool as the text that the user wrote; any other value unchanged."""
    if isinstance(value, WrittenInt | WrittenFloat):
        return value.text
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int | float) else value
