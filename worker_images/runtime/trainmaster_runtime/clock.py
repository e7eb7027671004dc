"""The one place where the runtime reads clocks."""

from __future__ import annotations

import time

monotonic = time.monotonic


def now() -> float:
    """Seconds since 1970."""
    return time.time()  # noqa: TID251 - the edge where time enters


def pause(seconds: float) -> None:
    """Sleep."""
    time.sleep(seconds)  # noqa: TID251 - the edge where time passes


def stamp(seconds: float) -> str:
    """RFC 3339 in UTC with microseconds, such as ``2026-11-21T07:00:00.123456Z``."""
    full_seconds = int(seconds)
    text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(full_seconds))
    return "%s.%06dZ" % (text, int((seconds - full_seconds) * 1_000_000))
