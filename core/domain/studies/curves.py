"""Learning curves: the study's metric by a trial's steps, from reports in any order, thinned for storage."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

# points of a stored curve
STORED_POINTS: Final = 200


@dataclass(frozen=True, slots=True)
class Curve:
    """``steps`` grow; each has one finite value. ``number``: the trial's. ``is_over``: it ran to its own end."""

    number: int
    steps: tuple[int, ...]
    values: tuple[float, ...]
    is_over: bool = False

    def __bool__(self) -> bool:
        return bool(self.steps)


def make_curve(number: int, points: Sequence[tuple[int, float]], *, is_over: bool = False) -> Curve:
    """A curve from points in any order: the last value of a step counts; NaN and infinities are left out."""
    by_step = {step: value for step, value in points if math.isfinite(value)}
    steps = sorted(by_step)
    return Curve(number, tuple(steps), tuple(by_step[step] for step in steps), is_over)


def step_of(curve: Curve, value: float | None) -> int:
    """The first step at which ``value`` was reported; the last step if it never was, and 0 for an empty curve."""
    found = next((step for step, own in zip(curve.steps, curve.values, strict=True) if own == value), None)
    return found if found is not None else max(curve.steps, default=0)


def thinned(curve: Curve) -> Curve:
    """At most ``STORED_POINTS`` of its points, the first and the last among them."""
    count = len(curve.steps)
    if count <= STORED_POINTS:
        return curve
    chosen = sorted({round(place * (count - 1) / (STORED_POINTS - 1)) for place in range(STORED_POINTS)})
    return Curve(
        curve.number, tuple(curve.steps[i] for i in chosen), tuple(curve.values[i] for i in chosen), curve.is_over
    )
