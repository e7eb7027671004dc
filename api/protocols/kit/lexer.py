"""The tokens of a filter, an order or a field mask, read one after the other, and the comparisons of filters."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from core.domain.errors import InvalidRequest

COMPARISONS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "=": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}


@dataclass(frozen=True, slots=True)
class Lexeme:
    """``kind``: the name of its group in the pattern. ``end``: its end in the text."""

    kind: str
    text: str
    end: int


class Lexer:
    """Reads ``text`` from its beginning.

    Args:
        pattern: a group for each kind of token, after any blanks; ``text`` is the kind of quoted text.
        unreadable: the error for the rest of a text that begins with no token.
    """

    def __init__(self, text: str, pattern: re.Pattern[str], unreadable: Callable[[str], InvalidRequest]) -> None:
        self._text, self._pattern, self._unreadable = text.rstrip(), pattern, unreadable
        self._at = 0

    @property
    def rest(self) -> str:
        return self._text[self._at :]

    def peek(self) -> Lexeme | None:
        """The next token; ``None`` at the end. Raises the error ``unreadable``."""
        if not self.rest:
            return None
        match = self._pattern.match(self._text, self._at)
        if match is None or match.lastgroup is None:
            raise self._unreadable(self.rest)
        return Lexeme(match.lastgroup, match[match.lastgroup], match.end())

    def take(self, *kinds: str) -> Lexeme | None:
        """The next token, if it is of one of these kinds (none given: of any); then the reader is behind it."""
        token = self.peek()
        if token is None or (kinds and token.kind not in kinds):
            return None
        self._at = token.end
        return token

    def accept(self, *words: str) -> str:
        """As ``take``, for one of these signs or words; empty if another token is next."""
        token = self.peek()
        if token is None or token.kind == "text" or token.text not in words:
            return ""
        self._at = token.end
        return token.text
