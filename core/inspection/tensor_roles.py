"""Classification by a tensor's name: optimizer state or weight, and its layer."""

from __future__ import annotations

import re
from typing import Final

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
    r"/(Adam|Adam_1|AdamW|Momentum|Adagrad|Adadelta|Adadelta_1|RMSProp|RMSProp_1|Ftrl|Ftrl_1|ExponentialMovingAverage)(_\d+)?$"
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
