"""A trial on a table: cross validation of one model; the final run fits it to all rows of the trials and tests it."""

from __future__ import annotations

import math
import os
import time
from dataclasses import dataclass
from typing import Any, Iterator, Sequence

import numpy as np
from sklearn.base import clone
from sklearn.model_selection import KFold, ShuffleSplit, StratifiedKFold, StratifiedShuffleSplit
from trainmaster_serving.sklearn_model import skops_io

from trainmaster_automl.families import make_model
from trainmaster_automl.options import DataProblem, TrialOptions
from trainmaster_automl.report import (
    MODEL_FOLDER,
    baseline_of,
    check_class_sizes,
    log_message,
    log_metrics,
    report_event,
    score,
    score_test,
    write_report,
)
from trainmaster_automl.rows import DROPPED, MANY, OWN_TEXTS, RowReader, is_counter, kind_of, number_of, text_of
from trainmaster_automl.table_files import no_such_column, read_table

LEAST_ROWS = 20
LEAST_OF_A_CLASS = 3
_MOST_CLASSES = 1_000
# From this number of rows a single held-out part is as informative as several folds.
_MANY_ROWS = 50_000
_MEDIUM_ROWS = 5_000
# Share of rows with a non-numeric target of a regression that are left out.
_STRAY = 0.02
# The API recognises such a note by these words.
LEAKED = "looks as if it leaked the target"


@dataclass(frozen=True)
class TabularData:
    """``rows``: (rows, columns) of objects, ``target``: of each. ``trials``, ``test``: indices into ``rows``.

    ``indices``: of the rows in the whole table, from 0.
    """

    names: list[str]
    rows: Any
    target: Any
    trials: Any
    test: Any
    row_count: int
    indices: Any
    notes: list[str]


def run(options: TrialOptions) -> None:
    """Raises ``DataProblem``."""
    data = load(options)
    reader, notes = read_kinds(data, options.keep)
    for message in [*data.notes, *notes]:
        log_message(message)
        if LEAKED in message:
            report_event(message)
    if options.is_final:
        _final_run(options, data, reader, [*data.notes, *notes])
    else:
        _validate(options, data, reader)


def load(options: TrialOptions) -> TabularData:
    """Read the table, check its target, and split its rows into those of the trials and those of the test."""
    table = read_table(options.data, options.file, options.max_rows, options.seed)
    names, rows, cells = table.split_target(options.target)
    notes = []
    if table.row_count > len(table.rows):
        notes.append("A sample of %d rows of the %d is used." % (len(table.rows), table.row_count))
    present = [index for index, cell in enumerate(cells) if text_of(cell) != "(nothing)"]
    if len(present) < len(cells):
        notes.append("%d rows have no %s and are left out." % (len(cells) - len(present), options.target))
    if options.task == "regression":
        present = _with_numbers(cells, present, options, notes)
    if len(present) < LEAST_ROWS:
        raise DataProblem(
            "Only %d rows have a %s; at least %d are needed." % (len(present), options.target, LEAST_ROWS)
        )
    is_classes = options.task == "classification"
    target = _classes(cells, present, options) if is_classes else _numbers(cells, present, options)
    made = np.empty((len(present), len(names)), dtype=object)
    for index, source in enumerate(present):
        made[index, :] = rows[source]
    halves = (StratifiedShuffleSplit if is_classes else ShuffleSplit)(
        n_splits=1, test_size=_test_rows(options, target, is_classes=is_classes), random_state=options.seed
    )
    trials, test = next(halves.split(made, target))
    if is_classes:
        classes, labels = np.unique(target, return_inverse=True)
        check_class_sizes(labels[trials], classes.tolist(), options.test_fraction, "rows")
    indices = np.asarray(table.indices)[present]
    return TabularData(names, made, target, np.sort(trials), np.sort(test), table.row_count, indices, notes)


