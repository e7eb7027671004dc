"""Numbers in log lines: ``loss=0.31 step=20``, or what a job's own patterns say; and how far a training is, from what
the field prints: ``step 115/600``, ``Epoch [3/10], Step [115/600]``, bars of tqdm and Keras.

A pattern is plain text with names in braces where numbers stand: ``Epoch {epoch}/{epochs}: loss {loss}``. It is no
regular expression, because one of those can take for ever on a line that was made for it, and it would take the log
with it: a number that was read is never given back to be read otherwise, so that the time is linear in the line.
``{step}``, ``{steps}``, ``{epoch}`` and ``{epochs}`` tell the progress, all others are metrics.

A count within an epoch becomes a part of the whole, where the number of epochs is known. Counts of something else
(downloads, validation, layers of an image) and counts that begin again and again are not taken for the job's progress.
All regular expressions are bounded, so that the time is linear in the line.
"""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Match, Optional, Pattern, Tuple

_OF = r"(?P<done>\d{1,15})\s{0,20}(?:/|of)\s{0,20}(?P<all>\d{1,15})(?![\w.%/])"
_GAP = r"[\s:=#(\[-]{0,10}"
_EPOCH = re.compile(
    r"(?<![\w/-])epochs?" + _GAP + r"(\d{1,9})(?:\s{0,5}(?:/|of)\s{0,5}(\d{1,9}))?(?![\w./])", re.IGNORECASE
)
_STEP = re.compile(r"(?<![\w-])(?:global[ _]?step|steps?|iter(?:ation)?s?|batch(?:es)?)" + _GAP + _OF, re.IGNORECASE)
_UNBOUNDED_COUNT = re.compile(
    r"(?<![\w/-])(epoch|step|iter(?:ation)?)[\s:#\[]{1,5}(\d{1,15})(?![\w./%]|:\d)", re.IGNORECASE
)
_FRACTION = re.compile(r"\d{1,15}/\d")
# `| epoch 1 |   200/ 2983 batches | lr 20.00`
_BATCHES = re.compile(r"(?<![\w.])" + _OF + r"\s?(?:batches|steps|iterations|iters)\b", re.IGNORECASE)
# `Epoch: [3][ 115/5005]`, `Epoch: [3]  [115/600]  eta: 0:00:50`
_INDEXED = re.compile(r"\]\s{0,5}\[\s{0,10}" + _OF)
# `Train: 19%|█▉        | 115/600 [00:12<00:50,  9.60it/s, loss=0.3]`
_TQDM = re.compile(r"\d{1,3}%\|[^|]{0,300}\|\s{0,20}(?P<done>\d{1,15})/(?P<all>\d{1,15}) \[(?P<rest>[^\]]{0,200})")
# `115/600 ━━━━━━━━━━━━━━━━━━━━ 3s 8ms/step - loss: 0.5`, `115/600 [====>.......] - ETA: 3s`
_KERAS = re.compile(r"^\s{0,20}(?P<done>\d{1,15})/(?P<all>\d{1,15}) (?:[━╸╺]{3}|\[[=>.]{5,100}\])")
_OTHERS = re.compile(
    r"(?<![a-z])(?:val|valid|validat|eval|test|infer|predict|download|upload|load|fetch|build|sanity|shard|token|prepro"
    r"|prepar|warm|sampl|generat|map|filter|extract|convert|compil|sav|resolv|skip|find)",
    re.IGNORECASE,
)
_UNIT_OF_OTHERS = re.compile(r"(?:B|examples|files?|ex|rows|tokens)/s")
_HEADER = re.compile(
    r"^[\s\W]{0,100}(?:train\w{0,8}\s{0,5})?epochs?[\s:=#(\[-]{0,10}\d{1,9}\s{0,5}(?:/|of)\s{0,5}\d{1,9}[\s\W]{0,100}$",
    re.IGNORECASE,
)
_MEASURES = re.compile(r"loss|acc|ppl|perplexity", re.IGNORECASE)
_FEW = 10  # a loop this short is no training: `Step 2/5 : RUN pip install`

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
_ANY_NUMBER = re.compile(_NUMBER)
_FIELD = re.compile(r"\{([A-Za-z_][\w./-]{0,99})\}")

PROGRESS = ("step", "steps", "epoch", "epochs")


def _may_tell(line: bytes) -> bool:
    """A quick look, for the thread that must not be held up."""
    return (
        b"%|" in line
        or b"[=" in line
        or (
            (b"/" in line or b" of " in line)
            and (
                b"tep" in line
                or b"ter" in line
                or b"poch" in line
                or b"atch" in line
                or b"EPOCH" in line
                or b"STEP" in line
            )
        )
    )


def _counted(text: str) -> Dict[str, float]:
    """``step`` or ``epoch`` without a total: `Epoch 3: loss=0.31`. Only for lines with metrics."""
    match = _UNBOUNDED_COUNT.search(text)
    if match is None or _FRACTION.search(text) or _OTHERS.search(text[: match.start()]):
        return {}
    return {"epoch" if match[1][0] in "eE" else "step": int(match[2])}


def _shows_bar(text: str) -> bool:
    """Whether a bar of tqdm or Keras is drawn in the line."""
    return _first(text)[1]


