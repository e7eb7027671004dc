"""Points of TPE and of a Gaussian process in turns, each of which learns from the results of both."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from math import sqrt
from typing import Final

from trainmaster.studies import Algorithm

from scheduler.tuning.engine import sampled
from scheduler.tuning.expected_improvement import improving
from scheduler.tuning.request import Proposal, ProposalRequest

# Steps of this part of a circle fall on both of its halves evenly, also where only every n-th place is used: of points that
# are drawn ahead some are never tried.
_STEP: Final = (sqrt(5) - 1) / 2


def in_turns(request: ProposalRequest, offset: int = 0) -> Iterator[Proposal]:
    """Points without end; each counts as pending for those that follow, of either kind.

    Whose turn it is follows from the place in the study's row of proposals. Whoever draws a point that may not be tried has had
    the turn: what the one can only repeat, the other may leave.
    """
    by_tpe: list[Proposal] = []
    by_process: list[Proposal] = []
    tpe = sampled(replace(request, algorithm=Algorithm.TPE), by_process)
    process = improving(request, by_tpe)
    for place in count(request.index + offset):
        drawn, source = (by_tpe, tpe) if place * _STEP % 1.0 < 0.5 else (by_process, process)
        drawn.append(next(source))
        yield drawn[-1]
