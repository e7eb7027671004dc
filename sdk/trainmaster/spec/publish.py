"""Writes the JSON Schema file next to this module, for editors, and the lists of fields in the reference documentation.

``python -m trainmaster.spec.publish [docs/job-spec.md]``
"""

from __future__ import annotations

import json
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from trainmaster.spec import enums
from trainmaster.spec.schema import spec_json_schema
from trainmaster.spec.shorthand import Shorthands

_LINES: Final = textwrap.TextWrapper(120, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
_FIELDS: Final = re.compile(r"(<!-- fields: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def with_fields(text: str) -> str:
    """``text`` with every ``<!-- fields: Name --> … <!-- end -->`` filled from the schema.

    ``Name`` is ``JobSpec``, ``Shorthands``, or a definition of the schema such as ``Resources``.
    """
    schema = spec_json_schema()
    return _FIELDS.sub(lambda match: f"{match[1]}{_list_fields(schema, match[2])}{match[3]}", text)


def _list_fields(schema: dict[str, Any], name: str) -> str:
    short = set(Shorthands.model_fields)
    properties: dict[str, Any] = schema["properties"]
    match name:
        case "JobSpec":
            owner = {**schema, "properties": {key: value for key, value in properties.items() if key not in short}}
        case "Shorthands":
            owner = {"properties": {key: value for key, value in properties.items() if key in short}}
        case _:
            owner = schema["$defs"][name]
    return "".join(f"{_LINES.fill(item)}\n" for item in _items(owner))


def _items(owner: dict[str, Any]) -> Iterator[str]:
    for name, field in owner["properties"].items():
        default = ", **required**" if name in owner.get("required", ()) else _default(field)
        example = f" Such as `{_inline(field['examples'][0])}`." if field.get("examples") else ""
        yield f"- `{name}` ({_takes(field)}{default}): {field['description']}{example}"


def _default(field: dict[str, Any]) -> str:
    value = field.get("default")
    return "" if value in (None, "", [], {}) else f", default `{_inline(value)}`"


def _inline(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _takes(field: dict[str, Any]) -> str:
    """The kinds of values, in words."""
    kinds: list[str] = []
    for choice in field.get("anyOf", [field]):
        for kind in _kinds(choice):
            if kind not in kinds:
                kinds.append(kind)
    if "a number" in kinds and "a whole number" in kinds:
        kinds.remove("a whole number")
    return " or ".join(kinds)


def _kinds(choice: dict[str, Any]) -> Iterator[str]:
    if "$ref" in choice:
        name = choice["$ref"].rsplit("/", 1)[-1]
        enumeration = getattr(enums, name, None)
        values = "" if enumeration is None else ", ".join(f"`{member}`" for member in enumeration)
        yield values or f"[{name}](#{name.lower()})"
        return
    for inner in choice.get("anyOf", []):
        yield from _kinds(inner)
    types = choice.get("type", [])
    for kind in [types] if isinstance(types, str) else types:
        match kind:
            case "integer" if "minimum" in choice and "maximum" in choice:
                yield f"{choice['minimum']} to {choice['maximum']}"
            case "integer":
                yield "a whole number"
            case "number" if "minimum" in choice and "maximum" in choice:
                yield f"{choice['minimum']} to {choice['maximum']}"
            case "number":
                yield "a number"
            case "string":
                yield "text"
            case "boolean":
                yield "true or false"
            case "array":
                yield f"a list of {_takes(choice['items'])}" if "$ref" in choice.get("items", {}) else "a list"
            case "object":
                yield "a mapping"


def main(documents: list[str]) -> None:
    path = Path(__file__).with_name("job-spec.schema.json")
    path.write_text(json.dumps(spec_json_schema(), indent=2, ensure_ascii=False) + "\n")
    for document in map(Path, documents):
        document.write_text(with_fields(document.read_text()))


if __name__ == "__main__":
    main(sys.argv[1:])
