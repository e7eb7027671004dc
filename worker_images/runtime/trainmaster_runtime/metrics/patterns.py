"""Numbers in log lines: what a job's own patterns say, or else what training programs print (see ``printed``).

A pattern is plain text with names in braces where numbers stand: ``Epoch {epoch}/{epochs}: loss {loss}``. It is no
regular expression, because one of those can take for ever on a line that was made for it, and it would take the log
with it: a number that was read is never given back to be read otherwise, so that the time is linear in the line.
``{step}``, ``{steps}``, ``{epoch}`` and ``{epochs}`` tell the progress, all others are metrics.
"""

from __future__ import annotations

import re

from trainmaster_runtime.metrics.named_numbers import (
    NUMBER,
    has_result,
    is_code,
    is_measure,
    named_spans,
    names_settings,
)
from trainmaster_runtime.metrics.printed import PrintedMetrics

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Optional, Pattern, Tuple

LINE_BYTES = 1000  # the rest of a longer line is not looked at
PATTERNS = 20
_NAMES = 20  # in one pattern
_ANSI = re.compile(r"\x1b\[[0-9;?]{0,20}[A-Za-z]")
_ANY_NUMBER = re.compile(NUMBER)
_GROUPED_NUMBER = re.compile(r"[-+]?[1-9]\d{0,2}(?:,\d{3}){1,5}(?:\.\d{1,20})?(?!\d|,\d)")
_COUNT = re.compile(
    r"(?<![\w/-])(?:global[ _]?)?(?:(?P<epoch>ep(?:och)?s?)|steps?|iter(?:ation)?s?|it|batch(?:es)?|updates?|rounds?"
    r"|episodes?|timesteps?)[\s:=#\[(]{1,6}(?P<done>\d{1,12})(?:\s?(?:/|of)\s?(?P<all>\d{1,12}))?(?![\w/]|[.,]\d)",
    re.IGNORECASE,
)
_FIELD = re.compile(r"\{([A-Za-z_][\w./-]{0,99})\}")
# How rows of numbers, records, lists and evaluation lines of boosting begin.
_BEGINNING = re.compile(
    rb"(?:\x1b\[[0-9;]{0,10}[A-Za-z]){0,3} {0,60}(?:[\[{|*]|\d{1,9}[ \t:/]|Class |all |[a-z_]{1,60} {0,40}= |-{30}"
    rb"|Average (?:Precision|Recall) )"
    rb"|\xe2\x94[\x82\x83]|(?:Test|Val|Eval)[a-z]{0,8} [A-Z]?[a-z]{0,8}:"
)
_FIRST_BYTES = frozenset(b"TVE\x1b [{|*-0123456789\xe2")
# The beginnings of lines of loggers: times, levels, names of modules, ranks.
_PREFIX = re.compile(
    r"^(?:\s{0,4}(?:"
    r"\[?\d{4}[-/]\d\d[-/]\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?(?: [\w.-]{1,60}(?=\]))?\]?"
    r"|\[?(?:\d\d/\d\d )?\d\d:\d\d:\d\d(?:[.,]\d{1,9})?\]?"
    r"|[IWEF]\d{4} \d\d:\d\d:\d\d\.\d{1,9}\s{1,8}\d{1,12} [\w./-]{1,80}:\d{1,6}\]"
    r"|\[?(?:default|rank ?|Rank )(?P<rank>\d{1,6})\]:?"
    r"|\[?\b(?:DEBUG|INFO|NOTICE|WARNING)\b\]?(?::[\w.]{1,60}:)?"
    r"|\[[\w.]{1,60}:\d{1,6}(?::\w{1,60})?\]|\([\w.]{1,60} \d{1,6}\):"
    r"|(?!(?:train|valid|val|test|eval)\b)"
    r"[A-Za-z_][\w.]{0,60}(?: [-|] |:\d{1,6} )(?=\s{0,8}(?:[A-Z]{4,8}\b|[A-Za-z({\[]))"
    r")[ \t]{0,8}(?:[-|:][ \t]{1,4})?){1,6}"
)
_LOGGER = re.compile(r"\d\d:\d\d|INFO|DEBUG|WARNING|[Rr]ank|default\d")
_SUGGESTIONS = 3
_SUGGESTED_CHARS = 200

PROGRESS = ("step", "steps", "epoch", "epochs")


