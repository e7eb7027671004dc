"""Pages of lists: their JSON, and page tokens, which are cursors of :mod:`api.http.paging`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from api.http.paging import make_cursor, read_cursor
from api.protocols.kit.json_values import non_empty
from core.domain.errors import InvalidRequest

page_token = make_cursor

_TOKEN_LIMIT: Final = 20_000  # characters; the longest tokens have an object's name
_OFFSET_LIMIT: Final = 2**31


def token_parts(token: str, kinds: Sequence[type]) -> list[Any]:
    """The parts of a page token, of the types ``kinds``. Raises ``InvalidRequest`` for a token that is not ours."""
    try:
        return read_cursor(token, kinds, limit=_TOKEN_LIMIT)
    except InvalidRequest as error:
        raise bad_page_token() from error


def token_offset(token: str) -> int:
    """Where a page begins in a list whose tokens are offsets; 0 without a token."""
    (offset,) = token_parts(token, (int,)) if token else (0,)
    if not 0 <= offset < _OFFSET_LIMIT:
        raise bad_page_token()
    return int(offset)


def bad_page_token() -> InvalidRequest:
    return InvalidRequest(
        "page_token: not a token of this list; send `next_page_token` as it came, or leave it out.", field="page_token"
    )


def page_of(collection: str, items: Sequence[Any], token: str) -> dict[str, Any]:
    """The response of a list of Google's APIs. ``token``: of the next page; empty on the last one."""
    return non_empty({collection: items, "nextPageToken": token})
