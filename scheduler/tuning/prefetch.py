"""Prefetched points, drawn while trials ran by a slow algorithm: how many of them are still good enough."""

from __future__ import annotations


def prefetched_to_start(ready: int, room: int, missed: int, parallel: int) -> int:
    """How many prefetched points start now; the remaining slots are drawn again.

    All slots are filled while the points lack only a few results. Where many trials end together, as in rounds, one
    point starts at once so that no machine is idle, and the others wait for what these results teach.

    Args:
        ready: number of prefetched points. missed: results that came since they were drawn. parallel: parallel trials
        of the study.
    """
    most = min(ready, room)
    return most if missed <= max(1, parallel // 4) else min(1, most)
