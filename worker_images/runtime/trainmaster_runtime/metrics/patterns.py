"""Numbers in log lines: ``loss=0.31 step=20``, or what a job's own patterns say.

A pattern is plain text with names in braces where numbers stand: ``Epoch {epoch}/{epochs}: loss {loss}``. It is no
regular expression, because one of those can take for ever on a line that was made for it, and it would take the log
with it: a number that was read is never given back to be read otherwise, so that the time is linear in the line.
``{step}``, ``{steps}``, ``{epoch}`` and ``{epochs}`` tell the progress, all others are metrics.
"""

from __future__ import annotations

import re

from trainmaster_runtime.metrics.printed import PrintedProgress, counted, may_tell, shows_bar

LINE_BYTES = 1000  # the rest of a longer line is not looked at
PATTERNS = 20
_NAMES = 20  # in one pattern, or one line
_NUMBER = (
    r"[-+]?(?:[0-9]{1,20}(?:\.[0-9]{0,20})?|\.[0-9]{1,20})(?:[eE][-+]?[0-9]{1,4})?|[-+]?(?:nan|NaN|inf|Inf|Infinity)"
)
# `name=1.5` and `name: 1.5`; a name as metrics have them, not in the middle of another word.
_PAIR = re.compile(r"(?<![\w./-])([A-Za-z_][\w./-]{0,99})(?:=|: ?)(%s)(?![\w.])" % _NUMBER)
_TOTAL = re.compile(r"(?: ?/ ?| of )([0-9]{1,15})(?![\w.])")  # `step=160/200`
_STEPS = frozenset(("step", "global_step", "iteration", "iter"))
_COUNTED = _STEPS | {"epoch", "batch", "steps", "epochs", "iterations", "batches"}
_ANSI = re.compile(r"\x1b\[[0-9;]{0,20}[A-Za-z]")
_ONE_NUMBER = re.compile(_NUMBER)
_FIELD = re.compile(r"\{([A-Za-z_][\w./-]{0,99})\}")

PROGRESS = ("step", "steps", "epoch", "epochs")

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Optional, Pattern


class LinePatterns:
    """Args: ``patterns``: the job's own; none: pairs of name and value are looked for, in lines that name a step, and
    else the usual words and bars that tell how far it is.
    """

    def __init__(self, patterns: List[str]) -> None:
        self._templates = [
            _Template(pattern) for pattern in patterns[:PATTERNS] if 0 < len(_FIELD.findall(pattern)) <= _NAMES
        ]
        self.has_own = bool(patterns)
        self._printed = PrintedProgress()

    def may_match(self, line: bytes) -> bool:
        """A quick look, for the thread that must not be held up."""
        return self.has_own or b"tep" in line or b"ter" in line or b"poch" in line or may_tell(line)

    def find(self, line: bytes) -> Dict[str, float]:
        """The numbers by name; empty: the line has none for us."""
        text = _ANSI.sub("", line[:LINE_BYTES].decode("utf-8", "replace"))
        if self.has_own:
            for template in self._templates:
                found = template.find(text)
                if found is not None:
                    return found
            return {}
        # Pairs are the clearer words: what they say of steps and epochs is not read in the other way, too.
        found = _pairs(text)
        if found:
            return found
        progress = self._printed.find(text)
        # A bar is drawn again and again, with numbers rounded for it.
        if shows_bar(text):
            return progress
        metrics = _metrics(text)
        progress = progress or (counted(text) if metrics else {})
        return {**metrics, **progress} if progress else {}


def _metrics(text: str) -> Dict[str, float]:
    """Pairs of a line that names its progress in other words: `Epoch 3/10 loss=0.31`, `Epoch [3/10], Step [2/8], Loss:
    0.31`.
    """
    found: Dict[str, float] = {}
    for match in _PAIR.finditer(text):
        is_time = text[match.end() : match.end() + 1] == ":"  # `eta: 0:00:50`
        if len(found) < _NAMES and not is_time and match[1].lower() not in _COUNTED:
            found.setdefault(match[1], float(match[2]))
    return found


def _pairs(text: str) -> Dict[str, float]:
    found: Dict[str, float] = {}
    for match in _PAIR.finditer(text):
        if len(found) >= _NAMES:
            break
        name = "step" if match[1] in _STEPS else match[1]
        if name in ("step", "epoch") and name not in found:
            total = _TOTAL.match(text, match.end())
            if total is not None:
                found.setdefault(name + "s", float(total[1]))
        found.setdefault(name, float(match[2]))
    # Without a step, or an epoch that serves as one, a number in a line is only a number.
    return found if ("step" in found or "epoch" in found) and len(found) > 1 else {}


class _Template:
    """One pattern: a text, and behind it again and again a name's number and a text."""

    def __init__(self, pattern: str) -> None:
        pieces = _FIELD.split(pattern)
        self._names = pieces[1::2]
        self._texts = [_text_of(piece) for piece in pieces[::2]]

    def find(self, text: str) -> Optional[Dict[str, float]]:
        """The numbers where it stands first in ``text``; ``None``: nowhere."""
        first = self._texts[0] or _ONE_NUMBER
        begin = first.search(text)
        while begin is not None:
            found = self._numbers(text, begin.end() if self._texts[0] else begin.start())
            if found is not None:
                return dict(zip(self._names, found))
            begin = first.search(text, begin.start() + 1)
        return None

    def _numbers(self, text: str, at: int) -> Optional[List[float]]:
        found = []
        for behind in self._texts[1:]:
            number = _ONE_NUMBER.match(text, at)
            if number is None:
                return None
            end = at = number.end()
            if behind is not None:
                match = behind.match(text, end)
                if match is None:
                    # `step 12.` and `epoch 3.20`: the point may belong to the text.
                    end = text.find(".", number.start(), end)
                    match = behind.match(text, end) if end > number.start() else None
                if match is None:
                    return None
                at = match.end()
            found.append(float(text[number.start() : end]))
        return found


def _text_of(piece: str) -> Optional[Pattern[str]]:
    """Any blanks where ``piece`` has some. ``None``: there is no text."""
    if not piece:
        return None
    return re.compile(r"\s{1,100}".join(re.escape(word) for word in re.split(r"\s+", piece)))
