"""Opaque cursors: where a page ended, for the next one to begin. Clients give them back as they are."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import Any, Final

import orjson

from core.domain.errors import InvalidRequest

_LIMIT: Final = 2_000  # characters; those that hold a name of 128 letters of any script have the most


def make_cursor(*parts: str | int) -> str:
    return base64.urlsafe_b64encode(orjson.dumps(parts)).rstrip(b"=").decode()


def read_cursor(cursor: str, kinds: Sequence[type]) -> list[Any]:
    """The parts of a cursor, one of each of ``kinds``. Raises ``InvalidRequest`` when it is none of ours."""
    try:
        if len(cursor) > _LIMIT:
            raise ValueError("too long")  # noqa: TRY301 (one way out for everything that is wrong with it)
        parts = orjson.loads(base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True))
    except (ValueError, binascii.Error) as error:
        raise bad_cursor() from error
    if not isinstance(parts, list) or [type(part) for part in parts] != list(kinds):
        raise bad_cursor()
    return parts


def bad_cursor() -> InvalidRequest:
    return InvalidRequest(
        "cursor: not one of ours; give back `next_cursor` as it came, or leave it out.", field="cursor"
    )
