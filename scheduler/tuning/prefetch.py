"""Points that were drawn while trials ran, for an algorithm that takes its time: which of them are still good enough."""

from __future__ import annotations


def prefetched_to_start(ready: int, room: int, missed: int, parallel: int) -> int:
    """How many of the points that were drawn ahead begin now; the rest of the room is drawn anew.

    As many as there is room for, while they lack the results of a few trials at most. Where many trials end at once, as
    rounds do, one of them begins at once, so that no machine stands idle, and the others wait for what these results teach.

    Args:
        ready: points that were drawn ahead.
        missed: results that came since they were drawn.
        parallel: trials that the study runs at once.
    """
    most = min(ready, room)
    return most if missed <= max(1, parallel // 4) else min(1, most)
