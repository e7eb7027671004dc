"""Field masks: a choice of a response's fields, and the fields that an update sets.

``items(name,size),nextPageToken``: https://cloud.google.com/storage/docs/json_api#partial-response
``displayName,labels.team``: https://protobuf.dev/reference/protobuf/google.protobuf/#field-mask
"""

from __future__ import annotations

import re
from typing import Any, Final, TypeAlias

from api.protocols.kit.lexer import Lexer
from core.domain.errors import InvalidRequest

# Field name -> selection below it; empty: the whole field. ``*`` matches any name.
Selection: TypeAlias = "dict[str, Selection]"

_LIMIT: Final = 1_000  # characters of a selection
_DEPTH: Final = 20
_TOKEN: Final = re.compile(r"\s*(?:(?P<name>[A-Za-z0-9_$.-]+|\*)|(?P<sign>[,/()]))")


def mask_paths(mask: str) -> list[list[str]]:
    """The paths of an update mask: ``[["displayName"], ["labels", "team"]]``."""
    return [path.strip().split(".") for path in mask.split(",") if path.strip()]


def read_selection(text: str) -> Selection:
    """Parse a choice of fields; empty: all. Raises ``InvalidRequest``."""
    selection: Selection = {}
    if len(text) > _LIMIT:
        raise InvalidRequest(f"fields has more than {_LIMIT} characters; leave it out.", field="fields")
    invalid = InvalidRequest(f"Invalid field selection {text[:100]}", field="fields")
    tokens = Lexer(text, _TOKEN, lambda _rest: invalid)
    if text and not (_read_fields(tokens, selection, 0) and not tokens.rest):
        raise invalid
    return selection


def select(value: Any, selection: Selection) -> Any:
    if not selection:
        return value
    if isinstance(value, list):
        return [select(item, selection) for item in value]
    if not isinstance(value, dict):
        return value
    chosen = {name: selection.get(name, selection.get("*")) for name in value}
    return {name: select(value[name], below) for name, below in chosen.items() if below is not None}


def _read_fields(tokens: Lexer, into: Selection, depth: int) -> bool:
    """Read a list of fields ``into`` a selection; false if there is none."""
    while True:
        place = into
        while True:  # a/b/c
            name = tokens.take("name")
            if name is None or depth > _DEPTH:
                return False
            is_whole = place.get(name.text) == {}  # selected as a whole before
            place = {} if is_whole else place.setdefault(name.text, {})
            if not tokens.accept("/"):
                break
        if not tokens.accept("("):
            place.clear()  # the whole field, even if a part was selected before
        elif not (_read_fields(tokens, place, depth + 1) and tokens.accept(")")):
            return False
        if not tokens.accept(","):
            return True
