"""Searching logs by a user's regular expression in linear time.

RE2 (https://github.com/google/re2) does not backtrack, hence no expression takes exponential time.
"""

from __future__ import annotations

from typing import Final

import re2  # type: ignore[import-untyped]

from core.domain.errors import InvalidRequest

PATTERN_LIMIT: Final = 1_000  # characters
_MEMORY: Final = 8 * 2**20  # RE2's own default for one expression


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
