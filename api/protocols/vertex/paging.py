"""Lists in pages: their queries, orders and keyset pagination."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Final, TypeVar

from fastapi import Depends, Query
from sqlalchemy import asc, desc, literal, tuple_
from sqlalchemy.orm import InstrumentedAttribute, Session

from api.http.paging import plain, read_time
from api.protocols.kit.paging import bad_page_token, page_of, page_token, token_parts
from api.protocols.vertex.filters import DEFAULT_VOCABULARY, FilterVocabulary, field_reader, parse_filter
from api.protocols.vertex.proto import snake
from core.db.engine import UntypedRow, UntypedSelect
from core.db.tables import UtcDateTime
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


def _list_query(
    filter: Annotated[str, Query()] = "",  # noqa: A002 (as Google names it)
    pageSize: Annotated[int, Query(ge=0)] = 0,  # noqa: N803
    pageToken: Annotated[str, Query(max_length=2_000)] = "",  # noqa: N803
    orderBy: Annotated[str, Query(max_length=500)] = "",  # noqa: N803
) -> ListQuery:
    return ListQuery(filter, pageSize, pageToken, orderBy)


ListQueryDep = Annotated[ListQuery, Depends(_list_query)]


@dataclass(frozen=True, slots=True)
class Keyset:
    """The order of a list: by ``column``, then by ``row_id``; by default the newest first.

    Page tokens name the order, so that a token of another order is refused.
    """

    column: InstrumentedAttribute[Any]
    row_id: InstrumentedAttribute[str]
    is_descending: bool = True

    def ordered(self, statement: UntypedSelect) -> UntypedSelect:
        direction = desc if self.is_descending else asc
        return statement.order_by(direction(self.column), direction(self.row_id))

    def token(self, last: Any) -> str:
        """The token of the page after the row ``last``."""
        value = getattr(last, self.column.key)
        return page_token(self._mark, value.isoformat() if isinstance(value, datetime) else value, last.id)

    def after_token(self, statement: UntypedSelect, token: str) -> UntypedSelect:
        """The rows of ``statement`` on the token's page; all without a token. Raises ``InvalidRequest``."""
        if not token:
            return statement
        mark, value, row_id = token_parts(token, (str, str, str))
        if mark != self._mark:
            raise InvalidRequest(
                "page_token: it belongs to a list in another order; start again without it.", field="page_token"
            )
        try:
            position = read_time(value) if isinstance(self.column.type, UtcDateTime) else plain(value)
            return self._after(statement, position, plain(row_id))
        except InvalidRequest as error:
            raise bad_page_token() from error

    @property
    def _mark(self) -> str:
        return f"{self.column.key}{' desc' if self.is_descending else ''}"

    def _after(self, statement: UntypedSelect, value: Any, row_id: str) -> UntypedSelect:
        own, position = tuple_(self.column, self.row_id), tuple_(literal(value, self.column.type), literal(row_id))
        return statement.where(own < position if self.is_descending else own > position)

    def batches(self, session: Session, statement: UntypedSelect, size: int) -> Iterator[Sequence[UntypedRow]]:
        """All rows in this order, ``size`` + 1 at once. The first of a row's entities is the ordered one."""
        ordered = query = self.ordered(statement)
        while True:
            rows = session.execute(query.limit(size + 1)).all()
            yield rows
            if len(rows) <= size:
                return
            last = rows[-1][0]
            query = self._after(ordered, getattr(last, self.column.key), last.id)


def read_order(text: str, fields: Iterable[str], noun: str, *, known: Sequence[str] = ()) -> tuple[str, bool]:
    """Field and direction of an ``order_by`` such as ``create_time desc``; no field if the text is empty.

    Further fields are ignored: no two rows were created in the same microsecond.

    Args:
        noun: of the listed resources.
        known: further fields that are valid. Raises ``InvalidRequest`` for all others.
    """
    if not text.strip():
        return "", False
    terms = [(snake("".join(words[:1])), words[1:]) for words in map(str.split, text.split(","))]
    if any(name not in (*fields, *known) or direction not in ([], ["asc"], ["desc"]) for name, direction in terms):
        raise InvalidRequest(
            f"order_by: {text[:100]!r} is no order of {noun}; one of {', '.join(fields)} is, with desc or without.",
            field="order_by",
        )
    name, direction = terms[0]
    return name, direction == ["desc"]


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
    items: list[Item] = []
    last: Row | None = None
    for number, row in enumerate(rows):
        if len(items) == limit or number == scanned or is_full():
            return items, "" if last is None else token_of(last)
        if (item := item_of(row)) is not None:
            items.append(item)
        last = row
    return items, ""


def list_page(
    session: Session,
    statement: UntypedSelect,
    keyset: Keyset,
    query: ListQuery,
    view: Callable[[UntypedRow], tuple[dict[str, Any], Mapping[str, datetime | None]] | None],
    *,
    collection: str,
    vocabulary: FilterVocabulary = DEFAULT_VOCABULARY,
    scanned: int = 0,
    is_full: Callable[[], bool] = lambda: False,
) -> dict[str, Any]:
    """A page of the rows of ``statement`` that match the filter.

    With a selective filter a page may be short and still have a next page.

    Args:
        view: a row's resource, and its times by the fields of filters; ``None`` for a row that is not listed.
        scanned: as in :func:`take_page`; 0 for as many as the page has items.
    """
    test = parse_filter(query.filter, vocabulary)

    def item_of(row: UntypedRow) -> dict[str, Any] | None:
        resource = view(row)
        return resource[0] if resource is not None and test(field_reader(resource[0], **resource[1])) else None

    batches = keyset.batches(session, keyset.after_token(statement, query.page_token), query.limit)
    rows = itertools.chain.from_iterable(batches)
    limit = query.limit
    items, token = take_page(
        rows, item_of, lambda row: keyset.token(row[0]), limit, scanned=scanned or limit, is_full=is_full
    )
    return page_of(collection, items, token)
