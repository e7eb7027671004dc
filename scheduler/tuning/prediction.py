"""Extrapolation of the best value with more trials, with an interval, or the reason why there is none.

Recent trials represent future ones: a learning algorithm draws other points than at its start. The best quarter of
them is fitted as the tail of a generalized Pareto distribution (bounded or exponential), which says how far beyond
the best one more trial may come; resampling gives the uncertainty. The method is then checked on the study's own past
(backtesting): where later results fell outside the interval too often, no forecast is given.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random  # noqa: TID251 (seeded by the study)
from typing import Final

# Results that a forecast, also a backtested one, is made from.
_FEWEST_BEFORE: Final = 12
_TAIL: Final = 0.25
_FEWEST_IN_TAIL: Final = 4
# Longer studies use the newest trials: the tail of two hundred is known well enough, and the answer takes some tenths
# of a second.
_MOST: Final = 200
_REPEATS: Final = 200
_REPEATS_OF_CHECK: Final = 60
_POINTS: Final = 16
_LOW, _HIGH = 0.1, 0.9
# Fractions of the trials after which the forecast is backtested.
_CUTS: Final = (0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
_FEWEST_AFTER: Final = 3
_FEWEST_CHECKS: Final = 2
# From this number of results on, enough cuts have enough results before and after them.
MIN_RESULTS: Final = 17


@dataclass(frozen=True, slots=True)
class ForecastPoint:
    """The best cost after ``more`` more results; lower is better, so ``low`` is the better end."""

    more: int
    low: float
    likely: float
    high: float


@dataclass(frozen=True, slots=True)
class ImprovementForecast:
    """``reason``: why there is no forecast; then ``points`` is empty and ``chance`` is ``None``. ``confirmed`` of
    ``checked`` backtests contained the later result.
    """

    trials: int
    points: Sequence[ForecastPoint] = ()
    chance: float | None = None
    checked: int = 0
    held: int = 0
    reason: str = ""


def predict(costs: Sequence[float], more: int, seed: int) -> ImprovementForecast:
    """Forecast for ``more`` trials. Deterministic.

    Args:
        costs: of all trials with a result, in order; lower is better; finite.
    """
    count = len(costs)
    if count < MIN_RESULTS:
        return ImprovementForecast(
            count, reason=f"Not known: {count} trials have a result, and {MIN_RESULTS} are needed."
        )
    if min(costs) == max(costs):
        return ImprovementForecast(count, reason=f"Not known: all {count} results are the same.")
    cuts = {round(part * count) for part in _CUTS}
    cuts = {
        cut
        for cut in cuts
        if cut >= _FEWEST_BEFORE and count - cut >= _FEWEST_AFTER and min(costs[:cut]) < max(costs[:cut])
    }
    confirmed = sum(_holds(costs, cut, seed) for cut in cuts)
    if len(cuts) < _FEWEST_CHECKS:
        return ImprovementForecast(
            count,
            checked=len(cuts),
            held=confirmed,
            reason="Not known: the first results are all the same, so a forecast from them cannot be checked.",
        )
    if 2 * confirmed < len(cuts):
        words = (
            f"at {len(cuts)} earlier moments the same was asked, and {len(cuts) - confirmed} times something else came"
        )
        return ImprovementForecast(count, checked=len(cuts), held=confirmed, reason=f"Not known: {words}.")
    ahead = _horizon(more)
    paths = _paths(costs, ahead, Random(seed), _REPEATS)  # noqa: S311
    points = [ForecastPoint(trials, *_interval([path[place] for path in paths])) for place, trials in enumerate(ahead)]
    best = min(costs)
    chance = sum(path[-1] < best for path in paths) / len(paths)
    return ImprovementForecast(count, points, chance, len(cuts), confirmed)


def _holds(costs: Sequence[float], cut: int, seed: int) -> bool:
    """Backtest: whether the interval forecast after ``cut`` results contains the present best."""
    paths = _paths(costs[:cut], [len(costs) - cut], Random(seed + cut), _REPEATS_OF_CHECK)  # noqa: S311
    low, _, high = _interval([path[0] for path in paths])
    return low <= min(costs) <= high


def _paths(costs: Sequence[float], ahead: Sequence[int], random: Random, repeats: int) -> list[list[float]]:
    """Sampled futures: the best value after each number of trials in ``ahead``."""
    late = costs[-min(_MOST, max(_FEWEST_BEFORE, math.ceil(len(costs) / 2))) :]
    size = max(_FEWEST_IN_TAIL, round(_TAIL * len(late)))
    leader = min(costs)
    paths = []
    for _ in range(repeats):
        drawn = sorted(random.choices(late, k=len(late)))
        edge = drawn[size]
        shape, scale = _fitted(sorted(edge - cost for cost in drawn[:size]))
        best, previous = leader, 0
        path = []
        for trials in ahead:
            hits = _binomial(random, trials - previous, size / len(late))
            if hits and scale > 0:
                best = min(best, edge - _farthest(shape, scale, random.random() ** (1 / hits)))
            path.append(best)
            previous = trials
        paths.append(path)
    return paths


def _fitted(excess: Sequence[float]) -> tuple[float, float]:
    """Shape (Hosking's k: 0 is an exponential tail, 1 a uniform one up to its bound) and scale, by weighted moments."""
    count = len(excess)
    mean = sum(excess) / count
    weighted = sum((count - place) / (count - 1) * value for place, value in enumerate(excess, 1)) / count
    denominator = mean - 2 * weighted
    shape = mean / denominator - 2 if denominator > 0 else 1.0
    shape = min(1.0, max(0.0, shape))
    return shape, mean * (1 + shape)


def _farthest(shape: float, scale: float, place: float) -> float:
    """The quantile ``place`` of the excess."""
    beyond = max(1 - place, 1e-12)
    return -scale * math.log(beyond) if shape < 1e-6 else scale / shape * (1 - beyond**shape)


def _binomial(random: Random, count: int, share: float) -> int:
    if count > 200:
        return max(0, round(random.gauss(count * share, math.sqrt(count * share * (1 - share)))))
    return sum(random.random() < share for _ in range(count))


def _interval(values: list[float]) -> tuple[float, float, float]:
    ordered = sorted(values)
    low, middle, high = (ordered[round(part * (len(ordered) - 1))] for part in (_LOW, 0.5, _HIGH))
    return low, middle, high


def _horizon(more: int) -> list[int]:
    return sorted({max(1, round(more * place / _POINTS)) for place in range(1, _POINTS + 1)})
