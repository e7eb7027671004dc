"""Numbers in requests. JSON has neither NaN nor infinity: sent, they would arrive as ``null``, which takes settings away."""

from __future__ import annotations

from math import isfinite
from typing import Annotated, Any, Final, TypeAlias

from pydantic import AfterValidator, Field

LEAST_WEIGHT: Final = 0.001
MOST_WEIGHT: Final = 1000.0


def _weight(value: float) -> float:
    if not LEAST_WEIGHT <= value <= MOST_WEIGHT:  # NaN is not, either
        raise ValueError(
            f"is a number from {LEAST_WEIGHT:g} to {MOST_WEIGHT:g}; who has 2 gets twice as much as who has 1"
        )
    return value


def _finite(value: Any) -> Any:
    """``value``, in which no number at any depth is infinite or none."""
    if isinstance(value, float) and not isfinite(value):
        raise ValueError(f"{value} is not a finite number")
    if isinstance(value, dict):
        for each in value.values():
            _finite(each)
    elif isinstance(value, list | tuple):
        for each in value:
            _finite(each)
    return value


# A share against the others'.
Weight: TypeAlias = Annotated[
    float,
    AfterValidator(_weight),
    Field(json_schema_extra={"minimum": LEAST_WEIGHT, "maximum": MOST_WEIGHT}),
]
# Anything that JSON can tell as it is.
Finite: TypeAlias = Annotated[Any, AfterValidator(_finite)]
# As people write it: 16, 0.5, "512Gi". `null` takes the limit away.
AmountText: TypeAlias = Annotated[int | float | str | None, AfterValidator(_finite)]
