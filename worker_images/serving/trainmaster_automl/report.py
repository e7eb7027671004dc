"""Scores of a trial, and its report: metrics as lines of its log, from which the platform reads them.

The final run reports the test's metrics, too, and writes a report next to the model.
"""

from __future__ import annotations

import json
import math
import os
from typing import Any, Callable, Mapping, Sequence

import numpy as np
from scipy.stats import binomtest
from sklearn import metrics

from trainmaster_automl.options import DataProblem, TrialOptions

_NONE: Any = 0.0  # for a class without predictions; scikit-learn's stubs allow only texts

CLASSIFICATION = ("accuracy", "balanced_accuracy", "f1_macro", "roc_auc", "log_loss")
REGRESSION = ("rmse", "mae", "r2")
MODEL_FOLDER = "model"
_REPORT = "automl.json"
_LEAST_LEFT = 2  # one for training, one for validation


def _metrics_of(task: str) -> tuple[str, ...]:
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
    scores = []
    for _ in range(rounds):
        drawn = chance.integers(0, len(truth), len(truth))
        value = score(
            metric, truth[drawn], predicted[drawn], None if probabilities is None else probabilities[drawn], classes
        )
        if np.isfinite(value):
            scores.append(value)
    if not scores:
        return math.nan, math.nan
    low, high = np.percentile(scores, [2.5, 97.5])
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


def log_metrics(values: Mapping[str, float], step: int) -> None:
    """Print one line such as ``accuracy=0.93 step=2``; non-finite values are left out."""
    known = ["%s=%.9g" % (name, value) for name, value in values.items() if math.isfinite(value)]
    print(" ".join([*known, "step=%d" % step]), flush=True)


def log_message(sentence: str) -> None:
    """Print a message for people; it must not contain ``name=value`` pairs, which would be read as metrics."""
    print(sentence, flush=True)


def report_event(sentence: str) -> None:
    """Add an event to the history of the trial's job, from which the leaderboard takes notes on the data."""
    path = os.environ.get("TRAINMASTER_REPORT_FILE")
    if path:
        with open(path, "a", encoding="utf-8") as stream:
            stream.write(json.dumps({"kind": "event", "reason": sentence}) + "\n")


def baseline_of(task: str, learnt: Any, rows: int, classes: Any) -> tuple[Any, Any]:
    """The constant baseline for ``rows`` rows: the most frequent class and the classes' shares, or the mean, of
    ``learnt``.

    Returns:
        Predictions, (rows,), and probabilities, (rows, classes); ``None`` for a regression.
    """
    if task != "classification":
        return np.full(rows, float(np.mean(learnt))), None
    shares = np.array([np.mean(learnt == label) for label in classes])
    return np.repeat(np.asarray(classes)[shares.argmax()], rows), np.tile(shares, (rows, 1))


def score_test(
    options: TrialOptions, truth: Any, predicted: Any, probabilities: Any, classes: Any, baseline: tuple[Any, Any]
) -> dict[str, float]:
    """All metrics of the task on the test rows, the study's own with its 95 % confidence interval.

    Args:
        baseline: result of ``baseline_of`` for the same rows, to compare with the interval.
    """
    values = {name: score(name, truth, predicted, probabilities, classes) for name in _metrics_of(options.task)}
    low, high = interval(options.metric, truth, predicted, probabilities, classes, options.seed)
    log_message("Tested on %d rows that no trial has used." % len(truth))
    if not math.isfinite(low):
        log_message(
            "There is no 95 %% interval for %s: all bootstrap samples have the same score, or none, which does not "
            "make it certain." % options.metric
        )
    metrics = {"test_" + name: value for name, value in values.items()}
    prefix = "test_" + options.metric
    metrics |= {prefix + "_low": low, prefix + "_high": high, "test_rows": float(len(truth))}
    metrics[prefix + "_baseline"] = score(options.metric, truth, *baseline, classes)
    log_metrics(metrics, 1)
    return {name: value for name, value in metrics.items() if math.isfinite(value)}


def write_report(options: TrialOptions, results: Mapping[str, Any]) -> None:
    """Write ``model/automl.json``: options, data, versions and metrics of the model."""
    report = {
        "kind": options.kind,
        "task": options.task,
        "target": options.target or None,
        "metric": options.metric,
        "seed": options.seed,
        "parameters": options.parameters,
        "versions": _versions(),
        **results,
    }
    with open(os.path.join(options.output, MODEL_FOLDER, _REPORT), "w", encoding="utf-8") as stream:
        json.dump(report, stream, indent=2)


def _versions() -> dict[str, str]:
    from importlib import metadata

    versions = {}
    for name in ("scikit-learn", "numpy", "torch", "skops"):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def check_class_sizes(labels: Any, classes: Sequence[str], test_fraction: float, label: str) -> None:
    """Raises ``DataProblem``: without the test's part some class is too small for training and validation.

    Args:
        labels: of the trials' rows or images; indices into ``classes``.
        label: plural noun for the message: "rows" or "images".
    """
    left = np.bincount(labels, minlength=len(classes))
    rare = ["%s (%d)" % (name, count) for name, count in zip(classes, left) if count < _LEAST_LEFT]
    if rare:
        raise DataProblem(
            "With %g of the %s reserved for the test, too few are left of %s; each class needs %d more. Make "
            "--test-fraction (test_fraction) smaller, or give these classes more %s."
            % (test_fraction, label, ", ".join(rare[:10]), _LEAST_LEFT, label)
        )
