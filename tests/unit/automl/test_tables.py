"""Trials on tables: what is read, what is refused in words, that nobody sees the test, and that what is saved takes
raw rows.
"""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from trainmaster_automl import rows as of_trials
from trainmaster_automl import tabular
from trainmaster_automl.options import VARIABLE, DataProblem, TrialOptions, parse_options
from trainmaster_automl.report import interval, score
from trainmaster_automl.rows import (
    CATEGORY,
    DATE,
    DROPPED,
    MANY,
    NOTHING,
    NUMBER,
    RowReader,
    date_of,
    kind_of,
    number_of,
    text_of,
)
from trainmaster_automl.table_files import read_table
from trainmaster_serving.errors import BadInstances
from trainmaster_serving.models import load_model
from trainmaster_serving.sklearn_model import SklearnModel

from core.domain.automl import columns
from core.domain.automl.columns import CounterColumns
from core.domain.automl.task import profile_target

Row = list[Any]


def write(folder: Path, rows: list[Row], header: Row, name: str = "table.csv", delimiter: str = ",") -> Path:
    text = "\n".join(delimiter.join(str(cell) for cell in row) for row in [header, *rows]) + "\n"
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    return folder


def people(count: int = 120) -> list[Row]:
    generator = np.random.default_rng(7)
    rows = []
    for index in range(count):
        city = ["Paris", "Rome", ""][index % 3]
        age = int(generator.integers(18, 80))
        bought = "yes" if (city == "Paris") != (age > 60) else "no"
        rows.append([f"user {index}", city, "NA" if index % 11 == 0 else age, f"2024-0{1 + index % 9}-12", "x", bought])
    return rows


HEADER: Row = ["name", "city", "age", "day", "same", "bought"]


def options(folder: Path, **changes: Any) -> TrialOptions:
    given = {
        "kind": "tabular",
        "task": "classification",
        "metric": "accuracy",
        "target": "bought",
        "seed": 3,
        **changes,
    }
    return TrialOptions(data=str(folder), output=str(folder.parent / "output"), **given)


def test_cells_of_nothing_are_none_and_delimiters_are_found(tmp_path: Path) -> None:
    write(tmp_path, [["1", "NA", "?"], ["", "b c", "nan"]], ["x", "y", "z"], delimiter=";")
    table = read_table(str(tmp_path), "table.csv", 100, 0)
    assert (table.names, table.rows, table.row_count) == (["x", "y", "z"], [["1", None, None], [None, "b c", None]], 2)


def test_a_folder_of_tables_is_one_packed_ones_too(tmp_path: Path) -> None:
    write(tmp_path, [[1, 2]], ["x", "y"], "a.csv")
    (tmp_path / "b.csv.gz").write_bytes(gzip.compress(b"x,y\n3,4\n"))
    assert read_table(str(tmp_path), "", 100, 0).rows == [["1", "2"], ["3", "4"]]


def test_of_more_rows_than_allowed_a_sample_is_drawn_the_same_each_time(tmp_path: Path) -> None:
    write(tmp_path, [[index, 0] for index in range(500)], ["x", "y"])
    once, again = (read_table(str(tmp_path), "", 50, 5) for _ in range(2))
    assert (len(once.rows), once.row_count, once.rows) == (50, 500, again.rows)
    indices = [int(row[0]) for row in once.rows]
    assert indices == sorted(set(indices))
    assert max(indices) > 250


@pytest.mark.parametrize("cell", ["NA", " n/a ", "?", "", None, "NaN"])
def test_a_missing_cell_is_the_same_in_requests_and_tables(cell: Any) -> None:
    assert text_of(cell) == NOTHING


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"x,y\n1,2\n1,2,3\n", "line 3: it has 3 cells, and the first line has 2"),
        (b"x,x\n1,2\n", "two columns are called x"),
        (b"x,\n1,2\n", "column 2 has no name"),
        (b"x\n1\n", "one column"),
        (b"x,y\n", "no rows"),
        (b"x,y\n\xff\xfe,2\n", "UTF-8"),
    ],
)
def test_a_table_that_is_none_is_refused_with_its_place(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "table.csv").write_bytes(content)
    with pytest.raises(DataProblem, match=words):
        read_table(str(tmp_path), "", 100, 0)


