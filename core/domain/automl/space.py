"""Model families, and the search space of each. ``trainmaster_automl`` implements them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

TABULAR: Final = "tabular"
IMAGES: Final = "images"
CLASSIFICATION: Final = "classification"
REGRESSION: Final = "regression"

# The first metric of each task is its default. Each has the opposite goal of its counterpart.
METRICS: Final[Mapping[str, Mapping[str, str]]] = {
    CLASSIFICATION: {
        "accuracy": "maximize",
        "balanced_accuracy": "maximize",
        "f1_macro": "maximize",
        "roc_auc": "maximize",
        "log_loss": "minimize",
    },
    REGRESSION: {"rmse": "minimize", "mae": "minimize", "r2": "maximize"},
}
FAMILY: Final = "family"


@dataclass(frozen=True, slots=True)
class Family:
    """``parameters``: as in a study spec; ``first``: the initial point, known to be good in general."""

    parameters: Mapping[str, Mapping[str, Any]]
    first: Mapping[str, Any]
    # Whether it supports class weights.
    is_balanced: bool = False


_TABULAR: Final[Mapping[str, Family]] = {
    # Predicts the most frequent class, or the mean: what every model must beat.
    "baseline": Family({}, {}),
    "linear": Family(
        {"linear_c": {"type": "float", "min": 1e-4, "max": 1e3, "scale": "log"}}, {"linear_c": 1.0}, is_balanced=True
    ),
    "boosting": Family(
        {
            "boosting_rate": {"type": "float", "min": 0.01, "max": 0.3, "scale": "log"},
            "boosting_leaves": {"type": "integer", "min": 4, "max": 64, "scale": "log"},
            "boosting_l2": {"type": "float", "min": 1e-6, "max": 10, "scale": "log"},
            "boosting_leaf": {"type": "integer", "min": 2, "max": 60, "scale": "log"},
        },
        {"boosting_rate": 0.1, "boosting_leaves": 31, "boosting_l2": 1e-6, "boosting_leaf": 20},
        is_balanced=True,
    ),
    "forest": Family(
        {
            "forest_kind": {"type": "categorical", "values": ["random", "extra"]},
            "forest_features": {"type": "float", "min": 0.1, "max": 1.0},
            "forest_leaf": {"type": "integer", "min": 1, "max": 30, "scale": "log"},
        },
        {"forest_kind": "random", "forest_features": 0.5, "forest_leaf": 1},
        is_balanced=True,
    ),
    "neighbors": Family(
        {
            "neighbors_k": {"type": "integer", "min": 1, "max": 50, "scale": "log"},
            "neighbors_weights": {"type": "categorical", "values": ["uniform", "distance"]},
        },
        {"neighbors_k": 5, "neighbors_weights": "distance"},
    ),
}

_LEARNING: Final[Mapping[str, Mapping[str, Any]]] = {
    "lr": {"type": "float", "min": 1e-4, "max": 3e-2, "scale": "log"},
    "dropout": {"type": "float", "min": 0.0, "max": 0.5},
    "weight_decay": {"type": "float", "min": 1e-6, "max": 1e-1, "scale": "log"},
    "augment": {"type": "categorical", "values": [False, True]},
}
_LEARNT: Final[Mapping[str, Any]] = {"lr": 3e-3, "dropout": 0.1, "weight_decay": 1e-4, "augment": True}
_IMAGES: Final[Mapping[str, Family]] = {
    "baseline": Family({}, {}),
    "cnn": Family(
        {
            "width": {"type": "discrete", "values": [8, 16, 32, 64]},
            "blocks": {"type": "integer", "min": 2, "max": 4},
        },
        {"width": 16, "blocks": 3},
    ),
    # Only with the weights of a backbone.
    "transfer": Family({}, {}),
}
# Image families with these training parameters.
_LEARNERS: Final = ("cnn", "transfer")


def families_of(kind: str, *, has_weights: bool) -> tuple[str, ...]:
    """The default families, the baseline first."""
    if kind == TABULAR:
        return tuple(_TABULAR)
    return tuple(name for name in _IMAGES if name != "transfer" or has_weights)


def space_of(
    kind: str, families: Sequence[str], *, is_imbalanced: bool
) -> tuple[dict[str, dict[str, Any]], list[dict[str, Any]]]:
    """The study's parameters, and its initial points: one of each family.

    Args:
        families: at least one, all of ``families_of``.
        is_imbalanced: then class weights are a parameter, too.
    """
    known = _TABULAR if kind == TABULAR else _IMAGES
    parameters: dict[str, dict[str, Any]] = {FAMILY: {"type": "categorical", "values": list(families)}}
    first: list[dict[str, Any]] = []
    for name in families:
        for parameter, item in known[name].parameters.items():
            parameters[parameter] = {**item, "when": {FAMILY: [name]}}
        first.append({FAMILY: name, **known[name].first})
    shared = [name for name in families if name in _LEARNERS] if kind == IMAGES else []
    if shared:
        parameters |= {parameter: {**item, "when": {FAMILY: shared}} for parameter, item in _LEARNING.items()}
        first = [{**point, **(_LEARNT if point[FAMILY] in shared else {})} for point in first]
    balanced = [name for name in families if known[name].is_balanced] if is_imbalanced else []
    if balanced:
        parameters["balance"] = {"type": "categorical", "values": [False, True], "when": {FAMILY: balanced}}
        first = [{**point, **({"balance": True} if point[FAMILY] in balanced else {})} for point in first]
    return parameters, first
