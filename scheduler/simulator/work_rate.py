"""Speed of a simulated job that changes with the work done, as with the epochs of a training."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Protocol


class WorkRate:
    """Piecewise constant speed. ``ends``: work at the end of each phase, ascending; the last phase goes on for ever.

    ``speeds``: work per second in each phase, above 0.
    """

    def __init__(self, ends: Sequence[float], speeds: Sequence[float]) -> None:
        self._begins = (0.0, *ends[:-1])
        self._speeds = tuple(speeds)
        widths = (end - begin for begin, end in zip(self._begins, ends, strict=True))
        spans_s = (width / speed for width, speed in zip(widths, speeds, strict=True))
        self._begins_s = (0.0, *accumulate(spans_s))[: len(speeds)]

    @classmethod
    def constant(cls, speed: float) -> WorkRate:
        return cls((math.inf,), (speed,))

    def seconds(self, done: float, until: float) -> float:
        """From ``done`` to ``until`` units of work."""
        return self._at_s(until) - self._at_s(done)

    def after(self, done: float, seconds: float) -> float:
        """Work done, ``seconds`` after ``done``."""
        at_s = self._at_s(done) + seconds
        phase = max(0, bisect_right(self._begins_s, at_s) - 1)
        return self._begins[phase] + (at_s - self._begins_s[phase]) * self._speeds[phase]

    def _at_s(self, done: float) -> float:
        phase = max(0, bisect_left(self._begins, done) - 1)
        return self._begins_s[phase] + (done - self._begins[phase]) / self._speeds[phase]


class SpeedProfile(Protocol):
    """How fast a job is. One unit of work takes a second with its maximum of replicas on as few nodes as possible.

    ``start_s``: work of its first start, in which it makes no steps.
    """

    start_s: float

    def rate(self, replicas: int, nodes: int) -> WorkRate:
        """With so many replicas of its elastic role on so many nodes."""
        ...
