"""Stateless proposals: everything that a proposal depends on is an argument, and equal arguments give equal points."""

from __future__ import annotations

import importlib.util
import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import chain, count, islice
from math import isqrt
from random import Random  # noqa: TID251 (seeded by the study)
from typing import Any, Final

from trainmaster.studies import Algorithm, Goal, ParameterType, Space
from trainmaster.studies.space import spread, value_count

from scheduler.tuning.request import Proposal, ProposalRequest, startup_trials

# Up to these numbers of parameters and trials a Gaussian process helps, in a time that trials hide. Beyond, its cubic
# cost shows and TPE catches up: Optuna's own AutoSampler has the same limits.
_GP_PARAMETERS: Final = 20
_GP_TRIALS: Final = 250
# Redraws of points that break a constraint or are taken, before random points are tried.
_REDRAWS: Final = 20
# Optuna's GP lists every integer of a range; for larger ranges our own Gaussian process is used.
_GP_WHOLE: Final = 100_000
_RANDOM_DRAWS: Final = 10_000
_ROUNDS: Final = 4


@dataclass(frozen=True, slots=True)
class AlgorithmChoice:
    """``reason``: why, for people; empty if the user chose."""

    algorithm: Algorithm
    reason: str = ""


def choose_algorithm(space: Space, algorithm: Algorithm, goals: Sequence[Goal], trials: int | None) -> AlgorithmChoice:
    """The algorithm that ``auto`` means for this study; every other algorithm is itself.

    ``AUTO`` is returned for TPE interleaved with a Gaussian process: for one metric, an unconditional space of at
    most 20 parameters of which most are numbers, and a budget of at most 250 trials. Else TPE.
    """
    if algorithm is not Algorithm.AUTO:
        return AlgorithmChoice(algorithm)
    numbers = sum(parameter.type is not ParameterType.CATEGORICAL for parameter in space.parameters.values())
    against = {
        f"the study has {len(goals)} metrics": len(goals) > 1,
        "some parameters depend on others": space.is_conditional,
        f"it searches more than {_GP_PARAMETERS} parameters": len(space.parameters) > _GP_PARAMETERS,
        "most parameters are choices, not numbers": 2 * numbers < len(space.parameters),
        "its budget has no number of trials": trials is None,
        f"its budget has more than {_GP_TRIALS} trials": trials is not None and trials > _GP_TRIALS,
    }
    objections = [reason for reason, holds in against.items() if holds]
    if objections:
        return AlgorithmChoice(Algorithm.TPE, f"TPE, since {' and '.join(objections)}.")
    few = f"at most {_GP_PARAMETERS} parameters, at least half of them numbers, and at most {_GP_TRIALS} trials"
    return AlgorithmChoice(Algorithm.AUTO, f"TPE and GP in turns, since the study has one metric, {few}.")


def chosen_algorithm(space: Space, algorithm: Algorithm, goals: Sequence[Goal], trials: int | None) -> Algorithm:
    """The same without the reason."""
    return choose_algorithm(space, algorithm, goals, trials).algorithm


def has_gaussian_process() -> bool:
    """Whether the dependencies of Optuna's GP are installed. Without them, our own Gaussian process
    serves one metric.
    """
    return importlib.util.find_spec("torch") is not None


def gp_may_draw(space: Space) -> bool:
    """Whether Optuna's GP is available and has the memory for this space."""
    if not has_gaussian_process():
        return False
    integers = (parameter for parameter in space.parameters.values() if parameter.type is ParameterType.INTEGER)
    return all((value_count(parameter) or 1) <= _GP_WHOLE for parameter in integers)


def propose(request: ProposalRequest) -> list[Proposal]:
    """At most ``request.count`` points; fewer when the space is exhausted (a grid, a finite space).

    No point is proposed that is pending or was tried, except the user's initial points. All satisfy the constraints.
    """
    proposals: list[Proposal] = []
    excluded = {key_of(trial.parameters) for trial in request.pending}
    for point in request.initial[request.index : request.index + request.count]:
        proposals.append(Proposal(dict(point), {"origin": "initial"}))
        excluded.add(key_of(point))
    missing = request.count - len(proposals)
    if missing <= 0:
        return proposals
    if request.algorithm is Algorithm.GRID:
        return proposals + _of_grid(request, missing, excluded)
    already_tried = _TriedPoints(request, excluded)
    draws = _drawn(request, len(proposals))
    for _ in range(missing):
        proposal = _fresh(request, draws, already_tried)
        if proposal is None:
            break
        proposals.append(proposal)
        already_tried.add(proposal.parameters)
    return proposals


def key_of(point: Mapping[str, Any]) -> str:
    """Equal for equal points."""
    return json.dumps(point, sort_keys=True)


def _tried_keys(request: ProposalRequest) -> set[str]:
    return {key_of(trial.parameters) for trial in request.finished} | {key_of(point) for point in request.failed_points}


def _of_grid(request: ProposalRequest, limit: int, excluded: set[str]) -> list[Proposal]:
    """The grid's untried points, in an order shuffled by the seed, so that a part of the grid is spread out.

    A proposal stores its position as ``grid``: the next request continues there, and visits earlier positions last,
    of which some may have been drawn and never tried.
    """
    already_tried = excluded | _tried_keys(request)
    memos = chain((trial.memo for trial in request.finished), (trial.memo for trial in request.pending))
    begin = max((memo["grid"] + 1 for memo in memos if "grid" in memo), default=0)
    size = request.space.grid_size
    proposals: list[Proposal] = []
    for position in chain(range(begin, size), range(min(begin, size))):
        point = request.space.grid_point(shuffled(position, size, request.seed))
        if point is not None and key_of(point) not in already_tried:
            proposals.append(Proposal(point, {"grid": position}))
            if len(proposals) == limit:
                break
    return proposals


