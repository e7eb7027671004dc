"""Of long histories, the results that a sampler looks at."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import nsmallest

from trainmaster.studies import Goal

from scheduler.tuning.propose import Observed


def kept(finished: Sequence[Observed], goals: Sequence[Goal], most: int) -> Sequence[Observed]:
    """All of them in their order or, of more than ``most``, the best third and the newest of the rest."""
    if len(finished) <= most:
        return finished
    sign = 1.0 if goals[0] is Goal.MINIMIZE else -1.0
    chosen = set(nsmallest(most // 3, range(len(finished)), key=lambda place: sign * finished[place].values[0]))
    for place in reversed(range(len(finished))):
        if len(chosen) >= most:
            break
        chosen.add(place)
    return [finished[place] for place in sorted(chosen)]
