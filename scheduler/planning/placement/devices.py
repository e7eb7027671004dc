"""Assignment of running GPU parts to shared devices, reconstructed from what is left of each device.

The snapshot does not say which part is on which device. Staying and ending parts are assigned so that the use of each
device is explained. If several assignments do, one is taken: the end of a part may free another device than assumed,
so this serves forecasts only, and each tick computes it again.
"""

from __future__ import annotations

from collections.abc import Sequence

from core.domain.sharing.gpu_sharing import WHOLE

# Beyond this many steps each part is assigned to the device with the most unexplained use.
_MOST_STEPS = 2_000


def give_back(shares: tuple[int, ...], staying: Sequence[int], ending: Sequence[int]) -> tuple[tuple[int, ...], int]:
    """What is left of the shared devices when the parts ``ending`` are over, and how many devices are whole again."""
    parts = sorted([(part, True) for part in staying] + [(part, False) for part in ending], reverse=True)
    seats = _exactly([part for part, _ in parts], [WHOLE - left for left in shares])
    freed, staying_on = list(shares), [False] * len(shares)
    for (part, stays), seat in zip(parts, seats, strict=True):
        if seat is None:
            continue
        if stays:
            staying_on[seat] = True
        else:
            freed[seat] = min(WHOLE, freed[seat] + part)
    whole = [at for at, left in enumerate(freed) if left == WHOLE and not staying_on[at]]
    return tuple(sorted(left for at, left in enumerate(freed) if at not in whole)), len(whole)


def _exactly(parts: Sequence[int], used: Sequence[int]) -> list[int | None]:
    """A device for each part (larger parts first), such that all devices are used up if possible."""
    steps = _MOST_STEPS
    left = list(used)
    seats: list[int | None] = []

    def descend(at: int) -> bool:
        nonlocal steps
        steps -= 1
        if at == len(parts):
            return not any(left)
        tried = set[int]()
        for device, amount in enumerate(left):
            if amount >= parts[at] and amount not in tried and steps > 0:
                tried.add(amount)
                left[device] -= parts[at]
                seats.append(device)
                if descend(at + 1):
                    return True
                seats.pop()
                left[device] += parts[at]
        return False

    if descend(0):
        return seats
    left, seats = list(used), []
    for part in parts:
        device = max(range(len(left)), key=lambda at: (left[at], -at), default=None)
        if device is None or left[device] < part:
            seats.append(None)
            continue
        left[device] -= part
        seats.append(device)
    return seats