def _drawn(request: ProposalRequest, offset: int) -> Iterator[Proposal]:
    """An endless stream of points by the algorithm. Each counts as pending for the next ones."""
    match request.algorithm:
        case Algorithm.RANDOM:
            return _random(request, "random", offset)
        case Algorithm.QMC:
            return (Proposal(point) for point in sobol_points(request.space, request.seed, request.index + offset))
        case Algorithm.TPE | Algorithm.GP | Algorithm.AUTO if len(request.finished) < startup_trials(request.space):
            return _spread(request, offset)
        case Algorithm.AUTO:
            from scheduler.tuning.expected_improvement import interleave

            return interleave(request, offset)
        case Algorithm.GP if len(request.goals) == 1 and not gp_may_draw(request.space):
            from scheduler.tuning.expected_improvement import improvement_points

            return improvement_points(request)
        case _:
            from scheduler.tuning.engine import sample_points

            return sample_points(request)


def _spread(request: ProposalRequest, offset: int) -> Iterator[Proposal]:
    """Evenly spread points from the study's position in the sequence on, rotated by the seed."""
    chance = Random(f"spread:{request.seed}")  # noqa: S311 (no secret)
    turns = [chance.random() for _ in request.space.parameters]
    for number in count(request.index + offset):
        unit = [(place + turn) % 1.0 for place, turn in zip(spread(len(turns), number), turns, strict=True)]
        yield Proposal(request.space.from_unit(unit))


def _random(request: ProposalRequest, purpose: str, offset: int = 0) -> Iterator[Proposal]:
    chance = Random(f"{purpose}:{request.seed}:{request.index + offset}")  # noqa: S311 (no secret)
    while True:
        unit = [chance.random() for _ in request.space.parameters]
        yield Proposal(request.space.from_unit(unit))


class _TriedPoints:
    """Points that may not be proposed again.

    Equivalent to the set of all keys. But serialising ten thousand points takes longer than drawing one, so the first
    few lookups compare the points themselves, and the set is built when there are many lookups.
    """

    def __init__(self, request: ProposalRequest, excluded: set[str]) -> None:
        self._request = request
        self._keys = excluded
        self._is_complete = False
        self._lookups = 0

    def __contains__(self, point: Mapping[str, Any]) -> bool:
        self._lookups += 1
        if self._lookups > _REDRAWS and not self._is_complete:
            self._keys = self._keys | _tried_keys(self._request)
            self._is_complete = True
        key = key_of(point)
        if key in self._keys:
            return True
        # Python equality is not enough: True equals 1.
        return not self._is_complete and any(other == point and key_of(other) == key for other in self._points())

    def __len__(self) -> int:
        """How many were proposed in this request, or are pending."""
        return len(self._keys)

    def add(self, point: Mapping[str, Any]) -> None:
        self._keys.add(key_of(point))

    def _points(self) -> Iterator[Mapping[str, Any]]:
        return chain((trial.parameters for trial in self._request.finished), self._request.failed_points)


def _fresh(request: ProposalRequest, draws: Iterator[Proposal], already_tried: _TriedPoints) -> Proposal | None:
    """The next admissible draw; if the algorithm finds none, random points; in a finite space finally all points."""
    chance = _random(request, f"rest{len(already_tried)}")
    for proposal in chain(islice(draws, _REDRAWS), islice(chance, _RANDOM_DRAWS)):
        if proposal.parameters not in already_tried and request.space.holds(proposal.parameters):
            return proposal
    if request.space.size is None:
        return None
    return next((Proposal(point) for point in request.space.grid() if point not in already_tried), None)


def shuffled(place: int, size: int, seed: int) -> int:
    """Element ``place`` of the permutation of the numbers below ``size`` that ``seed`` defines.

    A Feistel network over the smallest sufficient square, iterated while the result is outside ``size`` (cycle
    walking; Black and Rogaway, "Ciphers with Arbitrary Finite Domains", 2002).
    """
    if not 0 <= place < size:
        raise ValueError(f"there is no place {place} among {size}")
    side = isqrt(size - 1) + 1
    element = place
    while True:
        left, right = divmod(element, side)
        for number in range(_ROUNDS):
            key = b"%d:%d:%d" % (seed, number, right)
            left, right = right, (left + int.from_bytes(blake2b(key, digest_size=8).digest(), "big")) % side
        element = left * side + right
        if element < size:
            return element


def sobol_points(space: Space, seed: int, index: int) -> Iterator[dict[str, Any]]:
    """The points from number ``index`` on. The caller skips points that break constraints.

    A skipped point shifts the following ones: two requests with different numbers may get the same point, which the
    list of pending points keeps apart.
    """
    from scipy.stats import qmc

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # for counts that are no power of two
        source = qmc.Sobol(len(space.parameters), scramble=True, rng=seed)
        if index:
            source.fast_forward(index)
        while True:
            yield space.from_unit([min(float(place), 1 - 1e-12) for place in source.random(1)[0]])
