"""Messages in proto3 JSON, and in the JSON of a protobuf ``Value``, as which ``trainingTaskInputs`` come.

Names in camelCase or snake_case; enums as numbers or names; whole numbers as numbers, as text, or as floats; zero
and empty values are left out. https://protobuf.dev/programming-guides/json/
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from typing import Any, Final

from api.protocols.kit.errors import not_served, refuse_unknown
from api.protocols.kit.field_mask import mask_paths
from api.protocols.kit.json_values import shortened
from core.domain.errors import InvalidRequest

_DURATION: Final = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,9})?)s")
# Output-only fields of most resources; a client may send them back.
OUTPUT_ONLY: Final = frozenset({"name", "etag", "createTime", "updateTime", "satisfiesPzs", "satisfiesPzi"})
_NEVER_SERVED: Final = {"encryptionSpec": "encryption by keys of one's own is"}
_LONGEST_S: Final = 315_576_000_000  # google.protobuf.Duration, in seconds


def snake(name: str) -> str:
    return re.sub(r"(?<!^)([A-Z])", r"_\1", name).lower()


def camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


class Message:
    """One message of a request. ``path``: its field path, as Google's errors name it.

    Every method raises ``InvalidRequest`` for a value of the wrong type.
    """

    def __init__(self, raw: Any, path: str) -> None:
        if not isinstance(raw, Mapping):
            raise InvalidRequest(f"Invalid value at '{path}': this is a message with fields.", field=path)
        self.path = path
        self._fields = {camel(str(key)): value for key, value in raw.items() if value is not None}

    def refuse_unknown_fields(self, served: Collection[str], *, absent: Mapping[str, str] | None = None) -> None:
        """Refuse fields that are not in ``served``.

        Raises ``NotServed`` for non-empty fields in ``absent`` (name -> feature), else ``InvalidRequest`` worded as the
        real API's.
        """
        refuse_unknown(
            self._fields,
            served,
            {**_NEVER_SERVED, **(absent or {})},
            empty=(False, 0, "", [], {}),
            refusal=lambda name, what: not_served(self.at(name), what),
            unknown=lambda name: InvalidRequest(
                f"Invalid JSON payload received. Unknown name \"{snake(name)[:100]}\" at '{self.path}': Cannot find "
                "field.",
                field=self.at(name)[:200],
            ),
        )

    @classmethod
    def of_mask(cls, mask: str) -> Message:
        """A message with the fields that an update mask names."""
        return cls({".".join(path): 1 for path in mask_paths(mask)}, "update_mask")

    def __contains__(self, name: str) -> bool:
        """Whether the field was sent, even if empty."""
        return name in self._fields

    def has(self, name: str) -> bool:
        return name in self._fields and self._fields[name] not in ("", [], {})

    def raw(self, name: str) -> Any:
        return self._fields.get(name)

    def at(self, name: str) -> str:
        return f"{self.path}.{snake(name)}"

    def fault(self, name: str, what: str) -> InvalidRequest:
        """The error for a field. ``what``: the rest of its sentence, after the field's path."""
        return InvalidRequest(f"{self.at(name)}: {what}", field=self.at(name))

    def missing(self, name: str) -> InvalidRequest:
        return self.fault(name, "Required field is not set.")

    def text(self, name: str, limit: int = 131_000) -> str:
        value = self._fields.get(name, "")
        if not isinstance(value, str) or len(value) > limit:
            raise self._wrong(name, f"text of at most {limit} characters", value)
        return value

    def whole(self, name: str) -> int:
        value = self._fields.get(name, 0)
        if isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,18}", value):
            return int(value)
        if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
            return int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._wrong(name, "a whole number", value)
        if not -(2**63) <= value < 2**63:
            raise self._wrong(name, "a whole number of 64 bits", value)
        return value

    def number(self, name: str) -> float:
        """A double; zero if left out."""
        value = self._fields.get(name, 0.0)
        if isinstance(value, str):
            try:
                value = float(value)
            except ValueError:
                raise self._wrong(name, "a number", value) from None
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise self._wrong(name, "a finite number", value)
        return float(value)

    def numbers(self, name: str) -> tuple[float, ...]:
        return tuple(Message({"value": item}, path).number("value") for path, item in self.items(name))

    def flag(self, name: str) -> bool:
        value = self._fields.get(name, False)
        if not isinstance(value, bool):
            raise self._wrong(name, "true or false", value)
        return value

    def enum(self, name: str, names: Mapping[int, str]) -> str:
        """The enum value's name; if left out, that of 0."""
        value = self._fields.get(name, 0)
        if isinstance(value, str) and value in names.values():
            return value
        if isinstance(value, str) or (number := self.whole(name)) not in names:
            raise self._wrong(name, f"one of {', '.join(names.values())}", value)
        return names[number]

    def seconds(self, name: str) -> float | None:
        """A duration such as ``3600s``; ``None`` if left out or zero."""
        value = self._fields.get(name, "0s")
        if isinstance(value, Mapping):  # as a Value that holds the message itself
            value = f"{Message(value, self.at(name)).whole('seconds')}s"
        match = _DURATION.fullmatch(value) if isinstance(value, str) else None
        if match is None or not math.isfinite(seconds := float(match[1])) or seconds > _LONGEST_S:
            raise self._wrong(name, "a duration such as 3600s", value)
        return seconds or None

    def message(self, name: str) -> Message | None:
        return Message(self._fields[name], self.at(name)) if self.has(name) else None

    def required(self, name: str) -> Message:
        """A message that must be there."""
        if not self.has(name):
            raise self.missing(name)
        return Message(self._fields[name], self.at(name))

    def part(self, name: str, served: Collection[str], absent: Mapping[str, str] | None = None) -> Message:
        """The message of a field, empty if it was left out. Refuses unknown fields in it."""
        message = Message(self._fields[name] if self.has(name) else {}, self.at(name))
        message.refuse_unknown_fields(served, absent=absent)
        return message

    def items(self, name: str) -> list[tuple[str, Any]]:
        """(path, item) of a list."""
        value = self._fields.get(name, [])
        if not isinstance(value, list):
            raise self._wrong(name, "a list", value)
        return [(f"{self.at(name)}[{number}]", item) for number, item in enumerate(value)]

    def texts(self, name: str) -> tuple[str, ...]:
        texts = []
        for path, item in self.items(name):
            if not isinstance(item, str):
                raise InvalidRequest(f"Invalid value at '{path}': this is text, not {shortened(item)}.", field=path)
            texts.append(item)
        return tuple(texts)

    def text_map(self, name: str) -> dict[str, str]:
        value = self._fields.get(name, {})
        if not isinstance(value, Mapping) or not all(
            isinstance(k, str) and isinstance(v, str) for k, v in value.items()
        ):
            raise self._wrong(name, "a map of text to text", value)
        return dict(value)

    def _wrong(self, name: str, what: str, value: Any) -> InvalidRequest:
        return InvalidRequest(
            f"Invalid value at '{self.at(name)}': this is {what}, not {shortened(value)}.", field=self.at(name)
        )