@pytest.mark.parametrize(
    ("cells", "kind"),
    [
        (["1", "2.5", "-3e4", None], NUMBER),
        (["1"] * 30 + ["2"] * 70 + ["oops"], NUMBER),
        (["00123", "00124", "00123"], CATEGORY),
        (["2024-01-02", "2024-03-04T10:00:00", None], DATE),
        (["31.12.2024", "01.02.2025"], DATE),
        (["red", "blue", "red"], CATEGORY),
        ([f"zip {index % 60}" for index in range(600)], MANY),
        ([f"user {index}" for index in range(100)], DROPPED),
        (["x", "x", None], DROPPED),
        ([None, None], DROPPED),
    ],
)
def test_columns_are_what_their_cells_say(cells: list[Any], kind: str) -> None:
    assert kind_of(cells)[0] == kind


@pytest.mark.parametrize(
    ("name", "cells", "expected"),
    [
        ("id", [7, 3, 9, 12], True),  # whatever its order
        ("user_id", ["7", "3", "9", "12"], True),
        ("PassengerId", ["1", "2", "3", "4"], True),
        ("Unnamed: 0", ["5", "1", "2", "3"], True),
        ("id", ["7", "3", "9", "7"], False),  # several rows of one person
        ("id", ["7", "3", "9.5", "2"], False),
        ("paid", ["70", "30", "90", "20"], False),
        ("x", ["0", "1", "2", "3"], True),
        ("x", ["1", "2", "3", "4"], True),
        ("x", ["2", "3", "4", "5"], False),
        ("year", ["1990", "1991", "1992", "1993"], False),
        ("x", ["0", "1", "2", "2"], False),
        ("x", ["3", "2", "1", "0"], False),
        ("x", ["0", "1", "2", ""], False),
    ],
)
def test_a_column_that_numbers_the_rows_is_known_to_the_trials_and_to_the_control_plane(
    name: str, cells: list[Any], expected: bool
) -> None:
    whole = CounterColumns([name])
    for cell in cells:
        whole.add([str(cell)])
    assert whole.names() == ((name,) if expected else ())
    assert of_trials.is_counter(name, [cell or None for cell in cells], range(len(cells))) == expected


def test_some_rows_of_a_column_that_counts_are_enough_to_know_it() -> None:
    assert of_trials.is_counter("x", ["3", "7", "8"], [2, 6, 7])
    assert not of_trials.is_counter("x", ["3", "7", "9"], [2, 6, 7])


def test_a_row_number_is_no_feature_unless_forced_and_requests_may_omit_it(tmp_path: Path) -> None:
    rows = [[1000 - index, *row] for index, row in enumerate(people())]
    data = tabular.load(options(write(tmp_path / "data", rows, ["user_id", *HEADER])))
    reader, notes = tabular.read_kinds(data)
    assert notes[0] == "Column user_id is left out: it numbers the rows, which does not generalise to new rows."
    assert list(reader.fit([]).feature_names_in_) == ["city", "age", "day"]
    whole = [5, "user 1", "Paris", "30", "2024-05-01", "x"]
    assert reader.transform([whole]).tolist() == reader.transform([whole[2:5]]).tolist()
    reader, notes = tabular.read_kinds(data, keep=["user_id", "name"])
    assert reader.kinds[:2] == [NUMBER, MANY]
    assert notes == ["Column same is left out: it is the same everywhere."]
    with pytest.raises(DataProblem, match=r"keep: There is no column 'user'\. Did you mean 'user_id'"):
        tabular.read_kinds(data, keep=["user"])


@pytest.mark.parametrize(
    ("task", "cells", "is_reported"),
    [
        ("classification", ["A", "B"], True),
        ("classification", ["A", ""], False),  # empty but for one value: no feature
        ("classification", ["A", "A"], False),
        ("classification", ["A", "B", "C", "B"], False),  # several for a class, as an honest feature may have
        ("regression", ["1.0", "2.0"], True),
        ("regression", ["2", "4"], False),
    ],
)
def test_a_column_that_mirrors_the_target_is_reported_as_a_leak(
    tmp_path: Path, task: str, cells: list[str], is_reported: bool
) -> None:
    rows = [[index * 7 % 11, cells[index % len(cells)], 1 + index % 2] for index in range(40)]
    folder = write(tmp_path / "data", rows, ["x", "copy", "bought"])
    metric = "accuracy" if task == "classification" else "rmse"
    _, notes = tabular.read_kinds(tabular.load(options(folder, task=task, metric=metric)))
    given = [note for note in notes if "leaked the target" in note]
    assert [note.split(" looks")[0] for note in given] == (["Column copy"] if is_reported else [])


