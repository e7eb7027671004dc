"""JSON encoding of column values and request digests; values that JSON or the database cannot store are refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import orjson
from sqlalchemy.exc import DontWrapMixin

from core.domain.errors import InvalidRequest

# orjson writes 254 levels at most.
_DEPTH: Final = 250
_SHOWN: Final = 6  # parts of a path in a sentence


class UnstorableValue(InvalidRequest, DontWrapMixin):
    """A value that the database cannot store; ``field`` is its path. SQLAlchemy passes this error on unchanged."""


def dump_json(value: Any, *, sorts_keys: bool = False) -> bytes:
    """``value`` as JSON.

    Raises:
        UnstorableValue: it is nested too deep, or has an integer beyond 64 bits, as YAML can write it.
        TypeError: it holds a Python object that is no JSON, which is a bug of ours.
    """
    option = orjson.OPT_NON_STR_KEYS | (orjson.OPT_SORT_KEYS if sorts_keys else 0)
    try:
        return orjson.dumps(value, option=option)
    except TypeError as error:
        found = _fault(value)
        if found is None:
            raise
        path, sentence = found
        raise UnstorableValue(f"{path}: {sentence}.", field=path) from error


def _fault(value: Any) -> tuple[str, str] | None:
    """(where, what is wrong with it)."""
    waiting: list[tuple[Any, tuple[str, ...], int]] = [(value, (), 0)]
    while waiting:
        item, path, depth = waiting.pop()
        if isinstance(item, int) and not -(2**63) <= item < 2**64:
            return _path_text(
                path
            ), "a whole number beyond 64 bits cannot be kept; write it as text or with a decimal point"
        if depth > _DEPTH:
            return _path_text(path), f"is nested deeper than {_DEPTH} levels; flatten it"
        below: list[tuple[str, Any]] = []
        if isinstance(item, Mapping):
            below = [(str(name), part) for name, part in item.items()]
        elif isinstance(item, list | tuple):
            below = [(str(number), part) for number, part in enumerate(item)]
        # For a deep value, only the beginning of the path is reported.
        waiting.extend((part, (*path, name) if len(path) <= _SHOWN else path, depth + 1) for name, part in below)
    return None


def _path_text(path: tuple[str, ...]) -> str:
    words = ".".join(path[:_SHOWN])[:200] or "body"
    return f"{words}.…" if len(path) > _SHOWN else words
