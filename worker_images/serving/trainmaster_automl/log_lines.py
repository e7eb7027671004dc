"""Figures of a trial as lines of its log, which is a road by which metrics reach the platform."""

from __future__ import annotations

import json
import math
import os
from typing import Mapping


def log_metrics(values: Mapping[str, float], step: int) -> None:
    """One line such as ``accuracy=0.93 step=2``; what is not finite is left out."""
    known = ["%s=%.9g" % (name, value) for name, value in values.items() if math.isfinite(value)]
    print(" ".join([*known, "step=%d" % step]), flush=True)


def log_message(sentence: str) -> None:
    """For a person who reads the log. Kept free of pairs that would be taken for metrics."""
    print(sentence, flush=True)


def report_event(sentence: str) -> None:
    """For the history of the trial's job, from where the leaderboard takes what it is to say of the data."""
    path = os.environ.get("TRAINMASTER_REPORT_FILE")
    if path:
        with open(path, "a", encoding="utf-8") as stream:
            stream.write(json.dumps({"kind": "event", "reason": sentence}) + "\n")
