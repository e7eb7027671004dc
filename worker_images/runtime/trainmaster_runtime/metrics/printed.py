"""How far a training is, from what the field prints: ``step 115/600``, ``Epoch [3/10], Step [115/600]``, bars of tqdm
and Keras.

A count within an epoch becomes a part of the whole, where the number of epochs is known. Counts of something
else (downloads, validation, layers of an image) and counts that begin again and again are not taken for the job's
progress. All patterns are bounded, so that the time is linear in the line.
"""

from __future__ import annotations

import re

_OF = r"(?P<done>\d{1,15})\s{0,20}(?:/|of)\s{0,20}(?P<all>\d{1,15})(?![\w.%/])"
_GAP = r"[\s:=#(\[-]{0,10}"
_EPOCH = re.compile(
    r"(?<![\w/-])epochs?" + _GAP + r"(\d{1,9})(?:\s{0,5}(?:/|of)\s{0,5}(\d{1,9}))?(?![\w./])", re.IGNORECASE
)
_STEP = re.compile(r"(?<![\w-])(?:global[ _]?step|steps?|iter(?:ation)?s?|batch(?:es)?)" + _GAP + _OF, re.IGNORECASE)
_COUNTED = re.compile(r"(?<![\w/-])(epoch|step|iter(?:ation)?)[\s:#\[]{1,5}(\d{1,15})(?![\w./%]|:\d)", re.IGNORECASE)
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
    r"(?<![a-z])(?:val|valid|validat|eval|test|infer|predict|download|upload|load|fetch|build|sanity|shard|token|prepro|prepar"
    r"|warm|sampl|generat|map|filter|extract|convert|compil|sav|resolv|skip|find)",
    re.IGNORECASE,
)
_UNIT_OF_OTHERS = re.compile(r"(?:B|examples|files?|ex|rows|tokens)/s")
_HEADER = re.compile(
    r"^[\s\W]{0,100}(?:train\w{0,8}\s{0,5})?epochs?[\s:=#(\[-]{0,10}\d{1,9}\s{0,5}(?:/|of)\s{0,5}\d{1,9}[\s\W]{0,100}$",
    re.IGNORECASE,
)
_MEASURES = re.compile(r"loss|acc|ppl|perplexity", re.IGNORECASE)
_FEW = 10  # a loop this short is no training: `Step 2/5 : RUN pip install`

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Match, Optional, Tuple


def may_tell(line: bytes) -> bool:
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


def counted(text: str) -> Dict[str, float]:
    """``step`` or ``epoch`` without a total: `Epoch 3: loss=0.31`. Only for lines with metrics."""
    match = _COUNTED.search(text)
    if match is None or _FRACTION.search(text) or _OTHERS.search(text[: match.start()]):
        return {}
    return {"epoch" if match[1][0] in "eE" else "step": int(match[2])}


def shows_bar(text: str) -> bool:
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
        done, whole = int(match["done"]), int(match["all"])
        if match.re is _TQDM and _UNIT_OF_OTHERS.search(match["rest"]):
            return {}
        if not 0 <= done <= whole or whole == 0:
            return {}
        if not is_bar and epoch is None and whole < _FEW and not _MEASURES.search(text):
            return {}
        return self._count(done, whole, is_inside=epoch is not None)

    def _find_epoch(self, text: str) -> Optional[Tuple[int, int]]:
        match = _EPOCH.search(text)
        if match is None or _OTHERS.search(text[: match.start()]):
            return None
        number, whole = int(match[1]), int(match[2] or 0)
        if whole and number > whole:
            return None
        self._is_from_zero |= number == 0
        self._epoch = (number if self._is_from_zero else number - 1, whole or (self._epoch or (0, 0))[1])
        return self._epoch

    def _epochs(self, text: str) -> Dict[str, float]:
        """Progress of a line that names only an epoch: a headline begins one, any other line ends one."""
        if self._epoch is None or not self._epoch[1] or self._all:
            return {}
        done, whole = self._epoch
        return {"epoch": min(whole, done if _HEADER.match(text) else done + 1), "epochs": whole}

    def _count(self, done: int, whole: int, *, is_inside: bool) -> Dict[str, float]:
        if whole < self._all and self._done < self._all:
            return {}  # something smaller in between, such as an evaluation
        if done == whole != self._all and not is_inside and (self._epoch is None or self._all):
            return {}  # a loop that is over when it is first heard of, such as a look through files
        if whole != self._all:
            self._all, self._rounds, self._is_whole, self._epoch_of_count = whole, 0, False, None
        elif done < self._done:
            self._rounds += 1
        elif self._epoch is not None and self._epoch_of_count is not None and done > self._done:
            self._is_whole |= self._epoch[0] > self._epoch_of_count and not is_inside
        self._done = done
        self._epoch_of_count = None if self._epoch is None else self._epoch[0]
        if self._epoch is not None and not self._is_whole:
            before, epochs = self._epoch
            number = before + (0 if self._is_from_zero else 1)
            return {"epoch": number, "epochs": epochs, "step": before * whole + done, "steps": epochs * whole}
        return {"step": self._rounds * whole + done, "steps": 0 if self._rounds else whole}


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
