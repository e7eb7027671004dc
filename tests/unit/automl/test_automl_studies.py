"""The study that AutoML makes of a request: every family tried first, and a trainer that knows what the study says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.model_selection import StratifiedShuffleSplit
from trainmaster.studies import Space, parse_study
from trainmaster_automl import families, image_folders, report, table_files

from api.automl import profiling
from core.domain.automl.space import IMAGES, METRICS, TABULAR, families_of, space_of
from core.domain.automl.study import AutoMLStudyRequest, options_of, study_of
from core.domain.automl.task import MISSING, is_written_number, left_of, profile_target


def order(**changes: Any) -> AutoMLStudyRequest:
    fields: dict[str, Any] = {
        "name": "automl-x",
        "project": "default",
        "model": "x",
        "kind": TABULAR,
        "task": "classification",
        "metric": "accuracy",
        "families": families_of(TABULAR, has_weights=False),
        "folder": "data/x",
        "file": "x.csv",
        "options": {"target": "y"},
        "is_imbalanced": True,
        "max_time_s": 600.0,
        "trials": 10,
        "parallel": 2,
        "seed": 1,
        "resources": {"cpu": 1},
        "image": None,
        "command": ("python", "-m", "trainmaster_automl"),
    }
    return AutoMLStudyRequest(**{**fields, **changes})


@pytest.mark.parametrize("is_imbalanced", [True, False])
@pytest.mark.parametrize(("kind", "has_weights"), [(TABULAR, False), (IMAGES, False), (IMAGES, True)])
def test_one_good_point_of_each_family_is_tried_first(kind: str, has_weights: bool, is_imbalanced: bool) -> None:
    names = families_of(kind, has_weights=has_weights)
    spec = parse_study(study_of(order(kind=kind, families=names, is_imbalanced=is_imbalanced)))
    assert [point["family"] for point in spec.initial] == list(names)
    assert names[0] == "baseline"
    space = Space.of(spec)
    assert [space.fault(point) for point in spec.initial] == [None] * len(names)
    assert spec.winner is not None
    assert (spec.winner.model, spec.winner.arguments) == ("x", ("--final",))


def test_of_few_families_only_their_parameters_are_searched() -> None:
    parameters, first = space_of(TABULAR, ["linear", "neighbors"], is_imbalanced=True)
    assert set(parameters) == {"family", "linear_c", "neighbors_k", "neighbors_weights", "balance"}
    assert parameters["balance"]["when"] == {"family": ["linear"]}
    assert "balance" not in first[1]


def test_the_trainers_options_are_read_back_from_the_study() -> None:
    spec = parse_study(
        study_of(order(weights="data/backbones", weights_file="net.pt", kind=IMAGES, families=["transfer"]))
    )
    given = options_of(spec.model_dump(mode="json"))
    assert given is not None
    assert (given["kind"], given["metric"], given["weights"]) == (IMAGES, "accuracy", "/data/weights/net.pt")
    assert spec.template is not None
    assert (spec.template.mounts[0].volume, spec.template.mounts[0].path) == ("data", "backbones")
    assert options_of({"template": {"env": {"AUTOML_OPTIONS": "{}"}}}) is None


@pytest.mark.parametrize(("trials", "beside"), [(10, 4), (3, 3)])
def test_a_trial_gets_the_number_of_concurrent_trials(trials: int, beside: int) -> None:
    spec = parse_study(study_of(order(trials=trials, parallel=4)))
    given = options_of(spec.model_dump(mode="json"))
    assert given is not None
    assert given["parallel"] == beside


def test_the_control_plane_and_the_trainer_speak_of_the_same() -> None:
    assert set(families._FAMILIES) == set(families_of(TABULAR, has_weights=False))
    assert tuple(METRICS["classification"]) == report.CLASSIFICATION
    assert tuple(METRICS["regression"]) == report.REGRESSION
    assert table_files.MISSING == MISSING
    assert (table_files.CSV_SUFFIXES, table_files.PARQUET_SUFFIXES, image_folders.IMAGE_SUFFIXES) == (
        profiling.CSV_SUFFIXES,
        profiling.PARQUET_SUFFIXES,
        profiling.IMAGE_SUFFIXES,
    )


@pytest.mark.parametrize(
    ("cells", "task", "metric"),
    [
        (["yes", "no"] * 20, "classification", "accuracy"),
        (["0", "1"] * 20, "classification", "accuracy"),
        (["0"] * 90 + ["1"] * 10, "classification", "balanced_accuracy"),
        ([str(index % 5) for index in range(100)], "classification", "accuracy"),
        ([str(index % 5) for index in range(20)], "regression", "rmse"),
        ([f"{index}.5" for index in range(40)], "regression", "rmse"),
        (["1.5", "2.5", "3.5"] * 50, "regression", "rmse"),
        ([str(index) for index in range(100)] + ["", "NA", "?"], "regression", "rmse"),
    ],
)
def test_the_task_follows_from_the_targets_values(cells: list[str], task: str, metric: str) -> None:
    found = profile_target(cells)
    assert (found.task, found.metric) == (task, metric)


def test_a_given_task_is_not_overridden() -> None:
    assert profile_target(["1", "2"] * 30, "regression").metric == "rmse"


@pytest.mark.parametrize("fraction", [0.1, 0.2, 0.35, 0.5])
@pytest.mark.parametrize("counts", [(50, 50, 3), (10, 4, 3, 3), (17, 3), (30, 30, 30, 7, 3)])
def test_the_rows_of_each_class_that_a_test_leaves_are_those_of_the_trials(
    counts: tuple[int, ...], fraction: float
) -> None:
    target = np.repeat(np.arange(len(counts)), counts)
    size = max(1, round(fraction * len(target)), len(counts))
    given = left_of(counts, fraction)
    for seed in range(3):
        trials, _ = next(StratifiedShuffleSplit(1, test_size=size, random_state=seed).split(target, target))
        left = np.bincount(target[trials], minlength=len(counts))
        assert all(
            most - 1 <= rows <= most for rows, most in zip(left, given, strict=True)
        )  # of equal parts chance decides


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("1,234", True),
        ("1.234,50", True),
        ("12 345", True),
        ("3,14", True),
        ("$5", True),
        ("7 %", True),
        ("-1,234.5", True),
        ("1234", False),
        ("12.5", False),
        ("00123", False),
        ("31.12.2024", False),
        ("1,2,3", False),
        ("a1,234", False),
        ("", False),
    ],
)
def test_numbers_as_people_write_them_are_known(text: str, *, written: bool) -> None:
    assert is_written_number(text) is written


def test_quantities_with_marks_are_no_classes() -> None:
    assert profile_target([f"{n},000" for n in range(1, 50)]).written == "1,000"
    assert profile_target(["1,000", "2,000"] * 20).written == ""
    assert profile_target([str(n) for n in range(50)]).written == ""
