"""How grave a line of a log is, as far as its own words tell."""

from __future__ import annotations

import re
from typing import Final, Literal

Level = Literal["debug", "info", "warning", "error", "critical"]

RANKS: Final[dict[str, int]] = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}
# A level stands near the beginning; what comes later is what the line is about.
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
# Levels in capitals anywhere near the beginning; in any case where a logger writes them: level=error, "level": "error",
# [error], error: …
_CAPITALS: Final = re.compile(rb"\b(TRACE|DEBUG|INFO|NOTICE|WARN|WARNING|ERROR|FATAL|CRITICAL|PANIC)\b")
_FIELD: Final = re.compile(rb"\b(?:level|lvl|severity)\"?[=:] ?\"?([a-z]{4,9})\b", re.IGNORECASE)
_FIRST: Final = re.compile(
    rb"^\[?(trace|debug|info|notice|warn|warning|error|exception|fatal|critical|panic)\b[\]:]", re.IGNORECASE
)
# Python's warnings, the first and the last line of a traceback, and glog, which TensorFlow and XLA write with.
_PYTHON: Final = re.compile(
    rb"^(?:Traceback \(most recent call last\)|(?:[\w.]+\.)?[A-Z]\w*(?:Error|Exception|Interrupt)\b)"
)
_WARNING: Final = re.compile(rb"^\S{1,120}:\d{1,7}: (?:[\w.]+\.)?\w*Warning: ")
_GLOG: Final = re.compile(rb"^([IWEF])\d{4} \d\d:|^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{1,6}: ([IWEF]) ")
_LETTERS: Final = {b"I": 20, b"W": 30, b"E": 40, b"F": 50}


def level_of(text: bytes) -> int | None:
    """The line's level as a number that grows with its gravity (``RANKS``); ``None``: it does not say."""
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
    """The level of a line behind one of level ``before``: indented lines go on with what the line above them said."""
    own = level_of(text)
    return before if own is None and text[:1] in (b" ", b"\t") else own
