"""Entitlements of those who share a cluster: weighted max-min fairness over shares from 0 to 1. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ShareClaim:
    """``wanted``: the share with all demand satisfied, current usage included."""

    weight: float
    wanted: float


def entitlements(claims: Mapping[str, ShareClaim], total: float = 1.0) -> dict[str, float]:
    """The fair share of each claimant: no more than its demand; the remainder goes to unsatisfied claimants by weight.

    Progressive filling: water rises in vessels as wide as their weights until it is used up or all are full.
    """
    due = dict.fromkeys(claims, 0.0)
    # In order of saturation.
    thirsty = sorted(claims, key=lambda name: (claims[name].wanted / claims[name].weight, name))
    left, weights = total, sum(claims[name].weight for name in claims)
    for name in thirsty:
        claim = claims[name]
        fair = left * claim.weight / weights if weights > 0 else 0.0
        due[name] = min(claim.wanted, fair)
        left -= due[name]
        weights -= claim.weight
    return due
