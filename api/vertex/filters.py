"""Filters of lists: ``display_name="x" AND state="JOB_STATE_RUNNING"``, as far as jobs have what they ask for.

https://google.aip.dev/160. Names in snake_case or camelCase; AND binds less than OR, as Google has it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from api.vertex.proto import snake
from core.domain.errors import InvalidRequest

_TOKEN: Final = re.compile(
    r"""\s*(?:(?P<text>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')|(?P<sign><=|>=|!=|=|<|>|:|\(|\)|-(?=[A-Za-z(]))|(?P<word>[^\s"'()<>=!:]+))"""
)
_LONGEST: Final = 4_000
_DEEPEST: Final = 20
_TIMES: Final = frozenset({"create_time", "start_time", "end_time", "update_time"})
_TEXTS: Final = frozenset({"display_name", "state", "training_task_definition", "name"})
Look = Callable[[str], Any]  # a field in snake_case -> its value; "labels" -> the map
Test = Callable[[Look], bool]


def parse_filter(text: str) -> Test:
    """What says whether a resource is meant. Raises ``InvalidRequest``: it cannot be read."""
    if len(text) > _LONGEST:
        raise InvalidRequest(f"Invalid filter: it is longer than {_LONGEST} characters.", field="filter")
    if not text.strip():
        return lambda _look: True
    parser = _Parser(_tokens(text))
    test = parser.sequence(0)
    if parser.rest:
        raise _wrong(f"nothing is expected before {parser.rest[0].text!r}")
    return test


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
            raise _wrong(f"it cannot be read from {text[at : at + 20]!r} on")
        kind = match.lastgroup or ""
        word = match[kind]
        found.append(_Token(kind, re.sub(r"\\(.)", r"\1", word[1:-1]) if kind == "text" else word))
        at = match.end()
    return found


class _Parser:
    def __init__(self, rest: list[_Token]) -> None:
        self.rest = rest

    def sequence(self, depth: int) -> Test:
        if depth > _DEEPEST:
            raise _wrong("it is nested too deeply")
        tests = [self._either(depth)]
        while self.rest and not self._is(")"):
            if self._is("AND"):
                self.rest.pop(0)
            tests.append(self._either(depth))
        return lambda look: all(test(look) for test in tests)

    def _either(self, depth: int) -> Test:
        tests = [self._term(depth)]
        while self._is("OR"):
            self.rest.pop(0)
            tests.append(self._term(depth))
        return lambda look: any(test(look) for test in tests)

    def _term(self, depth: int) -> Test:
        if self._is("NOT") or self._is("-"):
            self.rest.pop(0)
            test = self._term(depth + 1)
            return lambda look: not test(look)
        if self._is("("):
            self.rest.pop(0)
            test = self.sequence(depth + 1)
            if not self._is(")"):
                raise _wrong("a parenthesis is not closed")
            self.rest.pop(0)
            return test
        return self._restriction()

    def _restriction(self) -> Test:
        field = self._take("a field's name")
        if not self.rest or self.rest[0].kind != "sign" or self.rest[0].text in "()":
            raise _wrong(f'{field.text!r} is compared with nothing; write it like display_name="x"')
        sign = self.rest.pop(0).text
        value = self._take(f"a value for {field.text}").text
        head, _, key = field.text.partition(".")
        name = snake(head)
        if name == "labels":
            return _label(key, sign, value)
        if key or name not in _TEXTS | _TIMES:
            raise _wrong(
                f"there is no field {field.text!r}; there are {', '.join(sorted(_TEXTS | _TIMES))} and labels.<key>"
            )
        return _time(name, sign, value) if name in _TIMES else _text(name, sign, value)

    def _take(self, what: str) -> _Token:
        if not self.rest or self.rest[0].kind == "sign":
            raise _wrong(f"{what} is missing")
        return self.rest.pop(0)

    def _is(self, text: str) -> bool:
        return bool(self.rest) and self.rest[0].kind != "text" and self.rest[0].text == text


def _label(key: str, sign: str, value: str) -> Test:
    def test(look: Look) -> bool:
        labels: Mapping[str, str] = look("labels")
        if sign == ":":
            # `labels:key` and `labels.key:*` ask whether it is there.
            return (key or value) in labels if value == "*" or not key else value in labels.get(key, "")
        return _compare(labels.get(key), sign, value)

    return test


def _text(name: str, sign: str, value: str) -> Test:
    def test(look: Look) -> bool:
        own = look(name)
        if sign == ":":
            return own is not None and (value == "*" or value in own)
        if value.endswith("*") and sign in ("=", "!="):
            return (own is not None and own.startswith(value[:-1])) == (sign == "=")
        return _compare(own, sign, value)

    return test


def _time(name: str, sign: str, value: str) -> Test:
    try:
        told = datetime.fromisoformat(value)
    except ValueError:
        raise _wrong(f"{value[:40]!r} is no time; write it like 2026-01-31T12:00:00Z") from None
    if told.tzinfo is None:
        raise _wrong(f"{value[:40]!r} has no zone; write it like 2026-01-31T12:00:00Z")
    return lambda look: _compare(look(name), sign, told)


def _compare(own: Any, sign: str, value: Any) -> bool:
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


def _wrong(what: str) -> InvalidRequest:
    return InvalidRequest(f"Invalid filter: {what}.", field="filter")
