"""JSON codec for snapshots and plans, lossless: ``from_json(Snapshot, to_json(s)) == s``.

The field types of the dataclasses determine the encoding, so a new field needs no change here. A field with its
default value is omitted, and an unknown key is ignored: rows of an older version stay readable. The keys are the
field names: a renamed field needs a mapping here, since the plan log stores them.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass, replace
from datetime import datetime
from enum import Enum
from functools import cache
from math import isfinite
from typing import Any, Final, TypeVar, Union, get_args, get_origin, get_type_hints

from scheduler.planning.model import Plan, Reason

_T = TypeVar("_T")
_Code = tuple[Callable[[Any], Any], Callable[[Any], Any]]  # to JSON, and back

# Values of undeclared type that JSON cannot express become an object with this single key.
_TAG: Final = "$"
_PLAIN: Final = frozenset({str, int, bool, type(None)})
_CODES: Final[dict[type[Any], _Code]] = {}  # encoder and decoder of each class, built once


def plan_to_json(plan: Plan) -> dict[str, Any]:
    """Equal reasons, of which a long queue has few, are stored once and referenced by number."""
    reasons: dict[int, int] = {}
    encoded: list[Any] = []
    waits: dict[str, int] = {}
    for job_id, reason in plan.waits.items():
        number = reasons.get(id(reason))
        if number is None:
            number = reasons[id(reason)] = len(encoded)
            encoded.append(to_json(reason))
        waits[job_id] = number
    plan_fields: dict[str, Any] = _of_class(Plan)[0](replace(plan, waits={}))
    return {**plan_fields, "reasons": encoded, "waits": waits}


def plan_from_json(data: Mapping[str, Any]) -> Plan:
    reasons = [from_json(Reason, item) for item in data["reasons"]]
    plan_fields = {name: value for name, value in data.items() if name not in ("reasons", "waits")}
    plan = from_json(Plan, plan_fields)
    waits = {job_id: reasons[number] for job_id, number in data["waits"].items()}
    return replace(plan, waits=waits)


def to_json(value: Any) -> dict[str, Any]:
    """Encode one of the planner's dataclasses."""
    encoded: dict[str, Any] = _of_class(type(value))[0](value)
    return encoded


def from_json(kind: type[_T], data: Mapping[str, Any]) -> _T:
    """Decode what :func:`to_json` wrote for a value of type ``kind``."""
    value: _T = _of_class(kind)[1](data)
    return value


def _of_class(kind: type[Any]) -> _Code:
    code = _CODES.get(kind)
    if code is None:
        code = _CODES[kind] = _make_code(kind)
    return code


def _make_code(kind: type[Any]) -> _Code:
    hints = get_type_hints(kind)
    codes = [(field, _of_hint(hints[field.name])) for field in fields(kind)]

    def write(value: Any) -> dict[str, Any]:
        encoded: dict[str, Any] = {}
        for field, (encode, _) in codes:
            item = getattr(value, field.name)
            if not _is_default(field, item):
                encoded[field.name] = encode(item)
        return encoded

    def read(data: Mapping[str, Any]) -> Any:
        return kind(**{field.name: decode(data[field.name]) for field, (_, decode) in codes if field.name in data})

    return write, read


def _is_default(field: Field[Any], value: Any) -> bool:
    if field.default is not MISSING:
        return bool(value == field.default) and type(value) is type(field.default)
    if field.default_factory is not MISSING:
        return bool(value == field.default_factory())
    return False


@cache
def _of_hint(hint: Any) -> _Code:
    while hasattr(hint, "__supertype__"):
        hint = hint.__supertype__  # a NewType of str
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        (inner,) = [item for item in args if item is not type(None)]
        encode, decode = _of_hint(inner)
        return (lambda v: None if v is None else encode(v)), (lambda v: None if v is None else decode(v))
    if origin is tuple:
        return _of_tuple(args)
    if origin is frozenset:
        encode, decode = _of_hint(args[0])
        return (lambda v: sorted(map(encode, v))), (lambda v: frozenset(map(decode, v)))
    if origin is not None and issubclass(origin, Mapping):
        encode, decode = _of_hint(args[1])
        return (
            (lambda v: {key: encode(item) for key, item in v.items()}),
            (lambda v: {key: decode(item) for key, item in v.items()}),
        )
    if hint is float:
        return _write_float, float
    if hint in (int, str, bool):
        return _identity, _identity
    if hint is datetime:
        return datetime.isoformat, datetime.fromisoformat
    if isinstance(hint, type) and issubclass(hint, Enum):
        return (lambda v: v.value), hint
    if is_dataclass(hint) and isinstance(hint, type):
        return _of_class(hint)
    if hint is Any:
        return _write_any, _read_any
    raise TypeError(f"no way is known to write {hint!r}")


def _of_tuple(args: tuple[Any, ...]) -> _Code:
    if len(args) == 2 and args[1] is Ellipsis:
        encode, decode = _of_hint(args[0])
        return (lambda v: [encode(item) for item in v]), (lambda v: tuple(decode(item) for item in v))
    codes = [_of_hint(item) for item in args]
    return (
        (lambda v: [encode(item) for (encode, _), item in zip(codes, v, strict=True)]),
        (lambda v: tuple(decode(item) for (_, decode), item in zip(codes, v, strict=True))),
    )


def _identity(value: Any) -> Any:
    return value


def _write_float(value: float) -> float | str:
    return value if isfinite(value) else str(value)  # JSON has no infinity


def _write_any(value: Any) -> Any:
    if type(value) in _PLAIN:
        return value
    match value:
        case float():
            return value if isfinite(value) else {_TAG: str(value)}
        case tuple():
            return {_TAG: [_write_any(item) for item in value]}
        case list():
            return [_write_any(item) for item in value]
        case datetime():
            return {_TAG: {"at": value.isoformat()}}
        case Enum():
            return _write_any(value.value)
        case Mapping():
            return {str(key): _write_any(item) for key, item in value.items()}
        case _:
            return value


def _read_any(value: Any) -> Any:
    if isinstance(value, list):
        return [_read_any(item) for item in value]
    if not isinstance(value, dict):
        return value
    if set(value) == {_TAG}:
        inner = value[_TAG]
        if isinstance(inner, str):
            return float(inner)
        if isinstance(inner, list):
            return tuple(_read_any(item) for item in inner)
        return datetime.fromisoformat(inner["at"])
    return {key: _read_any(item) for key, item in value.items()}
