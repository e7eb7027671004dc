"""Arrays with one number per node, and the smallest few by several keys."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

# Smaller arrays are sorted by all keys at once.
_FEW = 64


@dataclass(frozen=True, slots=True)
class Rooms:
    """Nodes, ascending, with the number of members that fit on each: at least one. The arrays must not be modified."""

    numbers: Ints
    slots: Ints

    @property
    def total(self) -> int:
        return int(self.slots.sum())

    def where(self, flags: Flags) -> Rooms:
        return Rooms(self.numbers[flags], self.slots[flags])

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(zip(self.numbers.tolist(), self.slots.tolist(), strict=True))

    def __len__(self) -> int:
        return len(self.numbers)


def least(keys: Sequence[Ints]) -> int:
    """The position of the smallest element by the first key, then by the second, and so on."""
    at = np.flatnonzero(keys[0] == keys[0].min())
    for key in keys[1:]:
        if len(at) == 1:
            break
        inside = key[at]
        at = at[inside == inside.min()]
    return int(at[0])


def smallest(keys: Sequence[Ints], count: int) -> Ints:
    """The positions of the ``count`` smallest elements, in order. In large arrays only candidates are sorted."""
    among: Ints = np.arange(len(keys[0]))
    sure: list[Ints] = []
    left = min(count, len(among))
    for key in keys:
        if len(among) <= max(_FEW, left) or not left:
            break
        inside = key[among]
        last = np.partition(inside, left - 1)[left - 1]
        sure.append(among[inside < last])
        left -= len(sure[-1])
        among = among[inside == last]
    candidates = np.concatenate([*sure, among])
    order = np.lexsort([key[candidates] for key in reversed(keys)])
    return candidates[order[:count]]
