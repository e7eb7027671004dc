"""Paging: the query parameters of every list, keyset pagination of lists by name and by age, and opaque cursors.

A cursor is the position where a page ended and the next one begins. Clients send it back unchanged.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Sequence
from datetime import datetime
from itertools import islice
from typing import Annotated, Any, Final, TypeVar

import orjson
from fastapi import Query
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import tuple_
from sqlalchemy.orm import InstrumentedAttribute, Session

from core.db.engine import UntypedRow, UntypedSelect
from core.domain.errors import InvalidRequest

T = TypeVar("T")

PAGE_LIMIT: Final = 200
FILTER_LIMIT: Final = 50  # values of one filter
_CURSOR_LIMIT: Final = 2_000  # characters; a cursor with a name of 128 letters of any script is the longest

FilterValues = Annotated[tuple[Annotated[str, Field(max_length=300)], ...], Field(max_length=FILTER_LIMIT)]


class PageQuery(BaseModel):
    """The query of a list. An unknown parameter is refused, so that a misspelt filter is noticed."""

    model_config = ConfigDict(extra="forbid")

    limit: Annotated[int, Field(ge=1, le=PAGE_LIMIT)] = 50
    cursor: Annotated[str | None, Field(max_length=500, description="`next_cursor` of the previous page.")] = None


PageParams = Annotated[PageQuery, Query()]


def rows_by_name(
    session: Session, query: UntypedSelect, name: InstrumentedAttribute[str], page: PageQuery
) -> tuple[Sequence[UntypedRow], str | None]:
    """The page's rows in order of ``name``, which is unique, and the cursor of the next page.

    The name is added to the rows as their last column.
    """
    if page.cursor is not None:
        (last,) = read_cursor(page.cursor, (str,))
        query = query.where(name > plain(last))
    rows = session.execute(query.add_columns(name).order_by(name).limit(page.limit + 1)).all()
    if len(rows) <= page.limit:
        return rows, None
    return rows[: page.limit], make_cursor(rows[page.limit - 1][-1])


def newest_rows(
    session: Session, query: UntypedSelect, table: type[Any], page: PageQuery
) -> tuple[Sequence[UntypedRow], str | None]:
    """The page's rows, the newest first, and the cursor of the next page. ``table`` is the first item of each row."""
    if page.cursor is not None:
        query = query.where(tuple_(table.created_at, table.id) < read_position(page.cursor))
    newest_first = query.order_by(table.created_at.desc(), table.id.desc())
    rows = session.execute(newest_first.limit(page.limit + 1)).all()
    if len(rows) <= page.limit:
        return rows, None
    last = rows[page.limit - 1][0]
    return rows[: page.limit], make_cursor(last.created_at.isoformat(), last.id)


def cut(items: Iterable[T], limit: int) -> tuple[list[T], bool]:
    """The first ``limit`` items, and whether there are more."""
    found = list(islice(items, limit + 1))
    return found[:limit], len(found) > limit


def make_cursor(*parts: str | int) -> str:
    return base64.urlsafe_b64encode(orjson.dumps(parts)).rstrip(b"=").decode()


def read_cursor(cursor: str, kinds: Sequence[type], *, limit: int = _CURSOR_LIMIT) -> list[Any]:
    """The parts of a cursor of at most ``limit`` characters, of the types ``kinds``.

    Raises ``InvalidRequest`` for a cursor that is not ours.
    """
    try:
        if len(cursor) > limit:
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


def read_position(cursor: str) -> tuple[datetime, str]:
    """The time and the id in the cursor of a list that is in order of both."""
    made_at, row_id = read_cursor(cursor, (str, str))
    return read_time(made_at), plain(row_id)


def read_time(part: str) -> datetime:
    """A cursor's time, in ISO format with its zone."""
    try:
        at = datetime.fromisoformat(part)
    except ValueError as error:
        raise bad_cursor() from error
    if at.tzinfo is None:
        raise bad_cursor()
    return at


def plain(part: Any) -> str:
    """A cursor's text; PostgreSQL cannot compare with NUL."""
    text = str(part)
    if "\0" in text:
        raise bad_cursor()
    return text
