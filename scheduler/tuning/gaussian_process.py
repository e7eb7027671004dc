"""A Gaussian process over the rows of :mod:`scheduler.tuning.encoding`: Matern 5/2, a length for each parameter.

Rasmussen and Williams, "Gaussian Processes for Machine Learning", 2006. The lengths' prior grows with the number of
parameters (Hvarfner et al., "Vanilla Bayesian Optimization Performs Great in High Dimensions", 2024), so that few
points do not fit noise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_solve, cholesky, solve_triangular
from scipy.optimize import minimize
from scipy.spatial.distance import cdist
from scipy.stats import yeojohnson

from scheduler.tuning.encoding import Rows

# Prior means and deviations of the logarithms: of a length scale (its mean also grows with the square root of the
# dimension), of the variance, and of the noise, in units of the values' variance.
_LENGTH: Final = (math.sqrt(2) - 3.0, math.sqrt(3))  # the mode of the length scale's density
_VARIANCE: Final = (0.0, 0.7)
_NOISE: Final = (-6.0, 1.5)
_ENDS: Final = ((-4.6, 6.0), (-3.0, 3.0), (-13.8, 0.7))
# Initial length scales of the likelihood maximisation, as fractions of a side of the cube.
_BEGINNINGS: Final = (0.3, 1.5)
_STEPS: Final = 60
_JITTER: Final = 1e-9
# Costs worse than the median by more than this multiple of the best's distance to it are clipped.
_WORST: Final = 5.0
_SQRT5: Final = math.sqrt(5)


def normalised(costs: NDArray[np.float64]) -> NDArray[np.float64]:
    """Transform the costs for a Gaussian process: outliers clipped, skewness removed, mean 0, variance 1."""
    costs = costs / max(float(np.abs(costs).max()), 1e-300)  # avoids overflow of squares
    middle, best = float(np.median(costs)), float(costs.min())
    if middle > best:
        costs = np.minimum(costs, middle + _WORST * (middle - best))
    standard = _standard(costs)
    if standard.any():
        with np.errstate(all="ignore"):  # overflows are checked below
            bent = _standard(np.asarray(yeojohnson(standard)[0], dtype=np.float64))
        if np.isfinite(bent).all() and bent.any():
            return bent
    return standard


def _standard(values: NDArray[np.float64]) -> NDArray[np.float64]:
    deviation = float(values.std())
    if not math.isfinite(deviation) or deviation <= 1e-12 * float(np.abs(values).max()):
        return np.zeros_like(values)
    return np.asarray((values - values.mean()) / deviation, dtype=np.float64)


@dataclass(frozen=True, slots=True)
class Kernel:
    """``weights``: inverse squares of the length scales. ``variance`` and ``noise``: of the values."""

    weights: NDArray[np.float64]
    variance: float
    noise: float
    is_categorical: NDArray[np.bool_]

    def between(self, left: Rows, right: Rows) -> Rows:
        """Covariance matrix, shape (left, right)."""
        return self.variance * _matern(self._squares(left, right))

    def covariance_gradient(self, row: NDArray[np.float64], others: Rows) -> tuple[NDArray[np.float64], Rows]:
        """Covariances of ``row`` with ``others``, shape (others,), and their gradients by ``row``, shape (others,
        parameters).

        The gradient is 0 along categorical parameters.
        """
        root = _SQRT5 * np.sqrt(self._squares(row[None, :], others)[0])
        fall = self.variance * np.exp(-root)
        steps = np.where(self.is_categorical, 0.0, row - others)
        slopes = (-(5 / 3) * (1 + root) * fall)[:, None] * steps * self.weights
        return (1 + root + root * root / 3) * fall, np.asarray(slopes, dtype=np.float64)

    def _squares(self, left: Rows, right: Rows) -> NDArray[np.float64]:
        """Squared scaled distances: :func:`squared_differences` times the weights, without its third dimension."""
        is_number = ~self.is_categorical
        scale = np.sqrt(self.weights[is_number])
        squares = cdist(left[:, is_number] * scale, right[:, is_number] * scale, "sqeuclidean")
        for column in np.flatnonzero(self.is_categorical):
            squares += self.weights[column] * (left[:, column, None] != right[None, :, column])
        return np.asarray(squares, dtype=np.float64)


def squared_differences(left: Rows, right: Rows, is_categorical: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Squared differences, shape (left, right, parameters); 0 or 1 between two categorical values."""
    steps = left[:, None, :] - right[None, :, :]
    squares = steps * steps
    if is_categorical.any():
        squares[..., is_categorical] = squares[..., is_categorical] > 0
    return np.asarray(squares, dtype=np.float64)


def _matern(squares: NDArray[np.float64]) -> NDArray[np.float64]:
    root = _SQRT5 * np.sqrt(squares)
    return np.asarray((1 + root + root * root / 3) * np.exp(-root), dtype=np.float64)


