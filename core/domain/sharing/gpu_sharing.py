"""Parts of GPUs: which device a part goes to. Planner and apply step ask here, so that both say the same."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from typing import Final

# Parts are told in thousandths of one device.
WHOLE: Final = 1000


def device_for(left: Sequence[int], gpu_milli: int) -> int | None:
    """The position in ``left`` (thousandths left on each shared device) of the device that takes a part of ``gpu_milli``:
    the one on which it leaves the least. ``None``: none has room, so a whole device must be opened.

    Several parts for one node are dealt out in :func:`in_order`.
    """
    fitting = [(amount, at) for at, amount in enumerate(left) if amount >= gpu_milli]
    return min(fitting)[1] if fitting else None


def in_order(parts: Sequence[int]) -> list[int]:
    """The positions of ``parts`` as they are given their devices: larger ones first, equal ones as they stand."""
    return sorted(range(len(parts)), key=lambda at: -parts[at])


def after_part(shares: tuple[int, ...], gpu_milli: int) -> tuple[tuple[int, ...], int]:
    """What is left of the shared devices (ascending) once a part is taken by the same rule, and how many whole devices that
    opens (0 or 1).
    """
    at = bisect_left(shares, gpu_milli)
    opened = int(at == len(shares))
    remaining = list(shares) if opened else [*shares[:at], *shares[at + 1 :]]
    insort(remaining, (WHOLE if opened else shares[at]) - gpu_milli)
    return tuple(remaining), opened


def room_for_parts(shares: Iterable[int], whole: int, gpu_milli: int) -> int:
    """How many parts of ``gpu_milli`` fit on these shared devices and ``whole`` unshared ones."""
    return sum(left // gpu_milli for left in shares) + whole * (WHOLE // gpu_milli)