def read_kinds(data: TabularData, keep: Sequence[str] = ()) -> tuple[RowReader, list[str]]:
    """The models' first step, determined from the trials' rows; and notes on the columns.

    Args:
        keep: columns to use even if they number the rows, or have nearly unique texts.

    Raises:
        DataProblem: no column is informative, or a column in ``keep`` does not exist.
    """
    for name in keep:
        if name not in data.names:
            raise DataProblem("keep: %s" % no_such_column(name, data.names))
    kinds = [_kind(data, index, is_forced=name in keep) for index, name in enumerate(data.names)]
    if all(kind == DROPPED for kind, _ in kinds):
        raise DataProblem(
            "No column except the target is informative: all are empty, constant, names, or row numbers; "
            "--keep COLUMN uses one of the latter two nevertheless."
        )
    notes = [
        "Column %s is left out: %s." % (name, why) for name, (kind, why) in zip(data.names, kinds) if kind == DROPPED
    ]
    notes += [
        "Column %s looks as if it leaked the target: its values correspond one to one to those of the target. If it is "
        "not known before the target, remove it from the table." % name
        for index, (name, (kind, _)) in enumerate(zip(data.names, kinds))
        if kind != DROPPED and _mirrors(data.rows[data.trials, index], data.target[data.trials])
    ]
    return RowReader(data.names, [kind for kind, _ in kinds], [why for _, why in kinds]), notes


def _mirrors(cells: Any, target: Any) -> bool:
    """Whether classes and the column's texts correspond one to one, or its numbers equal the target."""
    if target.dtype.kind == "f":
        return all(number_of(cell) == value for cell, value in zip(cells, target))
    pairs: dict[str, str] = {}
    for cell, value in zip(cells, target):
        if pairs.setdefault(text_of(cell), value) != value:
            return False
    return len(set(pairs.values())) == len(pairs)


def _kind(data: TabularData, index: int, *, is_forced: bool) -> tuple[str, str]:
    cells = data.rows[data.trials, index]
    kind, why = kind_of(cells)
    if is_forced:
        return (MANY, "") if why == OWN_TEXTS else (kind, why)
    if kind != DROPPED and is_counter(data.names[index], cells, data.indices[data.trials]):
        return DROPPED, "it numbers the rows, which does not generalise to new rows"
    return kind, why


def _classes(cells: list[Any], present: list[int], options: TrialOptions) -> Any:
    labels = np.asarray([text_of(cells[index]) for index in present])
    values, counts = np.unique(labels, return_counts=True)
    if len(values) < 2:
        raise DataProblem("The target %s is %s in every row; there is nothing to learn." % (options.target, values[0]))
    if len(values) > _MOST_CLASSES or len(values) > len(labels) / LEAST_OF_A_CLASS:
        raise DataProblem(
            "The target %s has %d different values in %d rows: too many for classes. If it is a quantity, use task "
            "regression." % (options.target, len(values), len(labels))
        )
    rare = ["%s (%d)" % (value, count) for value, count in zip(values, counts) if count < LEAST_OF_A_CLASS]
    if rare:
        raise DataProblem(
            "Each class of the target %s needs at least %d rows; these have fewer: %s. Leave them out or join them."
            % (options.target, LEAST_OF_A_CLASS, ", ".join(rare[:10]))
        )
    return labels


def _with_numbers(cells: list[Any], present: list[int], options: TrialOptions, notes: list[str]) -> list[int]:
    """Indices of rows with a numeric target; a few others are left out, with a note. Raises ``DataProblem`` for
    many.
    """
    invalid = [cells[index] for index in present if math.isnan(number_of(cells[index]))]
    if len(invalid) > _STRAY * len(present):
        raise DataProblem(
            "The target %s must be a number, but %d rows have another value, such as %r. Use task classification, or "
            "correct them." % (options.target, len(invalid), str(invalid[0])[:50])
        )
    if invalid:
        notes.append(
            "%d rows have no number as %s, such as %r, and are left out."
            % (len(invalid), options.target, str(invalid[0])[:50])
        )
    return [index for index in present if not math.isnan(number_of(cells[index]))]


def _numbers(cells: list[Any], present: list[int], options: TrialOptions) -> Any:
    values = np.asarray([number_of(cells[index]) for index in present])
    if np.ptp(values) == 0:
        raise DataProblem("The target %s is %g in every row; there is nothing to learn." % (options.target, values[0]))
    return values


