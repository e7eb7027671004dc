"""Figures of a trial as lines of its log, which is a road by which metrics reach the platform."""

from __future__ import annotations

import math
from typing import Mapping


def tell(values: Mapping[str, float], step: int) -> None:
    """One line such as ``accuracy=0.93 step=2``; what is not finite is left out."""
    known = ["%s=%.9g" % (name, value) for name, value in values.items() if math.isfinite(value)]
    print(" ".join([*known, "step=%d" % step]), flush=True)


def say(sentence: str) -> None:
    """For a person who reads the log. Kept free of pairs that would be taken for metrics."""
    print(sentence, flush=True)
