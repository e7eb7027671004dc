"""Filters of log lines: severity, as far as a line's text shows it, and a user's regular expression in linear time.

RE2 (https://github.com/google/re2) does not backtrack, hence no expression takes exponential time.
"""

from __future__ import annotations

import re
from typing import Final, Literal

import re2  # type: ignore[import-untyped]

from core.domain.errors import InvalidRequest

PATTERN_LIMIT: Final = 1_000  # characters
_MEMORY: Final = 8 * 2**20  # RE2's own default for one expression

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


class LineSearch:
    """One compiled expression.

    ``can_skip`` decides for a whole block at once that no line of it matches: some hundred times faster than line by
    line. It searches for the expression without its anchors, which refer to ends of lines and not of the block; every
    match with anchors is a match without.
    """

    def __init__(self, pattern: str) -> None:
        """Raises ``InvalidRequest``: too long, or not an expression."""
        if len(pattern) > PATTERN_LIMIT:
            raise InvalidRequest(f"search: at most {PATTERN_LIMIT} characters.", field="search")
        options = re2.Options()
        options.max_mem = _MEMORY
        options.log_errors = False
        try:
            self._expression = re2.compile(pattern, options)
        except (re2.error, UnicodeEncodeError) as error:
            reason = error.args[0] if error.args and isinstance(error, re2.error) else b"not text"
            words = reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)
            raise InvalidRequest(
                f"search is not a regular expression ({words}); write it as RE2 does, without look-around and "
                "back-references.",
                field="search",
            ) from None
        self._loose = self._expression
        loose = without_anchors(pattern)
        if loose != pattern:
            try:
                self._loose = None if loose is None else re2.compile(loose, options)
            except re2.error:  # a quantified anchor
                self._loose = None

    def matches(self, text: bytes) -> bool:
        return self._expression.search(text) is not None

    def can_skip(self, block: bytes) -> bool:
        """True: no line in ``block`` matches."""
        return self._loose is not None and self._loose.search(block) is None


def without_anchors(pattern: str) -> str | None:
    """``pattern`` without its anchors: matches everything that ``pattern`` matches, and more.

    ``None``: quoted in a way that is not parsed here.
    """
    parts: list[str] = []
    position, class_start = 0, -1
    while position < len(pattern):
        character = pattern[position]
        pair = pattern[position : position + 2]
        width = 1
        if character == "\\":
            if pair in ("\\Q", "\\E", "\\C", "\\p", "\\P"):  # \p{^Greek} is no anchor
                return None
            width = 2
            if class_start < 0 and pair in ("\\A", "\\z"):
                position += 2
                continue
        elif class_start >= 0:
            if pair == "[:":  # [[:alpha:]]
                width = max(2, pattern.find(":]", position) + 2 - position)
            elif character == "]" and position > class_start:
                class_start = -1
        elif character == "[":
            # A bracket right after the opening one is literal.
            class_start = position + (2 if pair == "[^" else 1)
        elif character in "^$":
            position += 1
            continue
        parts.append(pattern[position : position + width])
        position += width
    return "".join(parts)
