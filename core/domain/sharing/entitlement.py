"""What is due to each of those who share a cluster: weighted max-min fairness over shares from 0 to 1. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ShareClaim:
    """``wanted``: the share that it would hold if it got all that it asks for, with what it holds."""

    weight: float
    wanted: float


def entitlements(claims: Mapping[str, ShareClaim], total: float = 1.0) -> dict[str, float]:
    """The share that is due to each: nobody gets more than is wanted, and what is left over goes to those who want more,
    by their weights.

    Water rises in vessels as wide as their weights until it is all poured out or all are full (progressive filling).
    """
    due = dict.fromkeys(claims, 0.0)
    # The fullest for its weight is full first.
    thirsty = sorted(claims, key=lambda name: (claims[name].wanted / claims[name].weight, name))
    left, weights = total, sum(claims[name].weight for name in claims)
    for name in thirsty:
        claim = claims[name]
        fair = left * claim.weight / weights if weights > 0 else 0.0
        due[name] = min(claim.wanted, fair)
        left -= due[name]
        weights -= claim.weight
    return due
