"""List filters such as ``display_name="x" AND state="JOB_STATE_RUNNING"``.

https://google.aip.dev/160. Names in snake_case or camelCase; AND binds less than OR, as Google has it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from api.protocols.kit.json_values import parse_timestamp
from api.protocols.kit.lexer import COMPARISONS, Lexer
from api.protocols.vertex.proto import camel, snake
from core.domain.errors import InvalidRequest

_TOKEN: Final = re.compile(
    r"""\s*(?:(?P<text>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')|(?P<sign><=|>=|!=|=|<|>|:|\(|\)|-(?=[A-Za-z(]))"""
    r"""|(?P<word>[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]+(?:Z|[+-][0-9]{2}:[0-9]{2})|[^\s"'()<>=!:]+))"""
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
    if (token := parser.tokens.peek()) is not None:
        raise bad_filter(f"nothing is expected before {token.text!r}")
    return test


def count_terms(text: str) -> int:
    """Cost of a valid filter per row: the number of its values and function arguments, at least 1."""
    return max(1, sum(token.kind != "sign" for token in iter(_tokens(text).take, None)) // 2)


def _tokens(text: str) -> Lexer:
    return Lexer(text, _TOKEN, lambda rest: bad_filter(f"it cannot be read from {rest[:20]!r} on"))


@dataclass(frozen=True, slots=True)
class _Parser:
    tokens: Lexer
    vocabulary: FilterVocabulary

    def sequence(self, depth: int) -> Predicate:
        tests = [self._either(depth)]
        while (token := self.tokens.peek()) is not None and (token.kind, token.text) != ("sign", ")"):
            self.tokens.accept("AND")
            tests.append(self._either(depth))
        return tests[0] if len(tests) == 1 else AllOf(tuple(tests))

    def _either(self, depth: int) -> Predicate:
        tests = [self._term(depth)]
        while self.tokens.accept("OR"):
            tests.append(self._term(depth))
        return tests[0] if len(tests) == 1 else lambda read: any(test(read) for test in tests)

    def _term(self, depth: int) -> Predicate:
        if depth > _DEEPEST:
            raise bad_filter("it is nested too deeply")
        if self.tokens.accept("NOT", "-"):
            test = self._term(depth + 1)
            return lambda read: not test(read)
        if self.tokens.accept("("):
            test = self.sequence(depth + 1)
            if not self.tokens.accept(")"):
                raise bad_filter("a parenthesis is not closed")
            return test
        return self._restriction()

    def _restriction(self) -> Predicate:
        name = self._value("a field's name")
        if name in self.vocabulary.calls and self.tokens.accept("("):
            return self._call(name)
        sign = self.tokens.accept(*COMPARISONS, ":")
        if not sign:
            raise bad_filter(f'{name!r} is compared with nothing; write it like display_name="x"')
        value = self._value(f"a value for {name}")
        head, _, key = name.partition(".")
        field = snake(head)
        if field == "labels":
            return _label(key, sign, value)
        if field in self.vocabulary.own:
            return self.vocabulary.own[field](key, sign, value)
        if not key and field in self.vocabulary.times:
            return _time(field, sign, value)
        if not key and field in self.vocabulary.texts:
            return text_test(field, sign, value)
        raise bad_filter(f"there is no field {name!r}; there are {self.vocabulary}")

    def _call(self, name: str) -> Predicate:
        argument = self._value(f"what {name} asks for")
        if not self.tokens.accept(")"):
            raise bad_filter(f"the parenthesis of {name} is not closed")
        return self.vocabulary.calls[name](argument)

    def _value(self, what: str) -> str:
        token = self.tokens.take("word", "text")
        if token is None:
            raise bad_filter(f"{what} is missing")
        return re.sub(r"\\(.)", r"\1", token.text[1:-1]) if token.kind == "text" else token.text


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
            choice.startswith(value[:-1]) if begins else value in ("*", choice) or (sign == ":" and value in choice)
            for choice in choices
        ):
            raise bad_filter(f"{name} is one of {', '.join(choices)}, not {value[:100]!r}")
        return text_test(name, sign, value)

    return make


def _time(name: str, sign: str, value: str) -> Predicate:
    moment = parse_timestamp(value)
    if moment is None:
        raise bad_filter(f"{value[:40]!r} is no time with a zone; write it like 2026-01-31T12:00:00Z")
    if sign not in COMPARISONS:
        raise bad_filter(f"{name} is compared by {', '.join(COMPARISONS)}, not by {sign}")
    return lambda read: compare(read(name), sign, moment)


def compare(own: Any, sign: str, value: Any) -> bool:
    """``None`` equals nothing. ``sign``: of ``COMPARISONS``."""
    return sign == "!=" if own is None else bool(COMPARISONS[sign](own, value))


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
