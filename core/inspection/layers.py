"""Layers: a tensor's layer, and whether it is optimizer state, by its name; distances of whole layers."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

_OPTIMIZER_PARTS: Final = frozenset(
    {
        "optimizer",
        "_optimizer",
        "optimizers",
        "optim",
        "opt",
        "optimizer_state",
        "optimizer_states",
        "optimizer_state_dict",
        "optimizer_weights",
        "opt_state",
        "optim_state",
        ".optimizer_slot",
        "exp_avg",
        "exp_avg_sq",
        "max_exp_avg_sq",
        "exp_inf",
        "momentum_buffer",
        "square_avg",
        "grad_avg",
        "acc_delta",
        "beta1_power",
        "beta2_power",
    }
)
# Slots of TensorFlow 1, after the variable's name.
_SLOT: Final = re.compile(
    r"/(Adam|Adam_1|AdamW|Momentum|Adagrad|Adadelta|Adadelta_1|RMSProp|RMSProp_1|Ftrl|Ftrl_1|ExponentialMovingAverage)"
    r"(_\d+)?$"
)
_SPLIT: Final = re.compile(r"[./]")


def is_optimizer_name(name: str) -> bool:
    """Whether the name denotes optimizer state rather than a model weight."""
    lowered = name.lower()
    if "/_trainable_variables/" in lowered:  # Keras: the optimizer's list of the model's own
        return False
    if ".optimizer_slot/" in lowered or _SLOT.search(name):
        return True
    return not _OPTIMIZER_PARTS.isdisjoint(_SPLIT.split(lowered))


def layer_of(name: str) -> str:
    """The name without its last part: ``encoder.0.attention`` of ``encoder.0.attention.weight``."""
    separator = "/" if name.count("/") > name.count(".") else "."
    return name.rpartition(separator)[0]


def of_layers(items: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Per layer, from its weights' figures: ``layer``, ``relative_norm``, ``cosine``, ``count``."""
    layers: dict[str, list[float]] = {}
    for item in items:
        if item["is_optimizer"] or item.get("product") is None:
            continue
        sums = layers.setdefault(str(item["layer"]), [0.0, 0.0, 0.0, 0.0, 0])
        sums[0] += (item["norm_before"] or 0.0) ** 2
        sums[1] += (item["norm_after"] or 0.0) ** 2
        sums[2] += (item["norm_moved"] or 0.0) ** 2
        sums[3] += item["product"]
        sums[4] += 1
    return [
        {
            "layer": layer,
            "tensor_count": int(count),
            "relative_norm": 0.0 if not moved else ratio(math.sqrt(moved), math.sqrt(before)),
            "cosine": cosine(product, before, after),
        }
        for layer, (before, after, moved, product, count) in layers.items()
    ]


def ratio(value: float, by: float) -> float | None:
    """``None`` if undefined."""
    return value / by if by and math.isfinite(value / by) else None


def cosine(product: float, before: float, after: float) -> float | None:
    """The cosine from the dot product and the squared norms; ``None`` if one is zero."""
    length = math.sqrt(before) * math.sqrt(after)
    if not length or not math.isfinite(product / length):
        return None
    return max(-1.0, min(1.0, product / length))
