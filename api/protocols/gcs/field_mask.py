"""Field masks (``fields``): partial responses such as ``items(name,size),nextPageToken``.

https://cloud.google.com/storage/docs/json_api#partial-response
"""

from __future__ import annotations

import re
from typing import Any, Final, TypeAlias

from core.domain.errors import InvalidRequest

# Field name -> selection below it; empty: the whole field. ``*`` matches any name.
Selection: TypeAlias = "dict[str, Selection]"

_LIMIT: Final = 1_000  # characters
_DEPTH: Final = 20
_TOKEN: Final = re.compile(r"\s*([A-Za-z0-9_$.-]+|[*,/()])\s*")


def read_selection(text: str) -> Selection:
    """Parse a field mask. Raises ``InvalidRequest``."""
    found: Selection = {}
    if len(text) > _LIMIT:
        raise InvalidRequest(f"fields has more than {_LIMIT} characters; leave it out.", field="fields")
    tokens = _tokens(text)
    if _read_list(tokens, 0, found, 0) != len(tokens):
        raise _invalid(text)
    return found


def select(value: Any, selection: Selection) -> Any:
    if not selection:
        return value
    if isinstance(value, list):
        return [select(item, selection) for item in value]
    if not isinstance(value, dict):
        return value
    chosen = {name: selection.get(name, selection.get("*")) for name in value}
    return {name: select(value[name], below) for name, below in chosen.items() if below is not None}


def _tokens(text: str) -> list[str]:
    found, at = [], 0
    while at < len(text):
        token = _TOKEN.match(text, at)
        if token is None:
            raise _invalid(text)
        found.append(token[1])
        at = token.end()
    return found


def _read_list(tokens: list[str], at: int, into: Selection, depth: int) -> int:
    """Parse ``tokens`` from ``at`` into ``into``; return the position after the list."""
    if depth > _DEPTH:
        raise _invalid("".join(tokens))
    while True:
        place = into
        while True:  # a/b/c
            if at >= len(tokens) or tokens[at] in ",/()":
                raise _invalid("".join(tokens))
            name, at = tokens[at], at + 1
            is_whole = place.get(name) == {}  # selected as a whole before
            place = {} if is_whole else place.setdefault(name, {})
            if at >= len(tokens) or tokens[at] != "/":
                break
            at += 1
        if at < len(tokens) and tokens[at] == "(":
            at = _read_list(tokens, at + 1, place, depth + 1)
            if at >= len(tokens) or tokens[at] != ")":
                raise _invalid("".join(tokens))
            at += 1
        else:
            place.clear()  # the whole field, even if a part was selected before
        if at >= len(tokens) or tokens[at] != ",":
            return at
        at += 1


def _invalid(text: str) -> InvalidRequest:
    return InvalidRequest(f"Invalid field selection {text[:100]}", field="fields")
