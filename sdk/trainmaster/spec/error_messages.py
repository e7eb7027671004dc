"""Translates pydantic's errors into messages for users; pydantic's own texts are never shown."""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from trainmaster.spec.errors import FieldError, Path, suggest
from trainmaster.spec.fields import kind_of, quoted
from trainmaster.spec.model import JobSpec, RoleSpec
from trainmaster.spec.quantity import as_text

_HINTS: Final[Mapping[Path, str]] = {
    ("name",): "write a name for people, such as `name: digits`",
    ("mounts", "volume"): "write the volume's name",
    ("mounts", "at"): "write a path in the container, such as /mnt/set",
    ("topology", "level"): "write node, rack or zone",
}
_BOUNDS: Final = {
    "greater_than_equal": ("ge", "at least"),
    "less_than_equal": ("le", "at most"),
    "greater_than": ("gt", "more than"),
    "less_than": ("lt", "less than"),
}


def location_of(error: ErrorDetails) -> Path:
    """Path of the error in the data. pydantic marks an error of a mapping's key by a last part ``[key]``."""
    loc = tuple(error["loc"])
    return loc[:-1] if loc and loc[-1] == "[key]" else loc


def is_about_key(error: ErrorDetails) -> bool:
    return bool(error["loc"]) and error["loc"][-1] == "[key]"


class ErrorMessage(NamedTuple):
    """``hint``: how to correct it. ``meant``: the known field that an unknown field name probably means."""

    message: str
    hint: str | None = None
    meant: str | None = None


def explain_error(
    error: ErrorDetails, model: type[BaseModel], extra_fields: frozenset[str] = frozenset()
) -> ErrorMessage:
    """The message for ``error``.

    Args:
        extra_fields: fields that the top level accepts in addition to the model's own.
    """
    place = location_of(error)
    kind, context, value = error["type"], error.get("ctx") or {}, error.get("input")
    if kind == "value_error":
        refusal = context.get("error")
        return (
            ErrorMessage(refusal.message, refusal.hint)
            if isinstance(refusal, FieldError)
            else ErrorMessage("is not valid")
        )
    if kind == "missing":
        return ErrorMessage("is missing", _HINTS.get(tuple(part for part in place if not isinstance(part, int))))
    if kind == "extra_forbidden":
        return _unknown(place, model, extra_fields)
    if kind in _BOUNDS:
        name, words = _BOUNDS[kind]
        return ErrorMessage(f"must be {words} {context.get(name)}, not {as_text(value)}")
    if kind == "too_long":
        return ErrorMessage(f"has more than {context.get('max_length')} entries")
    if kind == "string_too_long":
        return ErrorMessage(f"is longer than {context.get('max_length')} characters")
    if kind in ("model_type", "model_attributes_type", "dict_type", "mapping_type"):
        return _not_a_mapping(place, value)
    if kind in ("tuple_type", "list_type"):
        hint = f"write [{quoted(value, 40)}]" if isinstance(value, str) else None
        return ErrorMessage(f"must be a list, not {kind_of(value)}", hint)
    if kind == "string_type":
        return ErrorMessage(f"must be text, not {kind_of(value)}")
    return ErrorMessage("is not a value of this field")


def _unknown(place: Path, model: type[BaseModel], extra_fields: frozenset[str]) -> ErrorMessage:
    name = str(place[-1])
    owner = model_at(model, place[:-1])
    known = set(owner.model_fields) if owner else set()
    if len(place) == 1:
        known |= extra_fields
    meant = suggest(name, known)
    if meant:
        return ErrorMessage("unknown field", f"did you mean {meant}?", meant)
    # The forty top-level fields are too many for a hint.
    listed = f"fields here are {', '.join(sorted(known))}" if 0 < len(known) <= 12 else None
    return ErrorMessage("unknown field", _elsewhere(name, place) or listed)


def _elsewhere(name: str, place: Path) -> str | None:
    """Hint for a field that exists in another place: `replicas` at the top, `gpus` directly under a role."""
    if name in JobSpec.model_fields and len(place) > 1:
        return f"{name} belongs at the top of the spec"
    if len(place) == 3 and place[0] == "roles" and name in ("cpu", "memory", "gpus", "gpu_type", "shm"):
        return f"write it under resources: `resources: {{{name}: …}}`"
    if len(place) == 1 and name in RoleSpec.model_fields:
        return f"{name} belongs to a role, such as roles.worker.{name}; at the top write `workers: 2`"
    return None


def _not_a_mapping(place: Path, value: Any) -> ErrorMessage:
    if len(place) == 2 and place[0] == "roles":
        return ErrorMessage(
            f"must be a number of replicas or a mapping, not {kind_of(value)}",
            "write it like `worker: 2` or `worker: {replicas: 2}`",
        )
    if place == ("roles",):
        return ErrorMessage(
            f"must be a mapping of roles, not {kind_of(value)}", "write it like `roles: {worker: 2, ps: 1}`"
        )
    name = place[-1] if place else "the spec"
    example = "KEY: value" if name in ("env", "labels", "node_selector") else "field: value"
    return ErrorMessage(f"must be a mapping, not {kind_of(value)}", f"write `{example}` lines below it")


def model_at(model: type[BaseModel], place: Path) -> type[BaseModel] | None:
    """The model whose fields are at ``place``, or ``None``."""
    current: Any = model
    for part in place:
        current = _step(current, part)
        if current is None:
            return None
    return current if isinstance(current, type) and issubclass(current, BaseModel) else None


def _step(annotation: Any, part: str | int) -> Any:
    annotation = _bare(annotation)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        info = annotation.model_fields.get(str(part))
        return None if info is None else _bare(info.annotation)
    arguments = get_args(annotation)
    if get_origin(annotation) is dict:
        return _bare(arguments[1])
    if get_origin(annotation) is tuple:
        return _bare(arguments[0])
    return None


def _bare(annotation: Any) -> Any:
    """``annotation`` without ``| None`` and ``Annotated``."""
    if hasattr(annotation, "__metadata__"):
        return _bare(annotation.__origin__)
    if get_origin(annotation) in (Union, types.UnionType):
        members = [argument for argument in get_args(annotation) if argument is not type(None)]
        return _bare(members[0]) if len(members) == 1 else annotation
    return annotation
