"""Conversion between JSON and arrays."""

from __future__ import annotations

import math
from typing import Any, Dict, List, Sequence

from trainmaster_serving.errors import BadInstances


def columns(instances: Sequence[Any]) -> Dict[str, List[Any]]:
    """Convert instances that are objects into one list for each name; all must have the same names."""
    names = list(instances[0])
    for index, item in enumerate(instances):
        if not isinstance(item, dict) or set(item) != set(names):
            raise BadInstances(
                "instances[%d]: all instances must be objects with the same names as the first (%s)"
                % (index, ", ".join(map(str, names)))
            )
    return {name: [item[name] for item in instances] for name in names}


def array(rows: Sequence[Any], label: str = "instances") -> Any:
    """A NumPy array of numbers or texts, the instances along its first axis."""
    import numpy as np

    try:
        made = np.asarray(rows)
    except ValueError as error:
        raise BadInstances("%s: they differ in shape: %s" % (label, error)) from error
    if made.dtype == object:
        raise BadInstances("%s: they hold something that is neither a number nor a text, or differ in shape" % label)
    return made


def plain(value: Any) -> Any:
    """``value`` as JSON types; non-finite numbers become null."""
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, dict):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return value


def by_instance(outputs: Any, count: int) -> List[Any]:
    """Split a model's outputs for ``count`` instances into one prediction each; several outputs become an object or
    list.
    """
    if isinstance(outputs, dict):
        parts = {name: by_instance(item, count) for name, item in outputs.items()}
        return [{str(name): part[index] for name, part in parts.items()} for index in range(count)]
    if isinstance(outputs, tuple):
        lists = [by_instance(item, count) for item in outputs]
        return [[item[index] for item in lists] for index in range(count)]
    values = plain(outputs)
    if not isinstance(values, list) or len(values) != count:
        raise BadInstances(
            "the model gave %s for %d instances; its first axis must be that of the instances"
            % ("%d predictions" % len(values) if isinstance(values, list) else "one value", count)
        )
    return values
