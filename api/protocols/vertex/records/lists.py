"""Lists of records: filters, order, pagination."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from sqlalchemy import exists
from sqlalchemy.orm import InstrumentedAttribute, aliased

from api.protocols.vertex.filters import (
    AllOf,
    FieldReader,
    FilterVocabulary,
    Predicate,
    TestFactory,
    bad_filter,
    choice_test,
    compare,
    count_terms,
    parse_filter,
    text_test,
)
from api.protocols.vertex.paging import Keyset, ListQuery, read_order, take_page
from api.protocols.vertex.proto import snake
from api.protocols.vertex.records.kinds import RecordKind, enum
from api.protocols.vertex.records.principals import RecordTransaction
from api.protocols.vertex.records.service import fields_of
from core.db.engine import UntypedSelect
from core.db.repositories import vertex_records
from core.db.tables import VertexLink, VertexRecord

# Rows that one page may scan; the next page continues after them.
_SCANNED: Final = 5_000
# Rows times the filter's cost per row: with a long filter a page scans fewer rows.
COMPARISON_LIMIT: Final = 500_000
MIN_SCANNED_ROWS: Final = 100  # rows that are fetched and scanned at least
_DATABASE_TERMS: Final = (
    20  # terms of a filter that the database evaluates; each row is then tested by the whole filter
)
_FILTER_LIMIT: Final = 60_000  # characters: clients list each context by its full name
_ORDERS: Final[dict[str, InstrumentedAttribute[Any]]] = {
    "create_time": VertexRecord.created_at,
    "update_time": VertexRecord.updated_at,
    "display_name": VertexRecord.display_name,
    "name": VertexRecord.name,
}
# Filter field -> (kind of link, whether the other record is the parent).
_LINKS: Final[dict[str, tuple[vertex_records.LinkKind, bool]]] = {
    "parent_contexts": ("child", True),
    "child_contexts": ("child", False),
    "in_context": ("member", True),
}


@dataclass(frozen=True, slots=True)
class ColumnEquals:
    """A column has this value. The database can evaluate it."""

    column: str
    value: str

    def __call__(self, read: FieldReader) -> bool:
        return bool(read(self.column) == self.value)


@dataclass(frozen=True, slots=True)
class LinkedTo:
    """The record is linked to a context. The database can evaluate it."""

    field: str
    name: str  # the context's whole name; "*": any

    def __call__(self, read: FieldReader) -> bool:
        names = read(self.field)
        return bool(names) if self.name == "*" else self.name in names


def vocabulary(kind: RecordKind) -> FilterVocabulary:
    """Filter fields of a record kind."""
    texts = {snake(name) for name, read in kind.fields.items() if not isinstance(read, enum)} - {
        "labels",
        "metadata",
        "display_name",
        "schema_title",
        "is_default",
    }
    own: dict[str, TestFactory] = {name: _same(name) for name in ("display_name", "schema_title") if _has(kind, name)}
    if "isDefault" in kind.fields:
        own["is_default"] = _flag("is_default")
    if "metadata" in kind.fields:
        own["metadata"] = _metadata
    for name, read in kind.fields.items():
        if isinstance(read, enum):
            own[snake(name)] = choice_test(snake(name), read.names.values())
    calls: dict[str, Callable[[str], Predicate]] = {}
    if kind.noun == "contexts":
        own |= {name: _linked(name) for name in ("parent_contexts", "child_contexts")}
    elif kind.noun in ("artifacts", "executions"):
        calls["in_context"] = lambda name: LinkedTo("in_context", name)
    return FilterVocabulary({*texts, "name"}, {"create_time", "update_time"}, own, calls, _FILTER_LIMIT)


def list_records(
    tx: RecordTransaction, kind: RecordKind, collection: str, query: ListQuery
) -> tuple[list[VertexRecord], str]:
    """A page, and the token of the next one; empty on the last one. By default the oldest first.

    With a selective filter a page may be short, even empty, and still have a next page. Raises ``InvalidRequest``.
    """
    test = parse_filter(query.filter, vocabulary(kind))
    keyset = _order(query.order_by)
    statement = vertex_records.records_in(tx.scope, collection)
    for term in itertools.islice(_database_terms(test), _DATABASE_TERMS):
        statement = _filtered(tx, statement, term)
    statement = keyset.after_token(statement, query.page_token)
    scanned = max(MIN_SCANNED_ROWS, min(_SCANNED, COMPARISON_LIMIT // count_terms(query.filter)))

    def read_rows() -> Iterator[tuple[VertexRecord, _Batch]]:
        for rows in keyset.batches(tx.session, statement, min(max(query.limit, MIN_SCANNED_ROWS), scanned)):
            batch = _Batch(tx, [row for (row,) in rows])
            yield from ((row, batch) for row in batch.rows)

    return take_page(
        read_rows(),
        lambda pair: pair[0] if test(pair[1].read(pair[0])) else None,
        lambda pair: keyset.token(pair[0]),
        query.limit,
        scanned=scanned,
    )


class _Batch:
    """Rows that are tested together; their links are loaded once, and only if the filter uses them."""

    def __init__(self, tx: RecordTransaction, rows: Sequence[VertexRecord]) -> None:
        self.tx, self.rows = tx, rows

    def read(self, row: VertexRecord) -> FieldReader:
        fields = {snake(name): value for name, value in fields_of(row).items()}

        def value(name: str) -> Any:
            match name:
                case "create_time":
                    return row.created_at
                case "update_time":
                    return row.updated_at
                case "name":
                    return self.tx.name_of_record(row)
                case "labels" | "metadata":
                    return fields.get(name, {})
                case "parent_contexts":
                    return self.parents[row.id]
                case "child_contexts":
                    return self.children[row.id]
                case "in_context":
                    return self.contexts[row.id]
                case _:
                    return fields.get(name, "")

        return value

    @cached_property
    def parents(self) -> dict[str, frozenset[str]]:
        return self._names(vertex_records.above(self.tx.session, self.rows, "child"))

    @cached_property
    def children(self) -> dict[str, frozenset[str]]:
        return self._names(vertex_records.below(self.tx.session, self.rows, "child"))

    @cached_property
    def contexts(self) -> dict[str, frozenset[str]]:
        return self._names(vertex_records.above(self.tx.session, self.rows, "member"))

    def _names(self, linked: dict[str, list[VertexRecord]]) -> dict[str, frozenset[str]]:
        return {row_id: frozenset(map(self.tx.name_of_record, others)) for row_id, others in linked.items()}


def _order(text: str) -> Keyset:
    """By default the oldest first. Raises ``InvalidRequest``."""
    field, is_descending = read_order(text, _ORDERS, "these resources")
    return Keyset(_ORDERS[field or "create_time"], VertexRecord.id, is_descending)


# --- filter terms ----------------------------------------------------------------------------------------------------


def _database_terms(test: Predicate) -> Iterator[ColumnEquals | LinkedTo]:
    """Necessary terms of the filter that the database can evaluate."""
    if isinstance(test, ColumnEquals | LinkedTo):
        yield test
    elif isinstance(test, AllOf):
        for part in test.tests:
            yield from _database_terms(part)


def _filtered(tx: RecordTransaction, statement: UntypedSelect, term: ColumnEquals | LinkedTo) -> UntypedSelect:
    if isinstance(term, ColumnEquals):
        return statement.where(getattr(VertexRecord, term.column) == term.value)
    if term.name == "*":
        return statement
    kind, is_above = _LINKS[term.field]
    other = aliased(VertexRecord)
    own, others = (
        (VertexLink.child_id, VertexLink.parent_id) if is_above else (VertexLink.parent_id, VertexLink.child_id)
    )
    collection, _, name = (tx.path_of(term.name) or "").rpartition("/")
    return statement.where(
        exists().where(
            own == VertexRecord.id,
            VertexLink.kind == kind,
            others == other.id,
            other.project_id == tx.scope.project_id,
            other.location == tx.scope.location,
            other.collection == collection,
            other.name == name,
        )
    )


def _has(kind: RecordKind, name: str) -> bool:
    return name in {snake(field) for field in kind.fields}


def _same(name: str) -> TestFactory:
    def make(key: str, sign: str, value: str) -> Predicate:
        _demand_no_key(name, key)
        return ColumnEquals(name, value) if sign == "=" and not value.endswith("*") else text_test(name, sign, value)

    return make


def _linked(name: str) -> TestFactory:
    def make(key: str, sign: str, value: str) -> Predicate:
        _demand_no_key(name, key)
        if sign not in (":", "="):
            raise bad_filter(f'{name} is asked for as {name}:"<name of a context>"')
        return LinkedTo(name, value)

    return make


def _flag(name: str) -> TestFactory:
    def make(key: str, sign: str, value: str) -> Predicate:
        _demand_no_key(name, key)
        if sign not in ("=", "!=") or value.lower() not in ("true", "false"):
            raise bad_filter(f"{name} is true or false, as in {name}=true")
        expected = (value.lower() == "true") == (sign == "=")
        return lambda read: bool(read(name)) == expected

    return make


def _metadata(key: str, sign: str, value: str) -> Predicate:
    """``metadata.<name>.number_value > 0.9``, and so string_value and bool_value."""
    path = key.split(".")
    kinds: dict[str, Callable[[str], Any]] = {"number_value": float, "string_value": str, "bool_value": _truth}
    if len(path) < 2 or path[-1] not in kinds or sign == ":":
        raise bad_filter(
            'metadata is asked for as metadata.<name>.number_value > 0.9 (or string_value="x", bool_value=true)'
        )
    try:
        expected = kinds[path[-1]](value)
    except ValueError:
        raise bad_filter(f"{value[:40]!r} is no {path[-1]}") from None
    own = {"number_value": (int, float), "string_value": (str,), "bool_value": (bool,)}[path[-1]]

    def test(read: FieldReader) -> bool:
        own_value = read("metadata")
        for name in path[:-1]:
            own_value = own_value.get(name) if isinstance(own_value, dict) else None
        is_own = isinstance(own_value, own) and (bool in own or not isinstance(own_value, bool))
        return is_own and compare(own_value, sign, expected)

    return test


def _truth(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(text)
    return text.lower() == "true"


def _demand_no_key(name: str, key: str) -> None:
    if key:
        raise bad_filter(f"{name} has no part {key!r}")
