"""Record kinds: collection, fields, and which fields may change."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from api.protocols.vertex.proto import OUTPUT_ONLY, Message, camel
from core.domain.errors import InvalidRequest

FieldParser = Callable[[Message, str], Any]

_METADATA_LIMIT: Final = 200_000  # bytes, as the real API has it
_LABELS: Final = 64
_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


@dataclass(frozen=True, slots=True)
class RecordKind:
    """A record kind.

    ``word``: its name in requests and errors. ``fields``: a parser for each. ``fixed``: immutable fields. ``output``:
    output-only fields. ``limit``: records per collection. ``is_slow``: the real API creates it by a long-running
    operation with a response of type ``message``.
    """

    noun: str
    word: str
    fields: Mapping[str, FieldParser]
    limit: int
    fixed: frozenset[str] = frozenset()
    output: frozenset[str] = frozenset()
    absent: Mapping[str, str] = field(default_factory=dict)
    message: str = ""
    is_slow: bool = False

    @property
    def id_parameter(self) -> str:
        """The query parameter with a new record's id."""
        return f"{camel(self.word)}Id"


def read_fields(kind: RecordKind, message: Message, only: frozenset[str] | None = None) -> dict[str, Any]:
    """Field values of a message. ``only``: just these fields, including empty ones.

    Raises ``InvalidRequest`` or ``NotServed``.
    """
    message.refuse_unknown_fields({*kind.fields, *OUTPUT_ONLY, *kind.output}, absent=kind.absent)
    fields = {}
    for name, read in kind.fields.items():
        if only is not None and name not in only:
            continue
        value = read(message, name)
        if only is not None or value not in ("", False, {}):
            fields[name] = value
    return fields


def check_id(text: str, what: str) -> str:
    """Raises ``InvalidRequest`` for an invalid id."""
    if not _ID.fullmatch(text):
        raise InvalidRequest(
            f"{what}: {text[:130]!r} cannot be used; an id has 1 to 128 letters, digits and . _ -, and begins with a "
            "letter or a digit.",
            field=what,
        )
    return text


def new_name() -> str:
    """A generated id: digits, as in the real API."""
    return f"{10**17 + secrets.randbelow(9 * 10**17)}"


def text(limit: int) -> FieldParser:
    return lambda message, name: message.text(name, limit)


@dataclass(frozen=True, slots=True)
class enum:  # noqa: N801 (reads as text and flag do)
    """Parses an enum to its name; empty for unspecified."""

    names: Mapping[int, str]

    def __call__(self, message: Message, name: str) -> str:
        value = message.enum(name, self.names)
        return "" if value == self.names[0] else value


def flag(message: Message, name: str) -> bool:
    return message.flag(name)


def labels(message: Message, name: str) -> dict[str, str]:
    labels = message.text_map(name)
    if len(labels) > _LABELS or any(len(word) > 63 for pair in labels.items() for word in pair):
        raise message.fault(name, f"at most {_LABELS} labels of at most 63 characters.")
    return labels


def struct(message: Message, name: str) -> dict[str, Any]:
    """The client's own data: any JSON object."""
    value = message.raw(name) or {}
    if not isinstance(value, Mapping):
        raise InvalidRequest(f"Invalid value at '{message.at(name)}': this is an object.", field=message.at(name))
    size = len(orjson.dumps(value))
    if size > _METADATA_LIMIT:
        raise message.fault(
            name, f"takes {size:,} bytes, and {_METADATA_LIMIT:,} at most are kept; keep files in a bucket."
        )
    return dict(value)


SHOWN: Final[Mapping[str, FieldParser]] = {"displayName": text(128), "description": text(10_000), "labels": labels}
