"""Results of a trial: metrics as lines of its log, from which the platform reads them; of the final run also the test's
metrics, and a report next to the model.
"""

from __future__ import annotations

import json
import math
import os
from typing import Any, Mapping

import numpy as np

from trainmaster_automl.options import TrialOptions
from trainmaster_automl.scoring import interval, metrics_of, score

MODEL_FOLDER = "model"
_REPORT = "automl.json"


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
    values = {name: score(name, truth, predicted, probabilities, classes) for name in metrics_of(options.task)}
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


def write_report(options: TrialOptions, found: Mapping[str, Any]) -> None:
    """Write ``model/automl.json``: options, data, versions and metrics of the model."""
    report = {
        "kind": options.kind,
        "task": options.task,
        "target": options.target or None,
        "metric": options.metric,
        "seed": options.seed,
        "parameters": options.parameters,
        "versions": _versions(),
        **found,
    }
    with open(os.path.join(options.output, MODEL_FOLDER, _REPORT), "w", encoding="utf-8") as stream:
        json.dump(report, stream, indent=2)


def _versions() -> dict[str, str]:
    from importlib import metadata

    found = {}
    for name in ("scikit-learn", "numpy", "torch", "skops"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