class PrintedProgress:
    """Reads one process's lines, in their order."""

    def __init__(self) -> None:
        self._epoch = None  # type: Optional[Tuple[int, int]]  # how many are done, and of how many (0: unknown)
        self._is_from_zero = False
        self._done = 0
        self._all = 0
        self._rounds = 0
        self._epoch_of_count = None  # type: Optional[int]
        self._is_whole = False  # the counts go on from epoch to epoch

    def find(self, text: str) -> Dict[str, float]:
        """``step`` and ``steps``, ``epoch`` and ``epochs`` (0: unknown); empty: the line names no progress."""
        epoch = self._find_epoch(text)
        match, is_bar = _first(text)
        if match is None:
            return self._epochs(text) if epoch is not None else {}
        if _OTHERS.search(text[: match.start()]):
            return {}
        done, total = int(match["done"]), int(match["all"])
        if match.re is _TQDM and _UNIT_OF_OTHERS.search(match["rest"]):
            return {}
        if not 0 <= done <= total or total == 0:
            return {}
        if not is_bar and epoch is None and total < _FEW and not _MEASURES.search(text):
            return {}
        return self._count(done, total, is_inside=epoch is not None)

    def _find_epoch(self, text: str) -> Optional[Tuple[int, int]]:
        match = _EPOCH.search(text)
        if match is None or _OTHERS.search(text[: match.start()]):
            return None
        number, total = int(match[1]), int(match[2] or 0)
        if total and number > total:
            return None
        self._is_from_zero |= number == 0
        self._epoch = (number if self._is_from_zero else number - 1, total or (self._epoch or (0, 0))[1])
        return self._epoch

    def _epochs(self, text: str) -> Dict[str, float]:
        """Progress of a line that names only an epoch: a headline begins one, any other line ends one."""
        if self._epoch is None or not self._epoch[1] or self._all:
            return {}
        done, total = self._epoch
        return {"epoch": min(total, done if _HEADER.match(text) else done + 1), "epochs": total}

    def _count(self, done: int, total: int, *, is_inside: bool) -> Dict[str, float]:
        if total < self._all and self._done < self._all:
            return {}  # something smaller in between, such as an evaluation
        if done == total != self._all and not is_inside and (self._epoch is None or self._all):
            return {}  # a loop that is over when it is first heard of, such as a look through files
        if total != self._all:
            self._all, self._rounds, self._is_whole, self._epoch_of_count = total, 0, False, None
        elif done < self._done:
            self._rounds += 1
        elif self._epoch is not None and self._epoch_of_count is not None and done > self._done:
            self._is_whole |= self._epoch[0] > self._epoch_of_count and not is_inside
        self._done = done
        self._epoch_of_count = None if self._epoch is None else self._epoch[0]
        if self._epoch is not None and not self._is_whole:
            before, epochs = self._epoch
            number = before + (0 if self._is_from_zero else 1)
            return {"epoch": number, "epochs": epochs, "step": before * total + done, "steps": epochs * total}
        return {"step": self._rounds * total + done, "steps": 0 if self._rounds else total}


def _first(text: str) -> Tuple[Optional[Match[str]], bool]:
    """The count in the line, and whether a bar shows it."""
    for pattern in (_TQDM, _KERAS):
        match = pattern.search(text)
        if match is not None:
            return match, True
    for pattern in (_STEP, _BATCHES, _INDEXED):
        match = pattern.search(text)
        if match is not None:
            return match, False
    return None, False


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
        return self.has_own or b"tep" in line or b"ter" in line or b"poch" in line or _may_tell(line)

    def find(self, line: bytes) -> Dict[str, float]:
        """The numbers by name; empty: the line has none for us."""
        text = _ANSI.sub("", line[:LINE_BYTES].decode("utf-8", "replace"))
        if self.has_own:
            for template in self._templates:
                values = template.find(text)
                if values is not None:
                    return values
            return {}
        # Pairs are the clearer words: what they say of steps and epochs is not read in the other way, too.
        values = _pairs(text)
        if values:
            return values
        progress = self._printed.find(text)
        # A bar is drawn again and again, with numbers rounded for it.
        if _shows_bar(text):
            return progress
        metrics = _metrics(text)
        progress = progress or (_counted(text) if metrics else {})
        return {**metrics, **progress} if progress else {}


def _metrics(text: str) -> Dict[str, float]:
    """Pairs of a line that names its progress in other words: `Epoch 3/10 loss=0.31`, `Epoch [3/10], Step [2/8], Loss:
    0.31`.
    """
    metrics: Dict[str, float] = {}
    for match in _PAIR.finditer(text):
        is_time = text[match.end() : match.end() + 1] == ":"  # `eta: 0:00:50`
        if len(metrics) < _NAMES and not is_time and match[1].lower() not in _COUNTED:
            metrics.setdefault(match[1], float(match[2]))
    return metrics


def _pairs(text: str) -> Dict[str, float]:
    pairs: Dict[str, float] = {}
    for match in _PAIR.finditer(text):
        if len(pairs) >= _NAMES:
            break
        name = "step" if match[1] in _STEPS else match[1]
        if name in ("step", "epoch") and name not in pairs:
            total = _TOTAL.match(text, match.end())
            if total is not None:
                pairs.setdefault(name + "s", float(total[1]))
        pairs.setdefault(name, float(match[2]))
    # Without a step, or an epoch that serves as one, a number in a line is only a number.
    return pairs if ("step" in pairs or "epoch" in pairs) and len(pairs) > 1 else {}


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
            number = _ANY_NUMBER.match(text, at)
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
            numbers.append(float(text[number.start() : end]))
        return numbers


def _text_of(piece: str) -> Optional[Pattern[str]]:
    """Any blanks where ``piece`` has some. ``None``: there is no text."""
    if not piece:
        return None
    return re.compile(r"\s{1,100}".join(re.escape(word) for word in re.split(r"\s+", piece)))
