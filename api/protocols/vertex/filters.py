"""List filters such as ``display_name="x" AND state="JOB_STATE_RUNNING"``.

https://google.aip.dev/160. Names in snake_case or camelCase; AND binds less than OR, as Google has it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from api.protocols.vertex.proto import camel, snake
from core.domain.errors import InvalidRequest

_TOKEN: Final = re.compile(
    r"""\s*(?:(?P<text>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')|(?P<sign><=|>=|!=|=|<|>|:|\(|\)|-(?=[A-Za-z(]))|(?P<word>[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]+(?:Z|[+-][0-9]{2}:[0-9]{2})|[^\s"'()<>=!:]+))"""
)
_LONGEST: Final = 4_000
_DEEPEST: Final = 20
_TIMES: Final = frozenset({"create_time", "start_time", "end_time", "update_time"})
_TEXTS: Final = frozenset({"display_name", "training_task_definition", "name"})
FieldReader = Callable[[str], Any]  # a field in snake_case -> its value; "labels" -> the map
Predicate = Callable[[FieldReader], bool]
TestFactory = Callable[[str, str, str], Predicate]  # (what stands behind the field's point, sign, value) -> a test
FunctionFactory = Callable[[str], Predicate]  # the argument -> a test


@dataclass(frozen=True, slots=True)
class AllOf:
    """Conjunction: every test holds."""

    tests: tuple[Predicate, ...]

    def __call__(self, read: FieldReader) -> bool:
        return all(test(read) for test in self.tests)


@dataclass(frozen=True, slots=True)
class FilterVocabulary:
    """The fields (snake_case) and functions that filters of one resource type may use.

    ``own``: fields with their own test factory. ``calls``: functions such as ``in_context("…")``. ``longest``: maximal
    length of a filter in characters.
    """

    texts: Collection[str]
    times: Collection[str]
    own: Mapping[str, TestFactory] = field(default_factory=dict)
    calls: Mapping[str, FunctionFactory] = field(default_factory=dict)
    longest: int = _LONGEST

    def __str__(self) -> str:
        names = sorted({*self.texts, *self.times, *self.own})
        return ", ".join([*names, *(f'{name}("…")' for name in sorted(self.calls)), "labels.<key>"])


def job_vocabulary(states: Collection[str]) -> FilterVocabulary:
    """``states``: names of all states of the resource."""
    return FilterVocabulary(_TEXTS, _TIMES, {"state": choice_test("state", states)})


# For resources without a state: models and endpoints.
DEFAULT_VOCABULARY: Final = FilterVocabulary(
    frozenset({"display_name", "name"}), frozenset({"create_time", "update_time"})
)


def parse_filter(text: str, vocabulary: FilterVocabulary = DEFAULT_VOCABULARY) -> Predicate:
    """Compile a filter to a predicate. Raises ``InvalidRequest`` for a syntax error or an unknown field."""
    if len(text) > vocabulary.longest:
        raise InvalidRequest(f"Invalid filter: it is longer than {vocabulary.longest} characters.", field="filter")
    if not text.strip():
        return AllOf(())
    parser = _Parser(_tokens(text), vocabulary)
    test = parser.sequence(0)
    if parser.rest:
        raise bad_filter(f"nothing is expected before {parser.rest[-1].text!r}")
    return test


def count_terms(text: str) -> int:
    """Cost of a valid filter per row: the number of its values and function arguments, at least 1."""
    return max(1, sum(token.kind != "sign" for token in _tokens(text)) // 2)


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str


def _tokens(text: str) -> list[_Token]:
    found, at = [], 0
    text = text.rstrip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise bad_filter(f"it cannot be read from {text[at : at + 20]!r} on")
        kind = match.lastgroup or ""
        word = match[kind]
        found.append(_Token(kind, re.sub(r"\\(.)", r"\1", word[1:-1]) if kind == "text" else word))
        at = match.end()
    return found[::-1]


class _Parser:
    def __init__(self, rest: list[_Token], vocabulary: FilterVocabulary) -> None:
        """``rest``: unread tokens in reverse order."""
        self.rest, self.vocabulary = rest, vocabulary

    def sequence(self, depth: int) -> Predicate:
        tests = [self._either(depth)]
        while self.rest and not self._is(")"):
            if self._is("AND"):
                self.rest.pop()
            tests.append(self._either(depth))
        return tests[0] if len(tests) == 1 else AllOf(tuple(tests))

    def _either(self, depth: int) -> Predicate:
        tests = [self._term(depth)]
        while self._is("OR"):
            self.rest.pop()
            tests.append(self._term(depth))
        return tests[0] if len(tests) == 1 else lambda read: any(test(read) for test in tests)

    def _term(self, depth: int) -> Predicate:
        if depth > _DEEPEST:
            raise bad_filter("it is nested too deeply")
        if self._is("NOT") or self._is("-"):
            self.rest.pop()
            test = self._term(depth + 1)
            return lambda read: not test(read)
        if self._is("("):
            self.rest.pop()
            test = self.sequence(depth + 1)
            if not self._is(")"):
                raise bad_filter("a parenthesis is not closed")
            self.rest.pop()
            return test
        return self._restriction()

    def _restriction(self) -> Predicate:
        name = self._take("a field's name")
        if name.text in self.vocabulary.calls and self._is("("):
            return self._call(name.text)
        if not self.rest or self.rest[-1].kind != "sign" or self.rest[-1].text in "()":
            raise bad_filter(f'{name.text!r} is compared with nothing; write it like display_name="x"')
        sign = self.rest.pop().text
        value = self._take(f"a value for {name.text}").text
        head, _, key = name.text.partition(".")
        first = snake(head)
        if first == "labels":
            return _label(key, sign, value)
        if first in self.vocabulary.own:
            return self.vocabulary.own[first](key, sign, value)
        if not key and first in self.vocabulary.times:
            return _time(first, sign, value)
        if not key and first in self.vocabulary.texts:
            return text_test(first, sign, value)
        raise bad_filter(f"there is no field {name.text!r}; there are {self.vocabulary}")

    def _call(self, name: str) -> Predicate:
        self.rest.pop()
        argument = self._take(f"what {name} asks for").text
        if not self._is(")"):
            raise bad_filter(f"the parenthesis of {name} is not closed")
        self.rest.pop()
        return self.vocabulary.calls[name](argument)

    def _take(self, what: str) -> _Token:
        if not self.rest or self.rest[-1].kind == "sign":
            raise bad_filter(f"{what} is missing")
        return self.rest.pop()

    def _is(self, text: str) -> bool:
        return bool(self.rest) and self.rest[-1].kind != "text" and self.rest[-1].text == text


def _label(key: str, sign: str, value: str) -> Predicate:
    def test(read: FieldReader) -> bool:
        labels: Mapping[str, str] = read("labels")
        if sign == ":":
            # `labels:key` and `labels.key:*` test for presence.
            return (key or value) in labels if value == "*" or not key else value in labels.get(key, "")
        return compare(labels.get(key), sign, value)

    return test


def text_test(name: str, sign: str, value: str) -> Predicate:
    """Compares a text field; a ``value`` that ends in ``*`` is a prefix."""

    def test(read: FieldReader) -> bool:
        own = read(name)
        if sign == ":":
            return own is not None and (value == "*" or value in own)
        if value.endswith("*") and sign in ("=", "!="):
            return (own is not None and own.startswith(value[:-1])) == (sign == "=")
        return compare(own, sign, value)

    return test


def choice_test(name: str, choices: Collection[str]) -> TestFactory:
    """As :func:`text_test`, for an enumerated field; refuses values that no resource can have."""

    def make(key: str, sign: str, value: str) -> Predicate:
        if key:
            raise bad_filter(f"{name} has no part {key!r}")
        begins = value.endswith("*") and sign in ("=", "!=")
        if not any(
            one.startswith(value[:-1]) if begins else value in ("*", one) or (sign == ":" and value in one)
            for one in choices
        ):
            raise bad_filter(f"{name} is one of {', '.join(choices)}, not {value[:100]!r}")
        return text_test(name, sign, value)

    return make


def _time(name: str, sign: str, value: str) -> Predicate:
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        raise bad_filter(f"{value[:40]!r} is no time; write it like 2026-01-31T12:00:00Z") from None
    if moment.tzinfo is None:
        raise bad_filter(f"{value[:40]!r} has no zone; write it like 2026-01-31T12:00:00Z")
    return lambda read: compare(read(name), sign, moment)


def compare(own: Any, sign: str, value: Any) -> bool:
    """``None`` equals nothing. ``sign``: any operator except ``:``."""
    if own is None:
        return sign == "!="
    match sign:
        case "=":
            return bool(own == value)
        case "!=":
            return bool(own != value)
        case "<":
            return bool(own < value)
        case "<=":
            return bool(own <= value)
        case ">":
            return bool(own > value)
        case _:
            return bool(own >= value)


def field_reader(item: Mapping[str, Any], **times: datetime | None) -> FieldReader:
    """Reads the fields of a resource's view. ``times``: its times, which the view has as text."""

    def read(name: str) -> Any:
        if name in times:
            return times[name]
        return item.get("labels", {}) if name == "labels" else item.get(camel(name))

    return read


def bad_filter(what: str) -> InvalidRequest:
    """``what``: the filter's mistake."""
    return InvalidRequest(f"Invalid filter: {what}.", field="filter")
