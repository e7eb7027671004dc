"""Copies any Python value as plain data, and reports everything that a job spec cannot contain."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from trainmaster.spec.document import MAX_DEPTH, MAX_NODES, MAX_TEXT_BYTES
from trainmaster.spec.errors import Path, SpecMistake, join_path

# Enough for any amount, count or seed; Python refuses to print ints of more than 4300 digits.
_MAX_INT_BITS: Final = 256


@dataclass
class PlainCopy:
    """``value`` holds only dict, list, str, int, float, bool and ``None``; ``dropped``: paths of values left out."""

    value: Any = None
    mistakes: list[SpecMistake] = field(default_factory=list)
    dropped: list[Path] = field(default_factory=list)
    nodes: int = 0
    size: int = 0


class _Dropped:
    """Sentinel for a value that cannot be copied."""


_DROPPED: Final = _Dropped()


def plain_copy(raw: Any) -> PlainCopy:
    """``raw`` as plain data. Never raises: values that cannot be copied are reported in ``mistakes`` and left out.

    ``None`` inside a mapping is copied: each field decides whether it may be empty.
    """
    copy = PlainCopy()
    value = _copy(raw, (), copy, depth=0)
    copy.value = None if value is _DROPPED else value
    return copy


def _copy(raw: Any, path: Path, copy: PlainCopy, *, depth: int) -> Any:
    copy.nodes += 1
    if copy.nodes > MAX_NODES or copy.size > MAX_TEXT_BYTES:
        return _whole_is_too_large(copy)
    if depth > MAX_DEPTH:
        return _drop(copy, path, f"is nested deeper than {MAX_DEPTH} levels")
    match raw:
        case None | bool():
            return raw
        case str():
            copy.size += len(raw)
            wrong = _wrong_text(raw)
            return _drop(copy, path, wrong) if wrong else raw
        case int():
            if raw.bit_length() > _MAX_INT_BITS:
                return _drop(copy, path, "is too large a number", "quote it if it is meant as text")
            return raw
        case float():
            return raw if math.isfinite(raw) else _drop(copy, path, f"is {raw}, not a number", "write a finite number")
        case Mapping():
            return _copy_mapping(raw, path, copy, depth=depth)
        case list() | tuple():
            items = [_copy(item, (*path, i), copy, depth=depth + 1) for i, item in enumerate(raw)]
            # None in place of a dropped item: the indices of the others must not change, mistakes refer to them.
            return [None if item is _DROPPED else item for item in items]
    return _drop(
        copy, path, f"is a Python {type(raw).__name__}, which a spec cannot contain", "write text, a number or a list"
    )


def _copy_mapping(raw: Mapping[Any, Any], path: Path, copy: PlainCopy, *, depth: int) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, item in raw.items():
        if not isinstance(key, str):
            _drop(copy, (*path, "?"), f"the key is a Python {type(key).__name__}, not text", "quote it")
            continue
        copy.size += len(key)
        wrong = _wrong_text(key)
        if wrong:
            _drop(copy, (*path, "?"), f"the key {wrong}")
            continue
        value = _copy(item, (*path, str(key)), copy, depth=depth + 1)
        if value is not _DROPPED:
            result[str(key)] = value
    return result


def _wrong_text(text: str) -> str | None:
    if "\0" in text:
        return "contains a NUL character, which environment variables, arguments and paths cannot contain"
    if any("\ud800" <= character <= "\udfff" for character in text):
        return "contains half a character (a lone surrogate)"
    return None


def _drop(copy: PlainCopy, path: Path, message: str, hint: str | None = None) -> _Dropped:
    copy.dropped.append(path)
    if len(copy.mistakes) < 100:
        copy.mistakes.append(SpecMistake(join_path(path), message, hint))
    return _DROPPED


def _whole_is_too_large(copy: PlainCopy) -> _Dropped:
    message = f"larger than {MAX_NODES} values or 1 MiB of text"
    if not any(mistake.path == "" and mistake.message == message for mistake in copy.mistakes):
        copy.dropped.append(())
        copy.mistakes.append(SpecMistake("", message, "put data and code into files"))
    return _DROPPED
