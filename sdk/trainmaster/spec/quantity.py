"""Quantities as Kubernetes writes them (``500m``, ``2``, ``4Gi``) and durations (``90s``, ``1h30m``)."""

from __future__ import annotations

import re
from decimal import ROUND_CEILING, Decimal, InvalidOperation
from typing import Final

# https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/
_SUFFIX: Final[dict[str, Decimal]] = {
    "": Decimal(1),
    "m": Decimal("0.001"),
    "k": Decimal(10**3),
    "M": Decimal(10**6),
    "G": Decimal(10**9),
    "T": Decimal(10**12),
    "P": Decimal(10**15),
    "E": Decimal(10**18),
    "Ki": Decimal(2**10),
    "Mi": Decimal(2**20),
    "Gi": Decimal(2**30),
    "Ti": Decimal(2**40),
    "Pi": Decimal(2**50),
    "Ei": Decimal(2**60),
}
_QUANTITY: Final = re.compile(r"^([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE]([+-]?[0-9]{1,3}))?([A-Za-z]*)$")
_DURATION: Final = re.compile(r"^(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s)?$")
# An 8-byte signed integer holds every amount that a database column or a kernel file takes.
_MAX: Final = Decimal(2**63 - 1)


def parse_quantity(text: str | float) -> Decimal:
    """The exact amount that ``text`` names, in base units (CPUs, bytes).

    Raises:
        ValueError: not a quantity; the message says what would be right.
    """
    raw = str(text).strip()
    match = _QUANTITY.match(raw)
    if match is None or match[3] not in _SUFFIX:
        raise ValueError(f"{raw!r} is not a quantity; write it like 2, 500m, 512Mi or 4Gi")
    try:
        amount = Decimal(match[1]).scaleb(int(match[2] or 0)) * _SUFFIX[match[3]]
    except InvalidOperation as error:
        raise ValueError(f"{raw!r} is not a quantity") from error
    if amount > _MAX:
        raise ValueError(f"{raw!r} is larger than any machine")
    return amount


def parse_cpu_milli(text: str | float) -> int:
    """Thousandths of a CPU, rounded up. Raises ``ValueError``."""
    return int((parse_quantity(text) * 1000).to_integral_value(rounding=ROUND_CEILING))


def parse_bytes(text: str | float) -> int:
    """Bytes, rounded up. Raises ``ValueError``."""
    return int(parse_quantity(text).to_integral_value(rounding=ROUND_CEILING))


def format_bytes(count: int) -> str:
    """The shortest exact notation with a binary suffix, for example ``4Gi``."""
    for suffix in ("Ei", "Pi", "Ti", "Gi", "Mi", "Ki"):
        unit = int(_SUFFIX[suffix])
        if count >= unit and count % unit == 0:
            return f"{count // unit}{suffix}"
    return str(count)


def format_cpu(cpu_milli: int) -> str:
    """``2`` or ``500m``."""
    return str(cpu_milli // 1000) if cpu_milli % 1000 == 0 else f"{cpu_milli}m"


def parse_duration_s(value: str | float) -> float:
    """Seconds from a number of seconds or from ``1d2h30m15s`` notation.

    Raises:
        ValueError: neither, or negative.
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        seconds = float(value)
    else:
        raw = str(value).strip()
        match = _DURATION.match(raw)
        if raw.replace(".", "", 1).isdigit():
            seconds = float(raw)
        elif raw and match is not None:
            days, hours, minutes, rest = (float(group or 0) for group in match.groups())
            seconds = days * 86_400 + hours * 3_600 + minutes * 60 + rest
        else:
            raise ValueError(f"{raw!r} is not a duration; write seconds, or like 90s, 30m, 1h30m, 2d")
    if not 0 <= seconds <= 10 * 365 * 86_400:
        raise ValueError(f"{value!r} is not between 0 and ten years")
    return seconds
