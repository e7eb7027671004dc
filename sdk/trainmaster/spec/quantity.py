"""Quantities as Kubernetes writes them (``500m``, ``4Gi``), durations (``90s``, ``1h30m``), and numbers as written."""

from __future__ import annotations

import re
from decimal import ROUND_CEILING, Decimal
from typing import Any, Final, Self

from trainmaster.spec.errors import FieldError

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
# 20 digits are enough for every amount below; more would only be rounded.
_QUANTITY: Final = re.compile(r"([0-9]{1,20}(?:\.[0-9]{0,20})?|\.[0-9]{1,20})(?:[eE]([+-]?[0-9]{1,3}))?([A-Za-z]*)")
_DURATION: Final = re.compile(
    r"(?:([0-9]{1,10})d)?(?:([0-9]{1,10})h)?(?:([0-9]{1,10})m)?(?:([0-9]{1,10}(?:\.[0-9]{1,9})?)s)?"
)
_SECONDS: Final = re.compile(r"[0-9]{1,12}(?:\.[0-9]{1,9})?")
_MAX_CPU: Final = Decimal(100_000)
# The largest amount of a database column or a kernel file: an 8-byte signed integer.
_MAX: Final = Decimal(2**63 - 1)
# No process runs in less; 512 or 400m is a typo for 512Mi (Kubernetes accepts both, and users get 0.4 bytes).
_MIN_MEMORY: Final = Decimal(2**20)
MAX_DURATION_S: Final = 10 * 365 * 86_400


def parse_quantity(value: Any) -> Decimal:
    """The exact amount of ``value``, a text or a number, in base units (CPUs, bytes); never negative.

    Raises:
        ValueError: not a quantity; the message says how to write it.
    """
    raw = _written(value, "a quantity such as 2, 500m, 512Mi or 4Gi")
    if raw.startswith("-"):
        raise FieldError(f"{_short(raw)} is negative")
    match = _QUANTITY.fullmatch(raw)
    if match is None:
        raise FieldError(f"{_short(raw)} is not a quantity", "write it like 2, 500m, 512Mi or 4Gi")
    if match[3] not in _SUFFIX:
        raise FieldError(f"{_short(raw)} has an unknown unit", _unit_hint(match[3]))
    amount = Decimal(match[1]).scaleb(int(match[2] or 0)) * _SUFFIX[match[3]]
    if amount > _MAX:
        raise FieldError(f"{_short(raw)} is larger than any machine")
    return amount


def parse_cpu_milli(value: Any) -> int:
    """Thousandths of a CPU, at least 1, rounded up. Raises ``ValueError``."""
    amount = parse_quantity(value)
    if amount == 0:
        raise FieldError("must be more than 0", "omit it to share the node's CPUs")
    if amount > _MAX_CPU:
        raise FieldError(f"{_short(str(value))} is larger than any machine", "write CPUs like 2, 0.5 or 500m")
    return int((amount * 1000).to_integral_value(rounding=ROUND_CEILING))


def parse_bytes(value: Any) -> int:
    """Bytes, at least a mebibyte, rounded up. Raises ``ValueError``."""
    amount = parse_quantity(value)
    if amount < _MIN_MEMORY:
        raise FieldError(f"{_short(str(value))} is less than 1Mi", "write a unit, like 512Mi or 16Gi")
    return int(amount.to_integral_value(rounding=ROUND_CEILING))


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


def parse_duration_s(value: Any) -> float:
    """Seconds from a number of seconds or from ``1d2h30m15s`` notation.

    Raises:
        ValueError: neither, or negative.
    """
    raw = _written(value, "a duration: seconds, or like 90s, 30m, 1h30m, 2d")
    if raw.startswith("-"):
        raise FieldError(f"{_short(raw)} is negative")
    match = _DURATION.fullmatch(raw)
    if _SECONDS.fullmatch(raw):
        seconds = float(raw)
    elif isinstance(value, float):  # such as 1e3 or 1e-05
        seconds = float(value)
    elif raw and match is not None:
        days, hours, minutes, seconds_part = (float(group or 0) for group in match.groups())
        seconds = days * 86_400 + hours * 3_600 + minutes * 60 + seconds_part
    else:
        raise FieldError(f"{_short(raw)} is not a duration", "write seconds, or like 90s, 30m, 1h30m, 2d")
    if not 0 <= seconds <= MAX_DURATION_S:
        raise FieldError(f"{_short(raw)} is not between 0 and ten years")
    return seconds


def format_duration(seconds: float) -> str | float:
    """The shortest exact notation for :func:`parse_duration_s`, such as ``1h30m``; with fractions of a second, a
    number.
    """
    if seconds != int(seconds):
        return seconds
    left, parts = int(seconds), []
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)):
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"


def _written(value: Any, expected: str) -> str:
    """``value`` as text. Rejects bools, which are ints in Python."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise FieldError(f"must be {expected}")
    if isinstance(value, int) and value.bit_length() > 64:
        # Python itself refuses to print an int of thousands of digits.
        raise FieldError("is larger than any machine")
    return str(value).strip()


def _short(raw: str) -> str:
    return repr(raw if len(raw) <= 40 else raw[:37] + "…")


def _unit_hint(unit: str) -> str:
    """Suggests the unit for common spellings such as GB, gb and GiB."""
    letter = unit[:1].upper()
    if letter and letter in "KMGTPE" and unit.lower() in (letter.lower(), letter.lower() + "b", letter.lower() + "ib"):
        binary = f"{letter}i"
        return f"did you mean {binary}?"
    return "units are m, k, M, G, T, P, E and Ki, Mi, Gi, Ti, Pi, Ei"


# --- numbers that keep the text they were parsed from ---------------------------------------------------------------

# `VERSION: 1.10` in YAML is the number 1.1, and `LR: 1e-3` is 0.001; in an environment variable or an argument the user
# expects the text as written. Everywhere else these are plain numbers.


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
