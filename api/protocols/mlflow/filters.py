"""Filter and order expressions of MLflow's searches: parsed once, evaluated per item.

https://mlflow.org/docs/latest/ml/search/search-runs/: comparisons joined by AND, as ``metrics.loss < 0.3 AND
params.model LIKE 'res%'``. Values are read through a function: (kind, key) -> value or ``None``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import re2  # type: ignore[import-untyped]

from api.protocols.kit.lexer import COMPARISONS, Lexer
from core.domain.errors import InvalidRequest

ValueReader = Callable[[str, str], Any]
"""Reads a value: ``read("params", "lr")``. The kinds are metrics, params, tags, attributes and datasets."""

T = TypeVar("T")

_LENGTH_LIMIT: Final = 10_000
_LIST_LIMIT: Final = 1_000
_KINDS: Final = {
    **dict.fromkeys(("metric", "metrics"), "metrics"),
    **dict.fromkeys(("parameter", "parameters", "param", "params"), "params"),
    **dict.fromkeys(("tag", "tags"), "tags"),
    **dict.fromkeys(("attribute", "attributes", "attr", "run"), "attributes"),
    **dict.fromkeys(("dataset", "datasets"), "datasets"),
}
_ALIASES: Final = {"created": "start_time", "Created": "start_time", "run name": "run_name", "Run name": "run_name"}
_NUMBERS: Final = frozenset(
    {
        "start_time",
        "end_time",
        "creation_time",
        "last_update_time",
        "creation_timestamp",
        "last_updated_timestamp",
        "timestamp",
        "version_number",
    }
)
_TEXT_OPERATORS: Final = frozenset({"=", "!=", "LIKE", "ILIKE", "IN", "NOT IN"})
_TOKEN: Final = re.compile(
    r"""\s*(?:
      (?P<number>[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?(?![\w.]))
    | (?P<text>'(?:[^']|'')*'|"(?:[^"]|"")*")
    | (?P<sign><=|>=|!=|=|<|>|\(|\)|,)
    | (?P<name>[A-Za-z_]\w*(?:\.(?:`[^`]*`|"[^"]*"|[\w./:@-]+))?|`[^`]*`)
    )""",
    re.VERBOSE,
)


@dataclass(frozen=True, slots=True)
class Comparison:
    kind: str
    key: str
    sign: str
    value: Any

    def holds(self, read: ValueReader) -> bool:
        """An item without the key matches only ``IS NULL``."""
        own = read(self.kind, self.key)
        if self.sign == "IS NULL":
            return own is None
        if self.sign == "IS NOT NULL":
            return own is not None
        if isinstance(own, list):  # a run has several datasets
            return any(self._compare(item) for item in own)
        return own is not None and self._compare(own)

    def _compare(self, own: Any) -> bool:
        match self.sign:
            case "LIKE" | "ILIKE":
                return bool(self.value.fullmatch(str(own)))
            case "IN":
                return own in self.value
            case "NOT IN":
                return own not in self.value
            case sign:
                return COMPARISONS[sign](own, self.value)


@dataclass(frozen=True, slots=True)
class OrderTerm:
    kind: str
    key: str
    is_descending: bool


def parse_filter(text: str, attributes: Collection[str]) -> list[Comparison]:
    """The comparisons of a conjunction; none for an empty text.

    Args:
        attributes: valid keys without a kind.

    Raises:
        InvalidRequest: with the mistake and its position.
    """
    if len(text) > _LENGTH_LIMIT:
        raise InvalidRequest(f"filter: at most {_LENGTH_LIMIT} characters.", field="filter")
    reader = _Reader(text, attributes, "filter")
    comparisons: list[Comparison] = []
    while not reader.is_done:
        if comparisons:
            reader.take_word("AND")
        comparisons.append(reader.comparison())
    return comparisons


def parse_order(texts: Iterable[str], attributes: Collection[str]) -> list[OrderTerm]:
    """``metrics.loss ASC``; ascending unless it says otherwise. Raises like :func:`parse_filter`."""
    terms = []
    for text in texts:
        reader = _Reader(text[:_LENGTH_LIMIT], attributes, "order_by")
        kind, key = reader.identifier()
        is_descending = False
        if not reader.is_done:
            is_descending = reader.take_word("ASC", "DESC") == "DESC"
        if not reader.is_done:
            raise reader.fault()
        terms.append(OrderTerm(kind, key, is_descending))
    return terms


def matching(things: Iterable[T], filters: Sequence[Comparison], reader_of: Callable[[T], ValueReader]) -> list[T]:
    """The things of which every comparison holds."""
    return [thing for thing in things if all(item.holds(reader_of(thing)) for item in filters)]


def in_order(things: Iterable[T], orders: Iterable[OrderTerm], reader_of: Callable[[T], ValueReader]) -> list[T]:
    """``things`` sorted by ``orders``, the first being the primary; missing keys come last, NaN before them."""
    ordered = list(things)
    for order in reversed(list(orders)):

        def sort_key(thing: T, order: OrderTerm = order) -> tuple[int, Any]:
            value = reader_of(thing)(order.kind, order.key)
            if isinstance(value, list):
                value = value[0] if value else None
            if value is None:
                return (2, 0)
            return (1, 0) if value != value else (0, value)  # noqa: PLR0124 (NaN)

        have = [(sort_key(thing), thing) for thing in ordered]
        plain = [pair for pair in have if pair[0][0] == 0]
        plain.sort(key=lambda pair: pair[0][1], reverse=order.is_descending)
        rest = sorted((pair for pair in have if pair[0][0] != 0), key=lambda pair: pair[0][0])
        ordered = [thing for _, thing in (*plain, *rest)]
    return ordered


class _Reader:
    """A recursive-descent parser."""

    def __init__(self, text: str, attributes: Collection[str], field: str) -> None:
        self._attributes, self._field = attributes, field
        self._tokens = Lexer(text, _TOKEN, lambda _rest: self.fault())

    @property
    def is_done(self) -> bool:
        return not self._tokens.rest

    def fault(self, why: str = "cannot be read") -> InvalidRequest:
        rest = self._tokens.rest[:40].strip()
        where = f"at {rest!r}" if rest else "at its end"
        return InvalidRequest(
            f"{self._field} {why} {where}; write comparisons such as metrics.loss < 0.3 joined by AND.",
            field=self._field,
        )

    def take_word(self, *words: str) -> str:
        token = self._tokens.take("name")
        if token is None or token.text.upper() not in words:
            raise self.fault(f"lacks {' or '.join(words)}")
        return token.text.upper()

    def identifier(self) -> tuple[str, str]:
        token = self._tokens.take("name")
        if token is None:
            raise self.fault("lacks a name such as params.lr")
        head, dot, key = token.text.partition(".")
        if not dot:
            key = _bare(head)
            key = _ALIASES.get(key, key)
            if key not in self._attributes:
                raise self.fault(f"names {key!r}, which is none of {', '.join(sorted(self._attributes))},")
            return "attributes", key
        if head not in _KINDS:
            raise self.fault(f"names {head!r}, which is none of metrics, params, tags, attributes and datasets,")
        key = _bare(key)
        if _KINDS[head] == "attributes":
            key = _ALIASES.get(key, key)
            if key not in self._attributes:
                raise self.fault(
                    f"names the attribute {key!r}, which is none of {', '.join(sorted(self._attributes))},"
                )
        return _KINDS[head], key

    def comparison(self) -> Comparison:
        kind, key = self.identifier()
        sign = self._sign()
        if sign.startswith("IS"):
            return Comparison(kind, key, sign, None)
        is_number = kind == "metrics" or (kind == "attributes" and key in _NUMBERS)
        if is_number and sign not in COMPARISONS:
            raise self.fault(f"compares the number {key} by {sign}")
        if not is_number and sign not in _TEXT_OPERATORS:
            raise self.fault(f"compares the text {key} by {sign}")
        if sign in ("IN", "NOT IN"):
            return Comparison(kind, key, sign, frozenset(self._texts()))
        if is_number:
            return Comparison(kind, key, sign, float(self._value("number", f"compares {key} with no number")))
        value: Any = _bare(self._value("text", f"compares {key} with no text in quotes"))
        if sign in ("LIKE", "ILIKE"):
            value = _pattern(value, ignores_case=sign == "ILIKE")
        return Comparison(kind, key, sign, value)

    def _sign(self) -> str:
        if sign := self._tokens.accept(*COMPARISONS):
            return sign
        match word := self.take_word("LIKE", "ILIKE", "IN", "NOT", "IS", *COMPARISONS):
            case "NOT":
                return f"NOT {self.take_word('IN')}"
            case "IS" if self.take_word("NULL", "NOT") == "NULL":
                return "IS NULL"
            case "IS":
                self.take_word("NULL")
                return "IS NOT NULL"
        return word

    def _texts(self) -> list[str]:
        if not self._tokens.accept("("):
            raise self.fault("lacks a list such as ('a', 'b')")
        texts: list[str] = []
        while len(texts) <= _LIST_LIMIT:
            texts.append(_bare(self._value("text", "has a list with something that is not in quotes")))
            if self._tokens.accept(")"):
                return texts
            if not self._tokens.accept(","):
                raise self.fault("has a list without its end")
        raise self.fault(f"has a list with more than {_LIST_LIMIT} values")

    def _value(self, kind: str, fault: str) -> str:
        token = self._tokens.take(kind)
        if token is None:
            raise self.fault(fault)
        return token.text


def _bare(text: str) -> str:
    """The text without quotes."""
    if len(text) >= 2 and text[0] == text[-1] and text[0] in "`'\"":
        quote = text[0]
        return text[1:-1].replace(quote * 2, quote)
    return text


def _pattern(text: str, *, ignores_case: bool) -> Any:
    """SQL's LIKE: ``%`` is any text, ``_`` any character. RE2 runs in linear time for every pattern."""
    parts = ["." if c == "_" else ".*" if c == "%" else re2.escape(c) for c in text]
    return re2.compile(f"(?s{'i' if ignores_case else ''}){''.join(parts)}")
