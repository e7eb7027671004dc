"""GPU sharing: best-fit assignment of fractions to devices, the same rule for the planner and for the apply step."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from typing import Final

# Fractions are in thousandths of one device.
WHOLE: Final = 1000


def device_for(left: Sequence[int], gpu_milli: int) -> int | None:
    """Best fit: index in ``left`` (thousandths left on each shared device) of the device with the smallest remainder
    that takes ``gpu_milli``. ``None``: none has room, so that a whole device must be opened.

    Several fractions for one node are assigned in :func:`in_order`.
    """
    fitting = [(amount, at) for at, amount in enumerate(left) if amount >= gpu_milli]
    return min(fitting)[1] if fitting else None


def in_order(parts: Sequence[int]) -> list[int]:
    """The order of assignment (best-fit decreasing): indices of ``parts``, larger ones first; stable."""
    return sorted(range(len(parts)), key=lambda at: -parts[at])


def after_part(shares: tuple[int, ...], gpu_milli: int) -> tuple[tuple[int, ...], int]:
    """The remainders of the shared devices (ascending) after one more fraction by the same rule, and the number of
    newly opened devices (0 or 1).
    """
    at = bisect_left(shares, gpu_milli)
    opened = int(at == len(shares))
    remaining = list(shares) if opened else [*shares[:at], *shares[at + 1 :]]
    insort(remaining, (WHOLE if opened else shares[at]) - gpu_milli)
    return tuple(remaining), opened


def room_for_parts(shares: Iterable[int], whole: int, gpu_milli: int) -> int:
    """How many fractions of ``gpu_milli`` fit on these shared devices and ``whole`` unshared ones."""
    return sum(left // gpu_milli for left in shares) + whole * (WHOLE // gpu_milli)
