"""Distances of whole layers, aggregated from their tensors' figures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any


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
