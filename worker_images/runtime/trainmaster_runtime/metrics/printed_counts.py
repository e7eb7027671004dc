"""Counts in the lines that training programs print: of steps, of epochs, of a bar of tqdm, Keras or Rich.

A count within an epoch becomes a count over all epochs. Counts of something else (downloads, layers of an image) and
counts that begin again and again are not taken for the job's progress. All regular expressions are bounded, so that the
time is linear in the line.
"""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Match, Optional, Tuple

_OF = r"(?P<done>\d{1,15})\s{0,20}(?:/|of)\s{0,20}(?P<all>\d{1,15})(?![\w.%/]|,\d)"
_GAP = r"[\s:=#(\[-]{0,10}"
EPOCH = re.compile(
    r"(?<![\w/-])(?:epochs?(?:\(train\)|\[)?|Train: (?=\d{1,9} \[))"
    + _GAP
    + r"(?P<count>\d{1,9})(?:\s{0,5}(?:/|of)\s{0,5}(\d{1,9}))?(?![\w./]|,\d)",
    re.IGNORECASE,
)
_STEP = re.compile(
    r"(?<![\w-])(?:global[ _]?step|steps?|iter(?:ation)?s?(?:\((?:train|val|test)\))?|batch(?:es)?|episodes?)"
    + _GAP
    + _OF,
    re.IGNORECASE,
)
# `| epoch 1 |   200/ 2983 batches | lr 20.00`
_BATCHES = re.compile(r"(?<![\w.])" + _OF + r"\s?(?:batches|steps|iterations|iters)\b", re.IGNORECASE)
# `Epoch: [3][ 115/5005]`, `Train Epoch: 2 [640/750 (83%)]`, `Train: 0 [   5/7`, `epoch 001:    100 / 3000 loss=10.1`
_INDEXED = re.compile(
    r"(?:(?:test|val\w{0,8}): \[\s{0,10}|\]\s{0,5}\[\s{0,10}|(?:epoch(?:\(\w{1,8}\))?|train:)"
    r"[\s:=#\[]{1,10}\d{1,9}(?:\s?/\s?\d{1,9})?\]?[\s:,|\[]{1,10})" + _OF,
    re.IGNORECASE,
)
# `loss: 2.303494  [   64/60000]`
_TRAILING = re.compile(r"loss:? {1,4}[\d.e+-]{1,20}\s{1,5}\[\s{0,10}" + _OF + r"\]\s{0,5}$", re.IGNORECASE)
# `Train: 19%|█▉        | 115/600 [00:12<00:50,  9.60it/s, loss=0.3]`
_TQDM = re.compile(r"\d{1,3}%\|[^|]{0,300}\|\s{0,20}(?P<done>\d{1,15})/(?P<all>\d{1,15}) \[(?P<rest>[^\]]{0,600})")
# `115/600 ━━━━━━━━━━━━━━━━━━━━ 3s 8ms/step - loss: 0.5`, `115/600 [====>.......] - ETA: 3s`, `600/600 - 3s - loss: 0.5`
KERAS = re.compile(
    r"^\s{0,20}(?P<done>\d{1,15})/(?P<all>\d{1,15}) (?:[━╸╺]{3}|\[[=>.]{5,100}\]|- \d{1,6}m?s (?=- ))(?P<rest>)"
)
# `Epoch 0/2 ━━━━━━━━━━━━━━ 5/10 0:00:01 • 0:00:01 3.00it/s train_loss: 0.5`
RICH = re.compile(
    r"[━╸╺]{3} (?P<done>\d{1,15})/(?P<all>\d{1,15}) +\d{1,3}:\d\d:\d\d • [\d:-]{1,10} [\d.]{1,12}it/s(?P<rest>)"
)
_BARS = (_TQDM, KERAS, RICH)
_COUNTERS = (_STEP, _BATCHES, _INDEXED, _TRAILING)

