"""Families of models for tables: for each a pipeline from raw rows to predictions, built from a trial's parameters."""

from __future__ import annotations

from typing import Any, Callable, Mapping

import numpy as np
from sklearn.compose import ColumnTransformer
from sklearn.dummy import DummyClassifier, DummyRegressor
from sklearn.ensemble import (
    ExtraTreesClassifier,
    ExtraTreesRegressor,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler, TargetEncoder

from trainmaster_automl.options import DataProblem
from trainmaster_automl.rows import FEW_CATEGORIES, RowReader

_TREES = 200
# With fewer rows, boosting cannot hold out a part for its own early stopping.
_ENOUGH_ROWS = 500


def make_model(reader: RowReader, task: str, parameters: Mapping[str, Any], target: Any, seed: int) -> Pipeline:
    """An unfitted pipeline. ``target``: of the rows for fitting. Raises ``DataProblem`` for an unknown family."""
    family = str(parameters.get("family", ""))
    make = _FAMILIES.get(family)
    if make is None:
        raise DataProblem("There is no family %r; there are %s." % (family, ", ".join(_FAMILIES)))
    is_classes = task == "classification"
    model = make(is_classes, parameters, len(target), seed)
    if family == "boosting" and is_classes and not _can_hold_back(target):
        model.set_params(early_stopping=False, max_iter=100)
    return Pipeline(
        [
            ("rows", reader),
            ("columns", _columns(reader, is_boosting=family == "boosting", seed=seed)),
            ("model", model),
        ]
    )


def _can_hold_back(target: Any) -> bool:
    """Whether a tenth of the rows can be held out for boosting's early stopping: at least one row of each class in
    both.
    """
    counts = np.unique(target, return_counts=True)[1]
    return int(counts.min()) > 1 and len(counts) <= len(target) // 10


def _columns(reader: RowReader, *, is_boosting: bool, seed: int) -> ColumnTransformer:
    numbers, few, many = reader.blocks()
    target = TargetEncoder(random_state=seed)  # pyright: ignore[reportArgumentType] (its stubs know texts alone)
    parts: list[tuple[str, Any, slice]] = []
    if is_boosting:
        # Boosting accepts missing numbers, and categories as ordinal codes.
        codes = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=np.nan)
        steps = [("numbers", _floats(), numbers), ("few", codes, few), ("many", target, many)]
    else:
        scaled = make_pipeline(SimpleImputer(strategy="median", add_indicator=True), StandardScaler())
        indicators = OneHotEncoder(
            handle_unknown="infrequent_if_exist", max_categories=FEW_CATEGORIES, sparse_output=False
        )
        steps = [("numbers", scaled, numbers), ("few", indicators, few), ("many", target, many)]
    parts = [(name, step, block) for name, step, block in steps if block.stop > block.start]
    return ColumnTransformer(parts, sparse_threshold=0.0)


def _floats() -> Any:
    # Converts objects to floats and keeps NaN; boosting is invariant to the scale.
    return StandardScaler(with_mean=False, with_std=False)


def _balance(parameters: Mapping[str, Any], *, is_classes: bool) -> dict[str, Any]:
    return {"class_weight": "balanced" if parameters.get("balance") else None} if is_classes else {}


def _baseline(is_classes: bool, _parameters: Mapping[str, Any], _rows: int, seed: int) -> Any:
    return DummyClassifier(strategy="prior", random_state=seed) if is_classes else DummyRegressor(strategy="mean")


def _linear(is_classes: bool, parameters: Mapping[str, Any], _rows: int, seed: int) -> Any:
    strength = float(parameters.get("linear_c", 1.0))
    if not is_classes:
        return Ridge(alpha=1.0 / strength, random_state=seed)
    return LogisticRegression(
        C=strength, max_iter=2000, random_state=seed, **_balance(parameters, is_classes=is_classes)
    )


def _neighbors(is_classes: bool, parameters: Mapping[str, Any], rows: int, _seed: int) -> Any:
    make = KNeighborsClassifier if is_classes else KNeighborsRegressor
    count = min(int(parameters.get("neighbors_k", 5)), max(1, rows // 2))
    # Not by ball or k-d trees: skops does not know their types, and the server would need trust_code.
    return make(n_neighbors=count, weights=str(parameters.get("neighbors_weights", "uniform")), algorithm="brute")


def _forest(is_classes: bool, parameters: Mapping[str, Any], _rows: int, seed: int) -> Any:
    is_extra = parameters.get("forest_kind") == "extra"
    makes = {
        (True, False): RandomForestClassifier,
        (True, True): ExtraTreesClassifier,
        (False, False): RandomForestRegressor,
        (False, True): ExtraTreesRegressor,
    }
    return makes[is_classes, is_extra](
        n_estimators=_TREES,
        max_features=float(parameters.get("forest_features", 0.5)),
        min_samples_leaf=int(parameters.get("forest_leaf", 1)),
        random_state=seed,
        **_balance(parameters, is_classes=is_classes),
    )


def _boosting(is_classes: bool, parameters: Mapping[str, Any], rows: int, seed: int) -> Any:
    make = HistGradientBoostingClassifier if is_classes else HistGradientBoostingRegressor
    is_enough = rows >= _ENOUGH_ROWS
    return make(
        learning_rate=float(parameters.get("boosting_rate", 0.1)),
        max_leaf_nodes=int(parameters.get("boosting_leaves", 31)),
        l2_regularization=float(parameters.get("boosting_l2", 0.0)),
        min_samples_leaf=int(parameters.get("boosting_leaf", 20)) if is_enough else max(2, min(20, rows // 20)),
        max_iter=300 if is_enough else 100,
        early_stopping=is_enough,  # pyright: ignore[reportArgumentType] (the same)
        random_state=seed,
        **_balance(parameters, is_classes=is_classes),
    )


_FAMILIES: dict[str, Callable[[bool, Mapping[str, Any], int, int], Any]] = {
    "baseline": _baseline,
    "linear": _linear,
    "neighbors": _neighbors,
    "forest": _forest,
    "boosting": _boosting,
}
