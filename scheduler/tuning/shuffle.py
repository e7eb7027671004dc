"""A pseudorandom permutation of a large range, of which each element is computed without the others."""

from __future__ import annotations

from hashlib import blake2b
from math import isqrt
from typing import Final

_ROUNDS: Final = 4


def shuffled(place: int, size: int, seed: int) -> int:
    """Element ``place`` of the permutation of the numbers below ``size`` that ``seed`` defines.

    A Feistel network over the smallest sufficient square, iterated while the result is outside ``size`` (cycle
    walking; Black and Rogaway, "Ciphers with Arbitrary Finite Domains", 2002).
    """
    if not 0 <= place < size:
        raise ValueError(f"there is no place {place} among {size}")
    side = isqrt(size - 1) + 1
    found = place
    while True:
        left, right = divmod(found, side)
        for number in range(_ROUNDS):
            key = b"%d:%d:%d" % (seed, number, right)
            left, right = right, (left + int.from_bytes(blake2b(key, digest_size=8).digest(), "big")) % side
        found = left * side + right
        if found < size:
            return found