EVALUATION = re.compile(r"(?<![a-z])(?P<test>test)|(?<![a-z])(?:val(?!ue)|eval|dev(?=[\s:]))", re.IGNORECASE)
OTHER_LOOPS = re.compile(
    r"(?<![a-z])(?:infer|predict|download|upload|load|fetch|build|sanity|shard|token|prepro|prepar|warm|sampl|generat"
    r"|map|filter|extract|convert|compil|sav|resolv|skip|find)",
    re.IGNORECASE,
)
UNIT_OF_OTHER_LOOPS = re.compile(r"(?:B|examples|files?|ex|rows|tokens)/s")
_HEADER = re.compile(
    r"^[\s\W]{0,100}(?:train\w{0,8}\s{0,5})?epochs?[\s:=#(\[-]{0,10}\d{1,9}\s{0,5}(?:/|of)\s{0,5}\d{1,9}[\s\W]{0,100}$",
    re.IGNORECASE,
)
_MEASURES = re.compile(r"(?:loss(?:es)?|acc(?:uracy)?|ppl|perplexity)(?![a-z])", re.IGNORECASE)
_FEW = 10  # a loop this short is no training: `Step 2/5 : RUN pip install`


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

    @property
    def has_counts(self) -> bool:
        return self._all > 0

    @property
    def is_at_end(self) -> bool:
        """Whether the last count was that of a whole epoch, or training, and nothing has begun since."""
        return 0 < self._all == self._done and (self._epoch or (None,))[0] == self._epoch_of_count

    def find(self, text: str) -> Dict[str, float]:
        """``step`` and ``steps``, ``epoch`` and ``epochs`` (0: unknown); empty: the line names no progress."""
        epoch = self._find_epoch(text)
        match, is_bar = first_count(text)
        if match is None:
            return self._epochs(text) if epoch is not None else {}
        before = text[: match.start("done")]
        if OTHER_LOOPS.search(before) or EVALUATION.search(before):
            return {}
        done, total = int(match["done"]), int(match["all"])
        if match.re is _TQDM and UNIT_OF_OTHER_LOOPS.search(match["rest"]):
            return {}
        if not 0 <= done <= total or total == 0:
            return {}
        if not is_bar and epoch is None and total < _FEW and not _MEASURES.search(text):
            return {}
        return self._count(done, total, is_inside=epoch is not None, has_measure=_MEASURES.search(text) is not None)

    def _find_epoch(self, text: str) -> Optional[Tuple[int, int]]:
        # Rich's bar of Lightning counts epochs from 0, up to the last one.
        is_rich = " • " in text and "━" in text
        match = EPOCH.search(text)
        if match is None or OTHER_LOOPS.search(text[: match.start()]) or EVALUATION.search(text[: match.start()]):
            return None
        number, total = int(match[1]), int(match[2] or 0) + (is_rich and match[2] is not None)
        if total and number > total:
            return None
        self._is_from_zero |= number == 0 or is_rich
        self._epoch = (number if self._is_from_zero else number - 1, total or (self._epoch or (0, 0))[1])
        return self._epoch

    def _epochs(self, text: str) -> Dict[str, float]:
        """Progress of a line that names only an epoch: a headline begins one, any other line ends one."""
        if self._epoch is None or not self._epoch[1] or self._all:
            return {}
        done, total = self._epoch
        return {"epoch": min(total, done if _HEADER.match(text) else done + 1), "epochs": total}

    def _count(self, done: int, total: int, *, is_inside: bool, has_measure: bool) -> Dict[str, float]:
        if total < self._all and self._done < self._all:
            return {}  # something smaller in between, such as an evaluation
        if done == total != self._all and not is_inside and (self._all or (self._epoch is None and not has_measure)):
            return {}  # a loop that is over when it is first heard of, such as a look through files
        if total < self._all and not is_inside and (self._epoch or (None,))[0] == self._epoch_of_count:
            return {}  # an evaluation at the end
        if self._epoch is not None and self._epoch_of_count is None and self._all == total and self._done > 0:
            self._is_whole |= not is_inside  # the epoch is named first when it ends
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


def first_count(text: str) -> Tuple[Optional[Match[str]], bool]:
    """The count in the line, and whether a bar shows it."""
    if "/" not in text and " of " not in text:
        return None, False
    for pattern in _BARS if "%|" in text or "━" in text or "[=" in text or " - " in text else ():
        match = pattern.search(text)
        if match is not None:
            return match, True
    for pattern in _COUNTERS:
        match = pattern.search(text)
        if match is not None:
            return match, False
    return None, False