class LinePatterns:
    """Args: ``patterns``: the job's own; none: what training programs print is read.

    ``suggestions``: patterns for lines that look like metrics but were not read, by line.
    """

    def __init__(self, patterns: List[str]) -> None:
        self._templates = [
            _Template(pattern) for pattern in patterns[:PATTERNS] if 0 < len(_FIELD.findall(pattern)) <= _NAMES
        ]
        self.has_own = bool(patterns)
        self._printed = PrintedMetrics()
        self.suggestions: Dict[str, str] = {}

    @property
    def is_bar(self) -> bool:
        """Whether the last line was a bar that will be drawn again."""
        return self._printed.is_bar

    def may_match(self, line: bytes) -> bool:
        """A quick look, for the thread that must not be held up."""
        return (
            self.has_own
            or b"oss" in line
            or b"poch" in line
            or b"tep" in line
            or b"ter" in line
            or b"cc" in line
            or b"%|" in line
            or b"score" in line
            or b"pisode" in line
            or b"EPOCH" in line
            or b"STEP" in line
            or b'", line ' in line
            or (line[:1] != b"" and line[0] in _FIRST_BYTES and _BEGINNING.match(line) is not None)
        )

    def find(self, line: bytes) -> Dict[str, float]:
        """The numbers by name; empty: the line has none for us."""
        text = _ANSI.sub("", line[:LINE_BYTES].decode("utf-8", "replace"))
        stripped, rank = without_prefix(text)
        if rank and not self.has_own:
            return {}  # another process's copy in the same stream
        values = self._find_own(text) if self.has_own else self._printed.find(stripped)
        if len(self.suggestions) < _SUGGESTIONS and not any(name not in PROGRESS for name in values):
            self._suggest(stripped.strip())
        return values

    def finish(self) -> Dict[str, float]:
        """What the last lines leave, when there are no more."""
        return {} if self.has_own else self._printed.finish()

    def _find_own(self, text: str) -> Dict[str, float]:
        for template in self._templates:
            values = template.find(text)
            if values is not None:
                return values
        return {}

    def _suggest(self, text: str) -> None:
        """Remember a line with a number behind a metric's name, and the pattern that would read it."""
        pattern = "" if names_settings(text) or is_code(text) else _suggested(text)
        if pattern and pattern.isprintable() and pattern not in self.suggestions.values():
            self.suggestions[text[:_SUGGESTED_CHARS]] = pattern


def _suggested(text: str) -> str:
    """The pattern with most of the line's metrics and counts among those without another number in between."""
    best, most = "", 0.0
    for stretch in _stretches(text, _fields(text)):
        while stretch and not stretch[-1][3]:
            stretch.pop()
        pattern, end = "", 0
        names = []  # type: List[str]
        for place, (name, start, behind, _) in enumerate(stretch):
            # Numbers before the first name differ from line to line.
            between = (
                text[end:start] if pattern else re.sub(r"^.*[\d{}]\S*\s{0,20}", "", text[max(0, start - 60) : start])
            )
            if not between and not pattern:
                continue
            if not between or len(pattern) + len(between) + len(name) > _SUGGESTED_CHARS - 10:
                break
            repeats = sum(name == other for other, _, _, _ in stretch[:place])
            names.append(name + "_%d" % (repeats + 1) if repeats else name)
            pattern += between + "{" + names[-1] + "}"
            end = behind
        weight = len(names) if has_result(names) else 0.5 if any(map(is_measure, names)) else 0
        if weight > most:
            best, most = pattern, weight
    return best


def _fields(text: str) -> List[Tuple[str, int, int, bool]]:
    """Name, beginning and end of the counts and the named numbers, in their order, and whether they are of interest."""
    fields = []  # type: List[Tuple[str, int, int, bool]]
    for match in _COUNT.finditer(text[:300]):
        name = "epoch" if match["epoch"] else "step"
        if all(name != other for other, _, _, _ in fields):
            fields.append((name, *match.span("done"), True))
            if match["all"] is not None:
                fields.append((name + "s", *match.span("all"), True))
    taken = {start for _, start, _, _ in fields}
    return sorted(fields + [span for span in named_spans(text) if span[1] not in taken], key=lambda field: field[1])


def _stretches(text: str, fields: List[Tuple[str, int, int, bool]]) -> List[List[Tuple[str, int, int, bool]]]:
    """Fields between which the text has no other number; each stretch begins with one of interest."""
    stretches = []  # type: List[List[Tuple[str, int, int, bool]]]
    end = 0
    for field in fields:
        if stretches and stretches[-1] and not re.search(r"[\d{}]", text[end : field[1]]):
            stretches[-1].append(field)
        else:
            stretches.append([field] if field[3] else [])
        end = field[2]
    return stretches


def without_prefix(text: str) -> Tuple[str, int]:
    """The text behind what a logger or launcher writes before it, and the rank that it names (0: none)."""
    match = _PREFIX.match(text[:300]) if _LOGGER.search(text[:80]) else None
    if match is None:
        return text, 0
    return text[match.end() :], int(match["rank"] or 0)


class _Template:
    """One pattern: a text, and behind it again and again a name's number and a text."""

    def __init__(self, pattern: str) -> None:
        pieces = _FIELD.split(pattern)
        self._names = pieces[1::2]
        self._texts = [_text_of(piece) for piece in pieces[::2]]

    def find(self, text: str) -> Optional[Dict[str, float]]:
        """The numbers where it stands first in ``text``; ``None``: nowhere."""
        first = self._texts[0] or _ANY_NUMBER
        begin = first.search(text)
        while begin is not None:
            values = self._numbers(text, begin.end() if self._texts[0] else begin.start())
            if values is not None:
                return dict(zip(self._names, values))
            begin = first.search(text, begin.start() + 1)
        return None

    def _numbers(self, text: str, at: int) -> Optional[List[float]]:
        numbers = []
        for behind in self._texts[1:]:
            number = _GROUPED_NUMBER.match(text, at) if behind is None or behind.match(",") is None else None
            number = number or _ANY_NUMBER.match(text, at)
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
            numbers.append(float(text[number.start() : end].replace(",", "")))
        return numbers


def _text_of(piece: str) -> Optional[Pattern[str]]:
    """Any blanks where ``piece`` has some. ``None``: there is no text."""
    if not piece:
        return None
    return re.compile(r"\s{1,100}".join(re.escape(word) for word in re.split(r"\s+", piece)))
