"""What a model is asked, as JSON: also from arrays and tables of NumPy, pandas and torch, none of which is imported."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trainmaster.errors import InvalidRequest


def body_of(instances: Any, parameters: Mapping[str, Any] | None) -> bytes:
    """The request's body. Raises ``InvalidRequest``: something in it is no JSON; the element is named."""
    body: dict[str, Any] = {"instances": _listed(instances)}
    if parameters is not None:
        body["parameters"] = dict(parameters)
    try:
        return json.dumps(body, default=_plain).encode()
    except (TypeError, ValueError, RecursionError) as error:
        found = _first_stranger(body)
        if found is None:
            raise InvalidRequest(f"instances cannot be written as JSON: {error}.", field="instances") from error
        place, one = found
        raise InvalidRequest(
            f"{place} is {_kind(one)}, which JSON does not have; give numbers, texts, lists and objects, or something with tolist().",
            field=place,
        ) from error


def _first_stranger(body: Mapping[str, Any]) -> tuple[str, Any] | None:
    try:
        return next((found for name, value in body.items() for found in _strangers(value, name)), None)
    except RecursionError:  # it holds itself
        return None


def _listed(instances: Any) -> list[Any]:
    if hasattr(instances, "to_dict") and hasattr(instances, "columns"):  # pandas: a table, each row an object
        found = instances.to_dict(orient="records")
    else:
        found = instances.tolist() if hasattr(instances, "tolist") else instances
    if isinstance(found, (str, bytes, Mapping)) or not hasattr(found, "__iter__"):
        raise InvalidRequest(
            f"instances is {_kind(instances)}; give a list of instances, a single one as [instance].", field="instances"
        )
    return list(found)


def _plain(value: Any) -> Any:
    """What ``json`` asks for what it does not know. Raises ``TypeError``."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray, memoryview)):
        return list(value)
    raise TypeError(type(value).__name__)


def _strangers(value: Any, place: str) -> Iterator[tuple[str, Any]]:
    """Elements that are no JSON, with where they stand, such as ``instances[2]['day']``."""
    if value is None or isinstance(value, (str, int, float)):
        return
    try:
        value = value if isinstance(value, (dict, list, tuple)) else _plain(value)
    except TypeError:
        yield place, value
        return
    if isinstance(value, dict):
        for key, one in value.items():
            if not isinstance(key, (str, int, float)) and key is not None:
                yield f"a key of {place}", key
            yield from _strangers(one, f"{place}[{key!r}]")
    elif isinstance(value, (list, tuple)):
        for number, one in enumerate(value):
            yield from _strangers(one, f"{place}[{number}]")


def _kind(value: Any) -> str:
    module = type(value).__module__
    name = type(value).__qualname__
    return name if module == "builtins" else f"{module}.{name}"
