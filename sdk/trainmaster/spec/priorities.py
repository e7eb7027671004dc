"""Job priorities: 0 to 100, higher ones first; four of them have names (priority classes)."""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import BeforeValidator, Field

from trainmaster.spec.errors import FieldError, suggest

CLASSES: Final[dict[str, int]] = {"low": 25, "normal": 50, "high": 75, "urgent": 100}
LARGEST: Final = 100


def read_priority(value: Any) -> int:
    """The priority named by ``value``: a class name or a whole number from 0 to 100. Raises ``FieldError``."""
    if isinstance(value, str) and value.strip().lower() in CLASSES:
        return CLASSES[value.strip().lower()]
    names = ", ".join(CLASSES)
    if isinstance(value, str) and not value.strip().removeprefix("-").isdecimal():
        meant = suggest(value, list(CLASSES))
        raise FieldError(
            f"must be one of {names}, or a number from 0 to {LARGEST}", f"did you mean {meant}?" if meant else None
        )
    is_number = isinstance(value, int | float | str) and not isinstance(value, bool)
    if not is_number or (isinstance(value, float) and not value.is_integer()):
        raise FieldError(f"must be one of {names}, or a whole number from 0 to {LARGEST}")
    number = int(value)
    if not 0 <= number <= LARGEST:
        raise FieldError(f"must be at {'least 0' if number < 0 else f'most {LARGEST}'}, not {number}")
    return number


def priority_name(priority: int) -> str | None:
    """``high`` for 75; ``None`` for numbers without a name."""
    return next((name for name, number in CLASSES.items() if number == priority), None)


def priority_words(priority: int) -> str:
    """``high (75)``, or ``60``."""
    name = priority_name(priority)
    return f"{name} ({priority})" if name else str(priority)


Priority = Annotated[
    int,
    BeforeValidator(
        read_priority,
        json_schema_input_type=Annotated[int, Field(ge=0, le=LARGEST)]
        | Annotated[str, Field(pattern="^(low|normal|high|urgent)$")],
    ),
]
