"""Kubernetes' quantities (``100m``, ``1.5Gi``, ``2e3``) as whole numbers."""

from __future__ import annotations

from decimal import ROUND_CEILING, Decimal, InvalidOperation
from functools import lru_cache
from typing import Final

# https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/
_SUFFIXES: Final = {
    "Ki": Decimal(2**10), "Mi": Decimal(2**20), "Gi": Decimal(2**30),
    "Ti": Decimal(2**40), "Pi": Decimal(2**50), "Ei": Decimal(2**60),
    "n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("1e-3"),
    "k": Decimal("1e3"), "M": Decimal("1e6"), "G": Decimal("1e9"),
    "T": Decimal("1e12"), "P": Decimal("1e15"), "E": Decimal("1e18"),
}  # fmt: skip


@lru_cache(maxsize=8192)
def parse_quantity(text: str | float) -> Decimal:
    """The exact amount.

    Raises:
        ValueError: it is no quantity.
    """
    whole = str(text).strip()
    for length in (2, 1):
        factor = _SUFFIXES.get(whole[-length:])
        if factor is not None:
            whole = whole[:-length]
            break
    else:
        factor = Decimal(1)
    try:
        return Decimal(whole) * factor
    except InvalidOperation as error:
        raise ValueError(f"{text!r} is no quantity; write one like 100m or 2Gi") from error


@lru_cache(maxsize=8192)
def milli(text: str | float) -> int:
    """Thousandths, rounded up: ``"1.5"`` is 1500."""
    return int((parse_quantity(text) * 1000).to_integral_value(ROUND_CEILING))


@lru_cache(maxsize=8192)
def units(text: str | float) -> int:
    """Whole units (bytes, devices), rounded up."""
    return int(parse_quantity(text).to_integral_value(ROUND_CEILING))
