"""What a proposal depends on: the study's space, its trials so far, and the seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from heapq import nsmallest
from typing import Any

from trainmaster.studies import Algorithm, Goal, Space


@dataclass(frozen=True, slots=True)
class ObservedTrial:
    """A finished trial. ``values``: one per metric. ``memo``: what its proposal asked to keep."""

    parameters: Mapping[str, Any]
    values: tuple[float, ...]
    memo: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Proposal:
    """``memo``: what the algorithm wants to see again with the trial's result; plain JSON."""

    parameters: dict[str, Any]
    memo: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ProposalRequest:
    """``index``: number of earlier proposals of the study; ``pending``: points without a result, with their memos;
    ``failed_points``: points whose trials failed; ``initial``: the user's own points, which come first.
    """

    space: Space
    algorithm: Algorithm
    goals: tuple[Goal, ...]
    seed: int
    index: int
    count: int = 1
    finished: Sequence[ObservedTrial] = ()
    pending: Sequence[Proposal] = ()
    failed_points: Sequence[Mapping[str, Any]] = ()
    initial: Sequence[Mapping[str, Any]] = ()


def startup_trials(space: Space) -> int:
    """Number of results below which TPE and GP would only guess: the first points fill the space evenly instead."""
    return min(20, max(8, 2 * len(space.parameters)))


def thinned(finished: Sequence[ObservedTrial], goals: Sequence[Goal], most: int) -> Sequence[ObservedTrial]:
    """All observations in order or, of more than ``most``, the best third and the newest of the rest."""
    if len(finished) <= most:
        return finished
    sign = 1.0 if goals[0] is Goal.MINIMIZE else -1.0
    chosen = set(nsmallest(most // 3, range(len(finished)), key=lambda place: sign * finished[place].values[0]))
    for place in reversed(range(len(finished))):
        if len(chosen) >= most:
            break
        chosen.add(place)
    return [finished[place] for place in sorted(chosen)]
