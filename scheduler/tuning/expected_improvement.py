"""Bayesian optimisation: points of maximal expected improvement over the best result, by a Gaussian process.

Pending results are sampled several times ("fantasies"), and the acquisition function is the mean over them (Snoek et
al., "Practical Bayesian Optimization of Machine Learning Algorithms", 2012). It is computed in logarithms, which
distinguish tiny expectations (Ament et al., "Unexpected Improvements to Expected Improvement", 2023).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import erfcx
from trainmaster.studies import Algorithm, Goal

from scheduler.tuning.encoding import Rows, UnitCube
from scheduler.tuning.engine import sample_points
from scheduler.tuning.gaussian_process import GaussianProcess, fit_kernel, normalised
from scheduler.tuning.request import Proposal, ProposalRequest, thinned

# The cost grows with the cube of this number.
_HISTORY_LIMIT: Final = 200
_FANTASIES: Final = 16
_ANYWHERE: Final = 1_500
# Candidates near each of the best results, and their distance along each axis.
_NEAR: Final = 40
_BEST: Final = 5
_NEARNESS: Final = (0.2, 0.05, 0.01)
_SEARCHES: Final = 6
_GOLDEN_STEPS: Final = 40
# This fraction of the steps takes another value of a parameter without order.
_JUMPS: Final = 0.2
_LOG_ROOT_2PI: Final = 0.5 * math.log(2 * math.pi)
_FAR: Final = -1e4
# Golden-ratio steps fall on both halves of a circle evenly, also if only every n-th is used: some prefetched points
# are never tried.
_GOLDEN_STEP: Final = (math.sqrt(5) - 1) / 2


def improvement_points(request: ProposalRequest, others: Sequence[Proposal] = ()) -> Iterator[Proposal]:
    """An endless stream of points; each counts as pending for the next ones. One goal; at least two results.

    Args:
        others: points from another source, which count as pending too; read before each draw.
    """
    cube = UnitCube(request.space)
    chance = np.random.default_rng([request.seed % 2**31, request.index])
    history = thinned(request.finished, request.goals, _HISTORY_LIMIT)
    sign = 1.0 if request.goals[0] is Goal.MINIMIZE else -1.0
    rows = cube.rows([trial.parameters for trial in history])
    values = normalised(np.array([sign * trial.values[0] for trial in history]))
    kernel = fit_kernel(rows, values, cube.is_categorical)
    posterior = GaussianProcess(kernel, rows, values)
    drawn: list[Proposal] = []
    while True:
        pending = cube.rows([trial.parameters for trial in itertools.chain(request.pending, others, drawn)])
        search = _Search(cube, _expected_improvement(posterior, values, pending, chance), rows, values, chance)
        drawn.append(Proposal(search.best()))
        yield drawn[-1]


def _expected_improvement(
    posterior: GaussianProcess, values: NDArray[np.float64], pending: Rows, chance: np.random.Generator
) -> _ExpectedImprovement:
    """The acquisition function, with fantasies for the pending points."""
    lowest = float(values.min())
    if not len(pending):
        return _ExpectedImprovement(
            GaussianProcess(posterior.kernel, posterior.rows, values[:, None]), np.array([lowest])
        )
    fantasies = posterior.fantasies(pending, chance.standard_normal((len(pending), _FANTASIES)))
    repeated = np.repeat(values[:, None], _FANTASIES, axis=1)
    process = GaussianProcess(posterior.kernel, np.vstack([posterior.rows, pending]), np.vstack([repeated, fantasies]))
    return _ExpectedImprovement(process, np.minimum(lowest, fantasies.min(axis=0)))


class _ExpectedImprovement:
    """Log of the expected improvement. ``lowest``: the best value of each fantasy."""

    def __init__(self, process: GaussianProcess, lowest: NDArray[np.float64]) -> None:
        self._process, self._lowest = process, lowest

    def at(self, rows: Rows) -> NDArray[np.float64]:
        means, deviations = self._process.at(rows)
        logs, _ = _log_expected((self._lowest - means) / deviations[:, None])
        return np.asarray(_log_mean(logs) + np.log(deviations), dtype=np.float64)

    def slope(self, row: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        """Value and gradient at one point."""
        means, deviation, by_means, by_deviation = self._process.slopes(row)
        reach = (self._lowest - means) / deviation
        logs, ratios = _log_expected(reach)
        mean = float(_log_mean(logs))
        parts = np.exp(logs - mean) / len(logs)
        slope = -(by_means @ (parts * ratios)) / deviation
        slope += by_deviation * float(parts @ (1 - ratios * reach)) / deviation
        return mean + math.log(deviation), slope


def _log_mean(logs: NDArray[np.float64]) -> NDArray[np.float64]:
    """Log of the mean over the last axis. (scipy's logsumexp took a third of the search, because of its argument
    checks.)
    """
    top = logs.max(axis=-1)
    return np.asarray(top + np.log(np.exp(logs - top[..., None]).mean(axis=-1)), dtype=np.float64)


def _log_expected(reach: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """log(phi(z) + z Phi(z)) and its derivative for each z, also where both terms underflow or cancel."""
    z = np.maximum(reach, _FAR)
    # Phi over phi: exact far out on the left; on the right it overflows, so phi is used directly.
    nonpositive = np.minimum(z, 0.0)
    mills = math.sqrt(math.pi / 2) * erfcx(-nonpositive / math.sqrt(2))
    inner = np.where(nonpositive > -100.0, 1 + nonpositive * mills, 1 / np.maximum(nonpositive * nonpositive, 1.0))
    logs = -0.5 * nonpositive * nonpositive - _LOG_ROOT_2PI + np.log(np.maximum(inner, 1e-300))
    ratios = np.where(nonpositive > -100.0, mills / np.maximum(inner, 1e-300), -nonpositive)
    # Right of zero: h(z) = z + h(-z).
    nonnegative = np.maximum(z, 0.0)
    tail = math.sqrt(math.pi / 2) * erfcx(nonnegative / math.sqrt(2))
    density = np.exp(-0.5 * nonnegative * nonnegative - _LOG_ROOT_2PI)
    expected = nonnegative + density * np.maximum(1 - nonnegative * tail, 0.0)
    is_right = z > 0
    safe = np.where(is_right, expected, 1.0)
    return np.where(is_right, np.log(safe), logs), np.where(is_right, (1 - density * tail) / safe, ratios)


class _Search:
    """Maximises the expected improvement."""

    def __init__(
        self,
        cube: UnitCube,
        improvement: _ExpectedImprovement,
        rows: Rows,
        values: NDArray[np.float64],
        chance: np.random.Generator,
    ) -> None:
        self._cube, self._improvement, self._chance = cube, improvement, chance
        self._best = rows[np.argsort(values, kind="stable")[:_BEST]]

    def best(self) -> dict[str, Any]:
        uniform = self._chance.random((_ANYWHERE, len(self._cube.choices)))
        for column, count in enumerate(self._cube.choices):
            if count:
                uniform[:, column] = np.floor(uniform[:, column] * count)
        candidates = np.vstack([uniform, *(self._near(row) for row in self._best)])
        order = np.argsort(-self._improvement.at(candidates), kind="stable")
        starts = self._allowed(candidates, order)
        optima = [point for row in starts for point in (row, self._climbed(row))]
        # Evaluate the points as they would be tried: integers rounded.
        points = [self._cube.point(row) for row in optima]
        points = [point for point in points if self._cube.space.holds(point)] or points
        return points[int(np.argmax(self._improvement.at(self._cube.rows(points))))]

    def _near(self, row: NDArray[np.float64]) -> Rows:
        count = _NEAR * len(_NEARNESS)
        steps = np.repeat(_NEARNESS, _NEAR)[:, None] * self._chance.standard_normal((count, len(row)))
        neighbours = np.clip(row + steps, 0.0, 1.0)
        for column, choices in enumerate(self._cube.choices):
            if choices:
                jumps = self._chance.random(count) < _JUMPS
                neighbours[:, column] = np.where(jumps, self._chance.integers(choices, size=count), row[column])
        return neighbours

    def _allowed(self, rows: Rows, order: NDArray[np.intp]) -> list[NDArray[np.float64]]:
        """The first few candidates that satisfy the constraints; if none does, the first one."""
        space = self._cube.space
        if not space.constraints:
            return [rows[place] for place in order[:_SEARCHES]]
        admissible: list[NDArray[np.float64]] = []
        for place in order:
            if space.holds(self._cube.point(rows[place])):
                admissible.append(rows[place])
                if len(admissible) == _SEARCHES:
                    break
        return admissible or [rows[order[0]]]

    def _climbed(self, row: NDArray[np.float64]) -> NDArray[np.float64]:
        free = ~self._cube.is_categorical
        if not free.any():
            return row

        def negative_improvement(numbers: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
            point = row.copy()
            point[free] = numbers
            value, slope = self._improvement.slope(point)
            return -value, -slope[free]

        bounds = [(0.0, 1.0)] * int(free.sum())
        optimum = minimize(
            negative_improvement,
            row[free],
            jac=True,
            method="L-BFGS-B",
            bounds=bounds,
            options={"maxiter": _GOLDEN_STEPS},
        )
        climbed = row.copy()
        climbed[free] = np.clip(optimum.x, 0.0, 1.0)
        return climbed


def interleave(request: ProposalRequest, offset: int = 0) -> Iterator[Proposal]:
    """An endless stream of points of TPE and of a Gaussian process, which learn from the results of both.

    Each counts as pending for the next ones of either algorithm. The proposal number determines the algorithm. A point
    that may not be tried uses up the turn: what one algorithm can only repeat, the other may leave.
    """
    by_tpe: list[Proposal] = []
    by_process: list[Proposal] = []
    tpe = sample_points(replace(request, algorithm=Algorithm.TPE), by_process)
    process = improvement_points(request, by_tpe)
    for place in itertools.count(request.index + offset):
        drawn, source = (by_tpe, tpe) if place * _GOLDEN_STEP % 1.0 < 0.5 else (by_process, process)
        drawn.append(next(source))
        yield drawn[-1]