def test_a_leak_is_an_event_that_the_leaderboard_recognises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = tmp_path / "report.jsonl"
    monkeypatch.setenv("TRAINMASTER_REPORT_FILE", str(report))
    rows = [[index * 7 % 11, "AB"[index % 2], 1 + index % 2] for index in range(40)]
    folder = write(tmp_path / "data", rows, ["x", "copy", "bought"])
    tabular.run(options(folder, parameters={"family": "baseline"}))
    (given,) = map(json.loads, report.read_text().splitlines())
    assert given == {"kind": "event", "reason": columns.LEAK.format(name="copy")}
    assert columns.LEAKED == tabular.LEAKED


@pytest.mark.parametrize("cell", [10**400, "1e999", math.inf, "0045", True, None, []])
def test_what_is_no_number_of_a_float_is_missing(cell: Any) -> None:
    assert math.isnan(number_of(cell))


def test_a_date_before_all_dates_is_missing() -> None:
    assert date_of("0001-01-01T00:00:00+01:00", "iso") is None
    assert date_of("0001-01-01T00:00:00", "iso") is not None


def test_a_number_that_is_too_great_for_the_model_is_the_callers_fault() -> None:
    class Strict:
        def predict(self, rows: Any) -> Any:
            return [float(row[0]) for row in rows]

        takes_rows = True

    with pytest.raises(BadInstances, match="the model rejects them"):
        SklearnModel(Strict()).predict([[10**400]], {})


def test_balanced_accuracy_is_of_the_classes_that_are_there() -> None:
    truth, predicted = np.asarray(["a", "a", "b", "b"]), np.asarray(["a", "a", "b", "c"])
    assert score("balanced_accuracy", truth, predicted, None, ["a", "b", "c"]) == 0.75


@pytest.mark.parametrize(("right", "low", "high"), [(24, 0.8620, 1.0), (0, 0.0, 0.1380), (12, 0.3143, 0.6857)])
def test_a_share_of_right_rows_has_an_interval_that_never_collapses(right: int, low: float, high: float) -> None:
    truth = np.asarray(["yes"] * 24)
    predicted = np.asarray(["yes"] * right + ["no"] * (24 - right))
    # Wilson (1927): (p + z²/2n ± z sqrt(p(1 - p)/n + z²/4n²)) / (1 + z²/n)
    assert interval("accuracy", truth, predicted, None, ["no", "yes"], 0) == pytest.approx((low, high), abs=1e-4)


@pytest.mark.parametrize("metric", ["balanced_accuracy", "f1_macro", "roc_auc"])
def test_a_bootstrap_that_collapses_gives_no_interval(metric: str) -> None:
    truth = np.asarray(["no", "yes"] * 12)
    probabilities = np.asarray([[0.9, 0.1], [0.2, 0.8]] * 12)
    assert np.isnan(interval(metric, truth, truth, probabilities, ["no", "yes"], 0)).all()
    wrong = np.arange(24) < 3
    predicted, probabilities = (
        np.where(wrong, truth[::-1], truth),
        np.where(wrong[:, None], probabilities[:, ::-1], probabilities),
    )
    low, high = interval(metric, truth, predicted, probabilities, ["no", "yes"], 0)
    assert low < high


def test_the_reason_for_a_missing_interval_is_logged(tmp_path: Path, capsys: Any) -> None:
    rows = [[index, 2 * index] for index in range(60)]
    folder = write(tmp_path / "data", [[x, "yes" if y > 60 else "no"] for x, y in rows], ["x", "bought"])
    given = options(folder, metric="f1_macro", is_final=True, keep=["x"], parameters={"family": "forest"})
    tabular.run(given)
    printed = capsys.readouterr().out
    report = json.loads((tmp_path / "output" / "model" / "automl.json").read_text())["test"]
    assert report["test_f1_macro"] == 1
    assert "There is no 95 % interval for f1_macro" in printed
    assert "test_f1_macro_low" not in report


def test_a_damaged_packed_table_is_refused(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(b"x,y\n" + b"".join(b"%d,%d\n" % (n, n * n) for n in range(200))))
    packed[20:40] = b"\xff" * 20
    (tmp_path / "table.csv.gz").write_bytes(packed)
    with pytest.raises(DataProblem, match=r"table\.csv\.gz is not a gzip file, or a damaged one"):
        read_table(str(tmp_path), "", 100, 0)


