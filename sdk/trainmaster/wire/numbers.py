"""Number types for requests.

NaN and infinity are rejected: JSON has neither, and as ``null`` they would remove settings.
"""

from __future__ import annotations

from math import isfinite
from typing import Annotated, Any, Final, TypeAlias

from pydantic import AfterValidator, Field

LEAST_WEIGHT: Final = 0.001
MOST_WEIGHT: Final = 1000.0


def _weight(value: float) -> float:
    if not LEAST_WEIGHT <= value <= MOST_WEIGHT:  # also rejects NaN
        raise ValueError(
            f"must be a number from {LEAST_WEIGHT:g} to {MOST_WEIGHT:g}; weight 2 gets twice the share of weight 1"
        )
    return value


def _finite(value: Any) -> Any:
    """``value``; rejects infinite numbers and NaN at any depth."""
    if isinstance(value, float) and not isfinite(value):
        raise ValueError(f"{value} is not a finite number")
    if isinstance(value, dict):
        for each in value.values():
            _finite(each)
    elif isinstance(value, list | tuple):
        for each in value:
            _finite(each)
    return value


# Weight of a fair share.
Weight: TypeAlias = Annotated[
    float,
    AfterValidator(_weight),
    Field(json_schema_extra={"minimum": LEAST_WEIGHT, "maximum": MOST_WEIGHT}),
]
# Any JSON value.
Finite: TypeAlias = Annotated[Any, AfterValidator(_finite)]
# An amount such as 16, 0.5 or "512Gi"; `null` removes the limit.
AmountText: TypeAlias = Annotated[int | float | str | None, AfterValidator(_finite)]
