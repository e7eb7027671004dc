"""Metrics of a trial as lines of its log, from which the platform reads them."""

from __future__ import annotations

import json
import math
import os
from typing import Mapping


def log_metrics(values: Mapping[str, float], step: int) -> None:
    """Print one line such as ``accuracy=0.93 step=2``; non-finite values are left out."""
    known = ["%s=%.9g" % (name, value) for name, value in values.items() if math.isfinite(value)]
    print(" ".join([*known, "step=%d" % step]), flush=True)


def log_message(sentence: str) -> None:
    """Print a message for people; it must not contain ``name=value`` pairs, which would be read as metrics."""
    print(sentence, flush=True)


def report_event(sentence: str) -> None:
    """Add an event to the history of the trial's job, from which the leaderboard takes notes on the data."""
    path = os.environ.get("TRAINMASTER_REPORT_FILE")
    if path:
        with open(path, "a", encoding="utf-8") as stream:
            stream.write(json.dumps({"kind": "event", "reason": sentence}) + "\n")