def test_a_row_reads_the_same_as_texts_of_csv_and_as_json(tmp_path: Path) -> None:
    reader = RowReader(["n", "c", "d"], [NUMBER, CATEGORY, DATE], ["", "", "iso"]).fit([])
    made = reader.transform([["39", "3", "2024-02-29"], [39, 3.0, "2024-02-29"], [None, None, "soon"]])
    assert made[0].tolist() == made[1].tolist()
    assert made[0].tolist()[:6] == [39.0, 2024.0, 2.0, 29.0, 3.0, 0.0]
    assert math.isnan(made[2][0])
    assert made[2][-1] == "(nothing)"


def test_the_rows_of_the_test_are_the_same_for_every_trial_and_no_trial_reads_them(tmp_path: Path) -> None:
    folder = write(tmp_path / "data", people(), HEADER)
    first, second = (tabular.load(options(folder, metric=metric)) for metric in ("accuracy", "log_loss"))
    assert first.test.tolist() == second.test.tolist()
    assert len(first.test) == 24
    assert not set(first.test) & set(first.trials)
    counts = [np.unique(first.target[part], return_counts=True)[1] / len(part) for part in (first.trials, first.test)]
    assert np.abs(counts[0] - counts[1]).max() < 0.05  # stratified
    # What is in the rows of the test changes nothing of a trial.
    spoilt = first.rows.copy()
    spoilt[first.test] = "spoilt"
    given = [tabular.read_kinds(entry) for entry in (first, tabular.TabularData(**{**vars(first), "rows": spoilt}))]
    assert given[0][0].kinds == given[1][0].kinds


@pytest.mark.parametrize("family", ["baseline", "linear", "neighbors", "forest", "boosting"])
def test_a_trial_tells_the_mean_over_its_folds(tmp_path: Path, capsys: Any, family: str) -> None:
    folder = write(tmp_path / "data", people(), HEADER)
    tabular.run(options(folder, parameters={"family": family, "balance": True}, folds=2))
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("accuracy=")]
    assert [line.rsplit(" ", 1)[1] for line in lines] == ["step=1", "step=2"]
    assert 0 <= float(lines[-1].split(" ")[0].removeprefix("accuracy=")) <= 1


def test_a_trial_whose_time_is_over_tells_the_mean_of_the_folds_that_it_did(tmp_path: Path, capsys: Any) -> None:
    folder = write(tmp_path / "data", people(), HEADER)
    tabular.run(options(folder, parameters={"family": "baseline"}, folds=4, seconds=1e-3))
    printed = capsys.readouterr().out
    assert "The time limit ends validation after 1 folds; their mean is used." in printed
    assert [line.rsplit(" ", 1)[1] for line in printed.splitlines() if line.startswith("accuracy=")] == ["step=1"]
    tabular.run(options(folder, parameters={"family": "baseline"}, folds=4, seconds=1e6))
    assert "step=4" in capsys.readouterr().out


@pytest.mark.parametrize("family", ["baseline", "linear", "neighbors", "forest", "boosting"])
def test_the_final_run_tests_saves_and_what_it_saves_is_served_without_trusting_code(
    tmp_path: Path, capsys: Any, family: str
) -> None:
    folder = write(tmp_path / "data", people(), HEADER)
    tabular.run(options(folder, is_final=True, parameters={"family": family}))
    printed = capsys.readouterr().out
    assert "Tested on 24 rows that no trial has used." in printed
    report = json.loads((tmp_path / "output" / "model" / "automl.json").read_text())
    assert report["rows"] == {"trials": 96, "test": 24, "in_all": 120}
    assert report["test"]["test_rows"] == 24
    assert (
        report["test"]["test_accuracy_low"] <= report["test"]["test_accuracy"] <= report["test"]["test_accuracy_high"]
    )
    model = load_model(str(tmp_path / "output" / "model"))
    row = {"name": "user 1", "city": "Paris", "age": 30, "day": "2024-05-01", "same": "x", "unknown": 1}
    whole = ["user 1", "Paris", "30", "2024-05-01", "x"]
    (named,) = model.predict([row], {})
    assert named in ("yes", "no")
    assert model.predict([whole], {}) == [named]
    (without,) = model.predict([{**row, "age": None, "city": "Atlantis", "day": "soon"}], {"method": "predict_proba"})
    assert sum(without) == pytest.approx(1)


