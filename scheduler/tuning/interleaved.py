"""Interleaved points of TPE and of a Gaussian process, each of which learns from the results of both."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from math import sqrt
from typing import Final

from trainmaster.studies import Algorithm

from scheduler.tuning.engine import sample_points
from scheduler.tuning.expected_improvement import improvement_points
from scheduler.tuning.request import Proposal, ProposalRequest

# Golden-ratio steps fall on both halves of a circle evenly, also if only every n-th is used: some prefetched points
# are never tried.
_STEP: Final = (sqrt(5) - 1) / 2


def interleave(request: ProposalRequest, offset: int = 0) -> Iterator[Proposal]:
    """An endless stream of points; each counts as pending for the next ones of either algorithm.

    The proposal number determines the algorithm. A point that may not be tried uses up the turn: what one algorithm
    can only repeat, the other may leave.
    """
    by_tpe: list[Proposal] = []
    by_process: list[Proposal] = []
    tpe = sample_points(replace(request, algorithm=Algorithm.TPE), by_process)
    process = improvement_points(request, by_tpe)
    for place in count(request.index + offset):
        drawn, source = (by_tpe, tpe) if place * _STEP % 1.0 < 0.5 else (by_process, process)
        drawn.append(next(source))
        yield drawn[-1]
