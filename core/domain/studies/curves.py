"""What a trial reported of the study's metric, by its own steps: made of reports in any order, and thinned to be kept."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

# Of a curve that is kept for comparing.
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
    """A curve of points in any order: of a step that was told twice the last word counts; what is no number is left out."""
    by_step = {step: value for step, value in points if math.isfinite(value)}
    steps = sorted(by_step)
    return Curve(number, tuple(steps), tuple(by_step[step] for step in steps), is_over)


def step_of(curve: Curve, value: float | None) -> int:
    """The first step at which ``value`` was reported; the last step where it never was, and 0 where the curve is empty."""
    found = next((step for step, own in zip(curve.steps, curve.values, strict=True) if own == value), None)
    return found if found is not None else max(curve.steps, default=0)


def thinned(curve: Curve) -> Curve:
    """At most ``KEPT_POINTS`` of its points, the first and the last among them."""
    count = len(curve.steps)
    if count <= STORED_POINTS:
        return curve
    chosen = sorted({round(place * (count - 1) / (STORED_POINTS - 1)) for place in range(STORED_POINTS)})
    return Curve(
        curve.number, tuple(curve.steps[i] for i in chosen), tuple(curve.values[i] for i in chosen), curve.is_over
    )
