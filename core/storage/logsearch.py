"""Searching logs by a user's regular expression, in time linear in the text whatever the expression.

RE2 (https://github.com/google/re2) has no back-tracking, hence no expression that takes for ever.
"""

from __future__ import annotations

from typing import Final

import re2  # type: ignore[import-untyped]

from core.domain.errors import InvalidRequest

PATTERN_LIMIT: Final = 1_000  # characters
_MEMORY: Final = 8 * 2**20  # RE2's own default for one expression


class LineSearch:
    """One compiled expression.

    ``can_skip`` tells by the whole block that no line of it matches: sound only without anchors, which mean the
    line's ends, not the block's; with one of them in the expression nothing is skipped.
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
                f"search is not a regular expression ({words}); write it as RE2 does, without look-around and back-references.",
                field="search",
            ) from None
        self._is_free = not any(anchor in pattern for anchor in ("^", "$", "\\A", "\\z", "\\Q"))

    def matches(self, text: bytes) -> bool:
        return self._expression.search(text) is not None

    def can_skip(self, block: bytes) -> bool:
        """True: no line in ``block`` matches."""
        return self._is_free and self._expression.search(block) is None