def test_boosting_learns_with_a_class_of_one_row_in_a_fold(tmp_path: Path, capsys: Any) -> None:
    rows = [[index * index % 97, "rare" if index < 3 else "common"] for index in range(1300)]
    tabular.run(options(write(tmp_path / "data", rows, ["x", "bought"]), parameters={"family": "boosting"}))
    assert "step=2" in capsys.readouterr().out


def test_a_quantity_is_learnt_too(tmp_path: Path, capsys: Any) -> None:
    rows = [[2 * index, index % 7, 6 * index + index % 7] for index in range(60)]
    folder = write(tmp_path / "data", rows, ["x", "y", "z"])
    given = options(
        folder, target="z", task="regression", metric="rmse", parameters={"family": "linear", "linear_c": 100.0}
    )
    tabular.run(given)
    last = [line for line in capsys.readouterr().out.splitlines() if line.startswith("rmse=")][-1]
    assert float(last.split(" ")[0].removeprefix("rmse=")) < 1


def test_a_few_rows_whose_quantity_is_a_word_are_left_out(tmp_path: Path) -> None:
    rows: list[Row] = [[index, 3 * index] for index in range(1, 100)]
    given = {"target": "z", "task": "regression", "metric": "rmse"}
    data = tabular.load(options(write(tmp_path / "few", [*rows, [1, "sold"]], ["x", "z"]), **given))
    assert len(data.target) == 99
    assert data.notes == ["1 rows have no number as z, such as 'sold', and are left out."]
    with pytest.raises(DataProblem, match="3 rows have another value, such as 'sold'"):
        tabular.load(options(write(tmp_path / "many", [*rows, *([[1, "sold"]] * 3)], ["x", "z"]), **given))


@pytest.mark.parametrize(
    "cell", ["0045", "1", "-1.5e3", "1e999", "0.", ".5", "00.5", "1_000", "inf", "7" * 31, "7" * 32]
)
def test_the_control_plane_and_the_trials_take_the_same_for_a_number(cell: str) -> None:
    target = profile_target([cell], "regression")
    assert target.strays == int(math.isnan(number_of(cell)))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"target": "bougth"}, "Did you mean 'bought'"),
        ({"target": "same"}, "nothing to learn"),
        ({"target": "name"}, "too many for classes"),
        ({"task": "regression"}, "Use task classification"),
        ({"parameters": {"family": "forrest"}}, "no family 'forrest'"),
    ],
)
def test_what_nothing_can_be_learnt_from_is_refused(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    folder = write(tmp_path / "data", people(), HEADER)
    with pytest.raises(DataProblem, match=words):
        tabular.run(options(folder, **change))


def test_too_few_rows_and_too_rare_classes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataProblem, match="Only 10 rows have a bought; at least 20"):
        tabular.run(options(write(tmp_path / "few", people(10), HEADER)))
    rare = [[*row[:-1], "maybe"] if index == 0 else row for index, row in enumerate(people())]
    with pytest.raises(DataProblem, match=r"these have fewer: maybe \(1\)"):
        tabular.run(options(write(tmp_path / "rare", rare, HEADER)))


def test_too_few_rows_of_a_class_with_a_large_test_part_are_refused(tmp_path: Path) -> None:
    folder = write(tmp_path / "data", [[index * index, index % 7] for index in range(21)], ["x", "bought"])
    with pytest.raises(DataProblem, match=r"With 0\.5 of the rows reserved .* --test-fraction .* more rows\."):
        tabular.load(options(folder, test_fraction=0.5))
    assert len(tabular.load(options(folder, test_fraction=0.2)).test) == 7


def test_a_trials_options_come_from_a_variable_and_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(
        VARIABLE, json.dumps({"kind": "tabular", "task": "classification", "metric": "accuracy", "data": "v/x"})
    )
    found = parse_options(["--family=forest", "--forest_leaf=3", "--balance=true", "--final"])
    assert found.parameters == {"family": "forest", "forest_leaf": 3, "balance": True}
    assert (found.is_final, found.data) == (True, "/data/data")
    monkeypatch.delenv(VARIABLE)
    with pytest.raises(DataProblem, match="trainmaster automl"):
        parse_options([])
