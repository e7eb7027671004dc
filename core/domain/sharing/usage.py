"""Recent usage of the cluster, an exponentially decayed mean of shares, and entitlements by max-min fairness. Pure.

With half-life H, the mean at time t is the integral over the past of share(s) x 2^-((t - s) / H), divided by the same
with share 1. While the share is constant, that has a closed form: it moves from its value towards the share. So only
changes of the share are written, each with its time, and the value at any later time follows from the row alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from math import exp2
from typing import Final

_NOTHING: Final = 1e-9


@dataclass(frozen=True, slots=True)
class DecayedUsage:
    """The mean ``value`` as of ``at``, and the ``share`` held since."""

    value: float
    share: float
    at: datetime

    def value_at(self, now: datetime, half_life_s: float) -> float:
        """The mean as of ``now``; times before ``at`` count as ``at``, since clocks may differ."""
        passed_s = max(0.0, (now - self.at).total_seconds())
        decay = exp2(-passed_s / half_life_s)
        return self.share + (self.value - self.share) * decay

    def change(self, share: float, now: datetime, half_life_s: float) -> DecayedUsage:
        """The usage with ``share`` from ``now`` on."""
        return DecayedUsage(self.value_at(now, half_life_s), share, max(now, self.at))

    @property
    def is_zero(self) -> bool:
        return self.share <= 0 and self.value < _NOTHING


@dataclass(frozen=True, slots=True)
class ShareClaim:
    """``wanted``: the share with all demand satisfied, current usage included."""

    weight: float
    wanted: float


def entitlements(claims: Mapping[str, ShareClaim]) -> dict[str, float]:
    """Weighted max-min fairness over shares from 0 to 1: the fair share of each claimant, no more than its demand; the
    remainder goes to unsatisfied claimants by weight.

    Progressive filling: water rises in vessels as wide as their weights until it is used up or all are full.
    """
    due = dict.fromkeys(claims, 0.0)
    # In order of saturation.
    thirsty = sorted(claims, key=lambda name: (claims[name].wanted / claims[name].weight, name))
    left, weights = 1.0, sum(claims[name].weight for name in claims)
    for name in thirsty:
        claim = claims[name]
        fair = left * claim.weight / weights if weights > 0 else 0.0
        due[name] = min(claim.wanted, fair)
        left -= due[name]
        weights -= claim.weight
    return due
