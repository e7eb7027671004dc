"""Numbers in log lines: ``loss=0.31 step=20``, or what a job's own patterns say.

A pattern is plain text with names in braces where numbers stand: ``Epoch {epoch}/{epochs}: loss {loss}``. It is no regular
expression, because one of those can take for ever on a line that was made for it, and it would take the log with it:
what is made of a pattern here takes time linear in the line. ``{step}``, ``{steps}``, ``{epoch}`` and ``{epochs}`` tell the
progress, all others are metrics.
"""

from __future__ import annotations

import re

LINE_BYTES = 1000  # the rest of a longer line is not looked at
PATTERNS = 20
_NAMES = 20  # in one pattern, or one line
_NUMBER = (
    r"[-+]?(?:[0-9]{1,20}(?:\.[0-9]{0,20})?|\.[0-9]{1,20})(?:[eE][-+]?[0-9]{1,4})?|[-+]?(?:nan|NaN|inf|Inf|Infinity)"
)
# `name=1.5` and `name: 1.5`; a name as metrics have them, not in the middle of another word.
_PAIR = re.compile(r"(?<![\w./-])([A-Za-z_][\w./-]{0,99})(?:=|: ?)(%s)(?![\w.])" % _NUMBER)
_STEPS = frozenset(("step", "global_step", "iteration", "iter"))
_ANSI = re.compile(r"\x1b\[[0-9;]{0,20}[A-Za-z]")
_FIELD = re.compile(r"\{([A-Za-z_][\w./-]{0,99})\}")

PROGRESS = ("step", "steps", "epoch", "epochs")

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Pattern, Tuple


class LinePatterns:
    """Args: ``patterns``: the job's own; none: pairs of name and value are looked for, in lines that name a step."""

    def __init__(self, patterns: List[str]) -> None:
        self._own = [compiled for compiled in map(_compiled, patterns[:PATTERNS]) if compiled is not None]
        self.has_own = bool(patterns)

    def may_match(self, line: bytes) -> bool:
        """A quick look, for the thread that must not be held up."""
        return self.has_own or b"step" in line or b"iter" in line or b"epoch" in line

    def find(self, line: bytes) -> Dict[str, float]:
        """The numbers by name; empty: the line has none for us."""
        text = _ANSI.sub("", line[:LINE_BYTES].decode("utf-8", "replace"))
        if self.has_own:
            for expression, names in self._own:
                match = expression.search(text)
                if match is not None:
                    return {name: float(value) for name, value in zip(names, match.groups())}
            return {}
        return _pairs(text)


def _pairs(text: str) -> Dict[str, float]:
    found: Dict[str, float] = {}
    for match in _PAIR.finditer(text):
        if len(found) >= _NAMES:
            break
        found.setdefault("step" if match[1] in _STEPS else match[1], float(match[2]))
    # Without a step, or an epoch that serves as one, a number in a line is only a number.
    return found if ("step" in found or "epoch" in found) and len(found) > 1 else {}


def _compiled(pattern: str) -> Tuple[Pattern[str], List[str]] | None:
    names = _FIELD.findall(pattern)
    if not names or len(names) > _NAMES:
        return None
    parts = []
    for number, piece in enumerate(_FIELD.split(pattern)):
        if number % 2:
            parts.append("(%s)" % _NUMBER)
        else:
            # Any blanks where the pattern has some.
            parts.append(r"\s{1,100}".join(re.escape(word) for word in re.split(r"\s+", piece)))
    return re.compile("".join(parts)), names
