"""Opaque cursors: the position where a page ended and the next one begins. Clients send them back unchanged."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import Any, Final

import orjson

from core.domain.errors import InvalidRequest

_LIMIT: Final = 2_000  # characters; a cursor with a name of 128 letters of any script is the longest


def make_cursor(*parts: str | int) -> str:
    return base64.urlsafe_b64encode(orjson.dumps(parts)).rstrip(b"=").decode()


def read_cursor(cursor: str, kinds: Sequence[type]) -> list[Any]:
    """The parts of a cursor, of the types ``kinds``. Raises ``InvalidRequest`` for a cursor that is not ours."""
    try:
        if len(cursor) > _LIMIT:
            raise ValueError("too long")  # noqa: TRY301 (one error for every invalid cursor)
        parts = orjson.loads(base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True))
    except (ValueError, binascii.Error) as error:
        raise bad_cursor() from error
    if not isinstance(parts, list) or [type(part) for part in parts] != list(kinds):
        raise bad_cursor()
    return parts


def bad_cursor() -> InvalidRequest:
    return InvalidRequest(
        "cursor: not a cursor of this list; send `next_cursor` unchanged, or omit it.", field="cursor"
    )
