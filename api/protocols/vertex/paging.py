"""Lists in pages: their queries, keyset pagination, and page tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Protocol, TypeVar

from sqlalchemy import asc, desc, literal, tuple_
from sqlalchemy.orm import InstrumentedAttribute, Session

from api.http.paging import make_cursor, read_cursor, read_position
from core.db.engine import AnyRow, AnySelect
from core.domain.errors import InvalidRequest

_PAGE: Final = 100
_PAGE_LIMIT: Final = 1_000
Row = TypeVar("Row")
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class ListQuery:
    """The parameters of a list. ``page_size``: 0 for the default."""

    filter: str = ""
    page_size: int = 0
    page_token: str = ""
    order_by: str = ""

    @property
    def limit(self) -> int:
        return min(self.page_size or _PAGE, _PAGE_LIMIT)

    def demand_newest_first(self) -> None:
        """Raises ``InvalidRequest`` for another order; the SDK sorts lists itself."""
        if self.order_by.strip() not in ("", "create_time desc", "createTime desc"):
            raise InvalidRequest(
                'orderBy: only "create_time desc" is served, which is the order in any case.', field="order_by"
            )


@dataclass(frozen=True, slots=True)
class Keyset:
    """The order of a list: by ``column``, then by ``row_id``; by default the newest first."""

    column: InstrumentedAttribute[Any]
    row_id: InstrumentedAttribute[str]
    is_descending: bool = True

    def ordered(self, statement: AnySelect) -> AnySelect:
        direction = desc if self.is_descending else asc
        return statement.order_by(direction(self.column), direction(self.row_id))

    def after(self, statement: AnySelect, value: Any, row_id: str) -> AnySelect:
        """The rows of ``statement`` that follow the position (``value``, ``row_id``)."""
        own, position = tuple_(self.column, self.row_id), tuple_(literal(value, self.column.type), literal(row_id))
        return statement.where(own < position if self.is_descending else own > position)

    def batches(self, session: Session, statement: AnySelect, size: int) -> Iterator[Sequence[AnyRow]]:
        """All rows in this order, ``size`` + 1 at once. The first of a row's entities is the ordered one."""
        ordered = query = self.ordered(statement)
        while True:
            rows = session.execute(query.limit(size + 1)).all()
            yield rows
            if len(rows) <= size:
                return
            last = rows[-1][0]
            query = self.after(ordered, getattr(last, self.column.key), last.id)


def take_page(
    rows: Iterable[Row],
    item_of: Callable[[Row], Item | None],
    token_of: Callable[[Row], str],
    limit: int,
    *,
    scanned: int,
    is_full: Callable[[], bool] = lambda: False,
) -> tuple[list[Item], str]:
    """At most ``limit`` items, and the token of the next page; empty if there are no more rows.

    Args:
        item_of: ``None`` for a row that the filter excludes.
        token_of: the token of the page after a row.
        scanned: rows that are looked at. With a selective filter a page may be short and still have a next page.
        is_full: whether the page ends here for another reason.
    """
    found: list[Item] = []
    last: Row | None = None
    for number, row in enumerate(rows):
        if len(found) == limit or number == scanned or is_full():
            return found, "" if last is None else token_of(last)
        if (item := item_of(row)) is not None:
            found.append(item)
        last = row
    return found, ""


def page_of(collection: str, items: Sequence[Any], token: str) -> dict[str, Any]:
    """The response. ``token``: of the next page; empty on the last one."""
    return {**({collection: items} if items else {}), **({"nextPageToken": token} if token else {})}


class _Created(Protocol):
    id: Any
    created_at: Any


def newest_token(last: _Created) -> str:
    """The token of the page after ``last``, in a list with the newest first."""
    return make_cursor(last.created_at.isoformat(), last.id)


def list_position(token: str) -> tuple[datetime, str]:
    """The position of a :func:`newest_token`. Raises ``InvalidRequest``."""
    with _as_page_token():
        return read_position(token)


def token_parts(token: str, kinds: Sequence[type]) -> list[Any]:
    """The parts of another token, of the types ``kinds``. Raises ``InvalidRequest``."""
    with _as_page_token():
        return read_cursor(token, kinds)


@contextmanager
def _as_page_token() -> Iterator[None]:
    try:
        yield
    except InvalidRequest as error:
        raise InvalidRequest(
            "page_token: not a token of this list; send `next_page_token` as it came, or leave it out.",
            field="page_token",
        ) from error