def fit_kernel(rows: Rows, values: NDArray[np.float64], is_categorical: NDArray[np.bool_]) -> Kernel:
    """The maximum a posteriori kernel for ``values`` (mean 0, variance 1) at ``rows``."""
    count = rows.shape[1]
    squares = squared_differences(rows, rows, is_categorical)
    length = _LENGTH[0] + 0.5 * math.log(count)
    means = np.array([length] * count + [_VARIANCE[0], _NOISE[0]])
    deviations = np.array([_LENGTH[1]] * count + [_VARIANCE[1], _NOISE[1]])
    bounds = [_ENDS[0]] * count + [_ENDS[1], _ENDS[2]]

    def negative_log_posterior(logs: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        cost, slope = negative_log_likelihood(logs, squares, values)
        off = (logs - means) / deviations
        return cost + 0.5 * float(off @ off), slope + off / deviations

    best: tuple[float, NDArray[np.float64]] | None = None
    for beginning in _BEGINNINGS:
        start = np.array([math.log(beginning * math.sqrt(count))] * count + [0.0, -4.0])
        optimum = minimize(
            negative_log_posterior, start, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": _STEPS}
        )
        if best is None or optimum.fun < best[0]:
            best = (float(optimum.fun), np.asarray(optimum.x, dtype=np.float64))
    logs = best[1] if best is not None else means
    return Kernel(np.exp(-2 * logs[:count]), math.exp(logs[-2]), math.exp(logs[-1]), is_categorical)


def negative_log_likelihood(
    logs: NDArray[np.float64], squares: NDArray[np.float64], values: NDArray[np.float64]
) -> tuple[float, NDArray[np.float64]]:
    """Negative log marginal likelihood and its gradient by the logs of length scales, variance and noise."""
    weights, variance, noise = np.exp(-2 * logs[:-2]), math.exp(logs[-2]), math.exp(logs[-1])
    root = _SQRT5 * np.sqrt(squares @ weights)
    fall = np.exp(-root)
    shape = (1 + root + root * root / 3) * fall
    covariance = variance * shape
    covariance[np.diag_indices_from(covariance)] += noise + _JITTER
    try:
        factor = cholesky(covariance, lower=True, check_finite=False)
    except np.linalg.LinAlgError:
        return 1e10, np.zeros_like(logs)
    pulled = cho_solve((factor, True), values, check_finite=False)
    inverse = cho_solve((factor, True), np.eye(len(values)), check_finite=False)
    cost = 0.5 * float(values @ pulled) + float(np.log(np.diag(factor)).sum())
    pull = inverse - np.outer(pulled, pulled)  # twice the gradient of the cost by the covariances
    by_square = pull * (-(5 / 6) * variance) * (1 + root) * fall
    by_length = -weights * np.einsum("ij,ijk->k", by_square, squares)
    by_variance = 0.5 * float((pull * shape).sum()) * variance
    by_noise = 0.5 * float(np.trace(pull)) * noise
    return cost, np.array([*by_length, by_variance, by_noise])


class GaussianProcess:
    """The posterior given ``values`` at ``rows``: shape (rows,) or, for several fantasies, (rows, fantasies)."""

    def __init__(self, kernel: Kernel, rows: Rows, values: NDArray[np.float64]) -> None:
        self.kernel, self.rows = kernel, rows
        covariance = kernel.between(rows, rows)
        covariance[np.diag_indices_from(covariance)] += kernel.noise + _JITTER
        self._factor = cholesky(covariance, lower=True, check_finite=False)
        self._pulled = cho_solve((self._factor, True), values, check_finite=False)

    def at(self, rows: Rows) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Posterior means, shape (rows,) or (rows, fantasies), and deviations, shape (rows,)."""
        near = self.kernel.between(rows, self.rows)
        half = solve_triangular(self._factor, near.T, lower=True, check_finite=False)
        variances = self.kernel.variance - np.einsum("ij,ij->j", half, half)
        return near @ self._pulled, np.sqrt(np.maximum(variances, 1e-12))

    def slopes(
        self, row: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], float, NDArray[np.float64], NDArray[np.float64]]:
        """At one point: mean of each fantasy, deviation, and the gradients of both.

        Shapes (fantasies,), scalar, (parameters, fantasies) and (parameters,).
        """
        near, turns = self.kernel.covariance_gradient(row, self.rows)
        solved = cho_solve((self._factor, True), near, check_finite=False)
        deviation = math.sqrt(max(1e-12, self.kernel.variance - float(near @ solved)))
        return near @ self._pulled, deviation, turns.T @ self._pulled, -(turns.T @ solved) / deviation

    def fantasies(self, rows: Rows, draws: NDArray[np.float64]) -> NDArray[np.float64]:
        """Sampled values at ``rows``, one column per column of ``draws`` (rows, fantasies), standard normal numbers."""
        near = self.kernel.between(rows, self.rows)
        half = solve_triangular(self._factor, near.T, lower=True, check_finite=False)
        covariance = self.kernel.between(rows, rows) - half.T @ half
        covariance[np.diag_indices_from(covariance)] += self.kernel.noise + 1e-6
        return np.asarray((near @ self._pulled)[:, None] + cholesky(covariance, lower=True) @ draws, dtype=np.float64)