def _test_rows(options: TrialOptions, target: Any, *, is_classes: bool) -> int:
    count = max(1, round(options.test_fraction * len(target)))
    # At least one row of each class in both parts.
    return max(count, len(np.unique(target))) if is_classes else count


def folds_of(options: TrialOptions, target: Any) -> Iterator[tuple[Any, Any]]:
    """Indices for fitting and for validation: several folds, or with many rows one held-out part."""
    is_classes = options.task == "classification"
    count = len(target)
    folds = options.folds or (1 if count >= _MANY_ROWS else 3 if count >= _MEDIUM_ROWS else 5)
    if is_classes:
        folds = min(folds, max(2, int(np.unique(target, return_counts=True)[1].min()))) if folds > 1 else 1
    if folds == 1:
        halves = (StratifiedShuffleSplit if is_classes else ShuffleSplit)(
            n_splits=1, test_size=0.2, random_state=options.seed
        )
        return iter(halves.split(target, target))
    kind = StratifiedKFold if is_classes else KFold
    return iter(kind(folds, shuffle=True, random_state=options.seed).split(target, target))


def _validate(options: TrialOptions, data: TabularData, reader: RowReader) -> None:
    """Cross validation. Logs the mean over the folds so far after each one, so that bad trials can be stopped early."""
    rows, target = data.rows[data.trials], data.target[data.trials]
    log_message("%d rows for the trials; %d more are reserved for the final test." % (len(rows), len(data.test)))
    classes = np.unique(target) if options.task == "classification" else None
    started = time.monotonic()
    scores: list[float] = []
    longest = 0.0
    for number, (fit, validation) in enumerate(folds_of(options, target), start=1):
        if options.is_out_of_time(longest) and scores:
            log_message("The time limit ends validation after %d folds; their mean is used." % len(scores))
            break
        fold_started = time.monotonic()
        fresh: Any = clone(reader)
        model = make_model(fresh, options.task, options.parameters, target[fit], options.seed)
        model.fit(rows[fit], target[fit])
        predicted, probabilities = predictions(model, rows[validation], classes)
        value = score(options.metric, target[validation], predicted, probabilities, classes)
        if not math.isfinite(value):
            raise DataProblem("%s is not defined on fold %d; choose another metric." % (options.metric, number))
        scores.append(value)
        spread = {options.metric + "_spread": float(np.std(scores))} if len(scores) > 1 else {}
        log_metrics({options.metric: float(np.mean(scores)), **spread, "seconds": time.monotonic() - started}, number)
        longest = max(longest, time.monotonic() - fold_started)


def predictions(model: Any, rows: Any, classes: Any) -> tuple[Any, Any]:
    """Predictions and, for a classification, probabilities in the order of ``classes``, also of classes not in a
    fold.
    """
    predicted = model.predict(rows)
    if classes is None:
        return predicted, None
    known = model.predict_proba(rows)
    probabilities = np.zeros((len(rows), len(classes)))
    probabilities[:, np.searchsorted(classes, model.classes_)] = known
    return predicted, probabilities


def _final_run(options: TrialOptions, data: TabularData, reader: RowReader, notes: list[str]) -> None:
    """Fit, test and save the model; the tested model is saved, without fitting it to the test rows."""
    classes = np.unique(data.target) if options.task == "classification" else None
    model = make_model(reader, options.task, options.parameters, data.target[data.trials], options.seed)
    model.fit(data.rows[data.trials], data.target[data.trials])
    predicted, probabilities = predictions(model, data.rows[data.test], classes)
    baseline = baseline_of(options.task, data.target[data.trials], len(data.test), classes)
    tested = score_test(options, data.target[data.test], predicted, probabilities, classes, baseline)
    folder = os.path.join(options.output, MODEL_FOLDER)
    os.makedirs(folder, exist_ok=True)
    skops_io().dump(model, os.path.join(folder, "model.skops"))
    columns = [{"name": n, "kind": k, "note": f} for n, k, f in zip(data.names, reader.kinds, reader.forms)]
    write_report(
        options,
        {
            "rows": {"trials": len(data.trials), "test": len(data.test), "in_all": data.row_count},
            "columns": columns,
            "classes": None if classes is None else classes.tolist(),
            "test": tested,
            "notes": notes,
        },
    )
