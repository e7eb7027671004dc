"""What the tuners are measured on: scikit-learn's models on the data sets that come with it, each with a space to
search.

A task's cost is what three-fold cross-validation says, always with the same folds: less is better, and the same point
has the same cost. The spaces are as wide as a user's who knows nothing of the data: most of the points in them are
poor.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import numpy as np
from sklearn import datasets
from sklearn.ensemble import GradientBoostingRegressor, RandomForestClassifier
from sklearn.linear_model import SGDClassifier
from sklearn.metrics import log_loss
from sklearn.model_selection import KFold, StratifiedKFold
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, SVR
from sklearn.tree import DecisionTreeClassifier

FOLDS: Final = 3
_ROWS: Final = 400  # of larger data sets the first after shuffling: what is compared is who searches, not the models


@dataclass(frozen=True)
class Task:
    """``measure``: ``error`` (1 - accuracy), ``log loss``, or ``unexplained`` (1 - R squared)."""

    name: str
    data: str
    measure: str
    parameters: Mapping[str, Mapping[str, Any]]
    make: Callable[[Mapping[str, Any]], Any]

    def cost(self, point: Mapping[str, Any]) -> float | None:
        """``None``: the model cannot be fitted there, or its cost is no number."""
        found = []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of iterations that end before they converge: the search is to find better
            for fitted, answers, validation, right in _folds(self.data, is_classifier=self.measure != "unexplained"):
                try:
                    model = self.make(point).fit(fitted, answers)
                    found.append(_COSTS[self.measure](model, validation, right))
                except ValueError:
                    return None  # what it computes has left the numbers
        cost = float(np.mean(found))
        return cost if math.isfinite(cost) else None


_COSTS: Final[Mapping[str, Callable[[Any, Any, Any], float]]] = {
    "error": lambda model, validation, right: 1.0 - float(model.score(validation, right)),
    "unexplained": lambda model, validation, right: 1.0 - float(model.score(validation, right)),
    "log loss": lambda model, validation, right: float(log_loss(right, model.predict_proba(validation))),
}


@cache
def _folds(name: str, *, is_classifier: bool) -> list[tuple[Any, Any, Any, Any]]:
    """(features, targets) to fit and (features, targets) to ask, of each fold; scaled by what is fitted."""
    features, target = _data(name)
    folds = (StratifiedKFold if is_classifier else KFold)(FOLDS, shuffle=True, random_state=0)
    found = []
    for fitted, validation in folds.split(features, target):
        scaler = StandardScaler().fit(features[fitted])
        found.append(
            (
                scaler.transform(features[fitted]),
                target[fitted],
                scaler.transform(features[validation]),
                target[validation],
            )
        )
    return found


@cache
def _data(name: str) -> tuple[Any, Any]:
    loaded: Any = getattr(datasets, f"load_{name}")()
    order = np.random.default_rng(0).permutation(len(loaded.target))[:_ROWS]
    return loaded.data[order], loaded.target[order]


def _real(low: float, high: float, scale: str = "linear") -> dict[str, Any]:
    return {"type": "float", "min": low, "max": high, "scale": scale}


def _whole(low: int, high: int, scale: str = "linear") -> dict[str, Any]:
    return {"type": "integer", "min": low, "max": high, "scale": scale}


def _categorical(*values: Any) -> dict[str, Any]:
    return {"type": "categorical", "values": list(values)}


_TREE: Final = {
    "max_depth": _whole(1, 15),
    "min_samples_split": _real(0.01, 0.99),
    "min_samples_leaf": _real(0.01, 0.49),
    "min_weight_fraction_leaf": _real(0.01, 0.49),
    "max_features": _real(0.01, 0.99),
    "min_impurity_decrease": _real(0.0, 0.5),
}
_NET: Final = {
    "width": _whole(4, 128, "log"),
    "alpha": _real(1e-6, 10, "log"),
    "learning_rate_init": _real(1e-5, 0.3, "log"),
    "batch_size": _whole(8, 128, "log"),
}


def _net(model: Any, solver: str) -> Callable[[Mapping[str, Any]], Any]:
    def make(point: Mapping[str, Any]) -> Any:
        rest = {name: value for name, value in point.items() if name != "width"}
        return model(hidden_layer_sizes=(point["width"],), solver=solver, max_iter=15, random_state=0, **rest)

    return make


TASKS: Final = (
    Task(
        "support vectors, breast_cancer",
        "breast_cancer",
        "error",
        {"C": _real(1e-3, 1e3, "log"), "gamma": _real(1e-5, 10, "log"), "tol": _real(1e-5, 0.1, "log")},
        lambda point: SVC(**point),
    ),
    Task(
        "support vectors, diabetes",
        "diabetes",
        "unexplained",
        {"C": _real(1e-3, 1e4, "log"), "gamma": _real(1e-5, 10, "log"), "epsilon": _real(0.01, 100, "log")},
        lambda point: SVR(**point),
    ),
    Task("tree, wine", "wine", "log loss", _TREE, lambda point: DecisionTreeClassifier(random_state=0, **point)),
    Task(
        "forest, digits",
        "digits",
        "log loss",
        {
            **_TREE,
            "min_weight_fraction_leaf": _real(1e-4, 0.3, "log"),
            "min_impurity_decrease": _real(1e-5, 0.3, "log"),
        },
        lambda point: RandomForestClassifier(8, random_state=0, **point),
    ),
    Task(
        "boosting, diabetes",
        "diabetes",
        "unexplained",
        {
            "n_estimators": _whole(5, 40),
            "learning_rate": _real(1e-3, 1, "log"),
            "max_depth": _whole(1, 6),
            "subsample": _real(0.2, 1),
            "min_samples_leaf": _real(0.005, 0.3, "log"),
            "max_features": _real(0.1, 1),
        },
        lambda point: GradientBoostingRegressor(random_state=0, **point),
    ),
    Task(
        "linear by gradient, digits",
        "digits",
        "log loss",
        {
            "alpha": _real(1e-6, 1, "log"),
            "eta0": _real(1e-5, 10, "log"),
            "power_t": _real(0.05, 0.95),
            "penalty": _categorical("l1", "l2", "elasticnet"),
            "l1_ratio": _real(0, 1),
        },
        lambda point: SGDClassifier(
            "log_loss", learning_rate="invscaling", max_iter=5, tol=None, random_state=0, **point
        ),
    ),
    Task("net by gradient, iris", "iris", "log loss", {**_NET, "momentum": _real(0, 0.99)}, _net(MLPClassifier, "sgd")),
    Task(
        "net by adam, diabetes",
        "diabetes",
        "unexplained",
        {**_NET, "beta_1": _real(0.5, 0.99), "beta_2": _real(0.9, 0.9999)},
        _net(MLPRegressor, "adam"),
    ),
)
