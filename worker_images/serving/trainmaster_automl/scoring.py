"""Metrics for the comparison of trials."""

from __future__ import annotations

import math
from typing import Any, Callable

import numpy as np
from scipy.stats import binomtest
from sklearn import metrics

_NONE: Any = 0.0  # for a class without predictions; scikit-learn's stubs allow only texts

CLASSIFICATION = ("accuracy", "balanced_accuracy", "f1_macro", "roc_auc", "log_loss")
REGRESSION = ("rmse", "mae", "r2")


def metrics_of(task: str) -> tuple[str, ...]:
    return CLASSIFICATION if task == "classification" else REGRESSION


def score(metric: str, truth: Any, predicted: Any, probabilities: Any, classes: Any) -> float:
    """The metric's value; NaN if undefined, such as ``roc_auc`` without one of the classes.

    Args:
        probabilities: (rows, classes), in the order of ``classes``; ``None`` for a regression.
    """
    simple: dict[str, Callable[[], float]] = {
        "accuracy": lambda: metrics.accuracy_score(truth, predicted),
        # Over the classes in ``truth``: a class that is only predicted has no recall.
        "balanced_accuracy": lambda: metrics.recall_score(
            truth, predicted, labels=np.unique(truth), average="macro", zero_division=_NONE
        ),
        "f1_macro": lambda: metrics.f1_score(truth, predicted, average="macro", zero_division=_NONE),
        "log_loss": lambda: metrics.log_loss(truth, probabilities, labels=list(classes)),
        "roc_auc": lambda: _roc_auc(truth, probabilities, classes),
        "rmse": lambda: metrics.root_mean_squared_error(truth, predicted),
        "mae": lambda: metrics.mean_absolute_error(truth, predicted),
        "r2": lambda: metrics.r2_score(truth, predicted) if len(truth) > 1 else float("nan"),
    }
    return float(simple[metric]())


def interval(
    metric: str, truth: Any, predicted: Any, probabilities: Any, classes: Any, seed: int, rounds: int = 500
) -> tuple[float, float]:
    """The 95 % confidence interval: Wilson's score interval for the accuracy, else a percentile bootstrap.

    NaN if all bootstrap samples have the same score, e.g. a perfect one, or none is defined. Wilson's interval has a
    width even then.
    """
    if metric == "accuracy":
        right = int(np.sum(np.asarray(truth) == np.asarray(predicted)))
        found_range = binomtest(right, len(truth)).proportion_ci(0.95, method="wilson")
        return float(found_range.low), float(found_range.high)
    chance = np.random.default_rng(seed)
    found = []
    for _ in range(rounds):
        drawn = chance.integers(0, len(truth), len(truth))
        value = score(
            metric, truth[drawn], predicted[drawn], None if probabilities is None else probabilities[drawn], classes
        )
        if np.isfinite(value):
            found.append(value)
    if not found:
        return math.nan, math.nan
    low, high = np.percentile(found, [2.5, 97.5])
    if math.isclose(low, high, rel_tol=1e-9, abs_tol=1e-12):
        return math.nan, math.nan
    return float(low), float(high)


def _roc_auc(truth: Any, probabilities: Any, classes: Any) -> float:
    present = set(np.unique(truth).tolist())
    if len(present) < len(classes):
        return float("nan")
    if len(classes) == 2:
        return float(metrics.roc_auc_score(truth == classes[1], probabilities[:, 1]))
    return float(metrics.roc_auc_score(truth, probabilities, multi_class="ovr", average="macro", labels=list(classes)))
