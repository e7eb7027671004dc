"""Severity of a log line, as far as its text shows."""

from __future__ import annotations

import re
from typing import Final, Literal

Level = Literal["debug", "info", "warning", "error", "critical"]

RANKS: Final[dict[str, int]] = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}
# A level is near the beginning; later words are the message.
_LOOKED_AT: Final = 200
_ESCAPE: Final = re.compile(rb"\x1b\[[0-9;]{0,20}m")
_WORDS: Final[dict[bytes, int]] = {
    b"trace": 10,
    b"debug": 10,
    b"info": 20,
    b"notice": 20,
    b"warn": 30,
    b"warning": 30,
    b"error": 40,
    b"exception": 40,
    b"fatal": 50,
    b"critical": 50,
    b"panic": 50,
}
# Upper-case levels anywhere near the beginning; in any case in loggers' formats: level=error, "level": "error",
# [error], error: …
_CAPITALS: Final = re.compile(rb"\b(TRACE|DEBUG|INFO|NOTICE|WARN|WARNING|ERROR|FATAL|CRITICAL|PANIC)\b")
_FIELD: Final = re.compile(rb"\b(?:level|lvl|severity)\"?[=:] ?\"?([a-z]{4,9})\b", re.IGNORECASE)
_FIRST: Final = re.compile(
    rb"^\[?(trace|debug|info|notice|warn|warning|error|exception|fatal|critical|panic)\b[\]:]", re.IGNORECASE
)
# Python's warnings, the first and last line of a traceback, and glog, which TensorFlow and XLA use.
_PYTHON: Final = re.compile(
    rb"^(?:Traceback \(most recent call last\)|(?:[\w.]+\.)?[A-Z]\w*(?:Error|Exception|Interrupt)\b)"
)
_WARNING: Final = re.compile(rb"^\S{1,120}:\d{1,7}: (?:[\w.]+\.)?\w*Warning: ")
_GLOG: Final = re.compile(rb"^([IWEF])\d{4} \d\d:|^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{1,6}: ([IWEF]) ")
_LETTERS: Final = {b"I": 20, b"W": 30, b"E": 40, b"F": 50}


def level_of(text: bytes) -> int | None:
    """The line's severity as a number (``RANKS``, higher is more severe); ``None``: unknown."""
    text = text[:_LOOKED_AT]
    if b"\x1b" in text:
        text = _ESCAPE.sub(b"", text)
    found = _CAPITALS.search(text)
    if found is not None:
        return _WORDS[found[1].lower()]
    for expression in (_FIELD, _FIRST):
        found = expression.search(text)
        if found is not None and found[1].lower() in _WORDS:
            return _WORDS[found[1].lower()]
    if _PYTHON.match(text):
        return RANKS["error"]
    if _WARNING.match(text):
        return RANKS["warning"]
    letter = _GLOG.match(text)
    return None if letter is None else _LETTERS[letter[1] or letter[2]]


def level_after(text: bytes, before: int | None) -> int | None:
    """The severity of a line after one of severity ``before``: indented lines continue the previous line."""
    own = level_of(text)
    return before if own is None and text[:1] in (b" ", b"\t") else own
