"""Metrics and progress in the lines that training programs print anyway.

The text gives a step (a count of steps, an epoch, a bar of tqdm or Keras) and named numbers; what has only one of them
is no metric. Formats without names next to their numbers (columns below a header, evaluation lines of boosting, records
in braces) are recognised by their shape. A number counts with the step of its line: a count within an epoch becomes a
count over all epochs. A line without a count, such as the result of an evaluation, counts with the last one.

Counts of something else (downloads, layers of an image) and counts that begin again and again are not taken for the
job's progress. All regular expressions are bounded, so that the time is linear in the line.
"""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Match, Optional, Tuple

NUMBER = (
    r"[-+]?(?:[0-9]{1,20}(?:\.[0-9]{0,20})?|\.[0-9]{1,20})(?:[eE][-+]?[0-9]{1,4})?|[-+]?(?:nan|NaN|inf|Inf|Infinity)"
)
NAMES = 20  # in one line

_OF = r"(?P<done>\d{1,15})\s{0,20}(?:/|of)\s{0,20}(?P<all>\d{1,15})(?![\w.%/])"
_GAP = r"[\s:=#(\[-]{0,10}"
_EPOCH = re.compile(
    r"(?<![\w/-])(?:epochs?(?:\(train\)|\[)?|Train: (?=\d{1,9} \[))"
    + _GAP
    + r"(?P<count>\d{1,9})(?:\s{0,5}(?:/|of)\s{0,5}(\d{1,9}))?(?![\w./])",
    re.IGNORECASE,
)
_STEP = re.compile(r"(?<![\w-])(?:global[ _]?step|steps?|iter(?:ation)?s?|batch(?:es)?)" + _GAP + _OF, re.IGNORECASE)
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
_KERAS = re.compile(
    r"^\s{0,20}(?P<done>\d{1,15})/(?P<all>\d{1,15}) (?:[━╸╺]{3}|\[[=>.]{5,100}\]|- \d{1,6}m?s (?=- ))(?P<rest>)"
)
# `Epoch 0/2 ━━━━━━━━━━━━━━ 5/10 0:00:01 • 0:00:01 3.00it/s train_loss: 0.5`
_RICH = re.compile(
    r"[━╸╺]{3} (?P<done>\d{1,15})/(?P<all>\d{1,15}) +\d{1,3}:\d\d:\d\d • [\d:-]{1,10} [\d.]{1,12}it/s(?P<rest>)"
)
_BARS = (_TQDM, _KERAS, _RICH)
_COUNTERS = (_STEP, _BATCHES, _INDEXED, _TRAILING)
_COUNT_OF_STEPS = re.compile(
    r"(?<![\w/-])(?:global[ _]?step|step|iter(?:ation)?|episode|(?P<part>batch))[\s:#=\[]{1,8}"
    r"(?P<count>\d{1,15})(?![\w./%]|:\d)",
    re.IGNORECASE,
)
_COUNT_OF_EPOCHS = re.compile(r"(?<![\w/-])epoch[\s:#=\[]{1,8}(\d{1,15})(?![\w/%]|\.\d|:\d)", re.IGNORECASE)
_FRACTION = re.compile(r"\d{1,15}/\d")
_EPOCH_AND_BATCH = re.compile(r"^\[\s{0,8}(\d{1,9}),\s{0,12}(\d{1,15})\]\s")  # `[10,  2000] loss: 1.300`
_BRACKETED_STEP = re.compile(r"^\[(\d{1,15})\]\s{1,4}(?=[A-Za-z])")  # `[100] accuracy=0.5, loss=1.3`

_EVALUATION = re.compile(r"(?<![a-z])(?P<test>test)|(?<![a-z])(?:val|valid|validat|eval|dev(?=[\s:]))", re.IGNORECASE)
_OTHERS = re.compile(
    r"(?<![a-z])(?:infer|predict|download|upload|load|fetch|build|sanity|shard|token|prepro|prepar|warm|sampl|generat"
    r"|map|filter|extract|convert|compil|sav|resolv|skip|find)",
    re.IGNORECASE,
)
_UNIT_OF_OTHERS = re.compile(r"(?:B|examples|files?|ex|rows|tokens)/s")
_HEADER = re.compile(
    r"^[\s\W]{0,100}(?:train\w{0,8}\s{0,5})?epochs?[\s:=#(\[-]{0,10}\d{1,9}\s{0,5}(?:/|of)\s{0,5}\d{1,9}[\s\W]{0,100}$",
    re.IGNORECASE,
)
_MEASURES = re.compile(r"loss|acc|ppl|perplexity", re.IGNORECASE)
_FEW = 10  # a loop this short is no training: `Step 2/5 : RUN pip install`

# Words that are a metric wherever they name a number, and those that are one before `=` or `:`.
_MEASURE = re.compile(
    r"(?:^|[^a-z])(?:[a-z]{0,12}loss(?:es)?|acc(?:uracy)?|ppl|perplexity|lr|auc|auroc|prauc|f1|m?iou|dice|bleu|wer|cer"
    r"|[rm]?mse|mae|mape|smape|rmsle|reward|ppl|psnr|ssim|gnorm|mfu|bpb|bpc|map(?:50)?|ndcg|mrr|elbo|cosine|error_rate"
    r"|[a-z]{0,12}_?(?:logloss|error|gini|l1|l2))(?:$|[^a-z])",
    re.IGNORECASE,
)
_WEAK_MEASURE = re.compile(
    r"(?:^|[^a-z])(?:acc|prec|precision|recall|score|err|error|return|entropy|kl|fid|metric|rouge[a-z0-9]{0,4}"
    r"|r2|top[-_]?[0-9]|grad_norm|learning_rate|rate|nll|throughput|learn)(?:$|[^a-z])",
    re.IGNORECASE,
)
_SECOND_WORDS = {"norm": ("grad", "gradient"), "rate": ("learning", "error"), "scale": ("loss",)}
_QUALIFIERS = (
    r"train(?:ing)?|val|valid(?:ation)?|test|eval(?:uation)?|dev|average|avg|mean|total|running|best|last|m?lm|grad"
    r"|gradient|learning|loss|error|smoothed|ema|mse|bce|cross|entropy|episode"
)
_QUALIFIER = re.compile(_QUALIFIERS, re.IGNORECASE)
# What may stand before the first name of a line without a count.
_LEADING = re.compile(
    _QUALIFIERS + r"|set|results?|final|metrics|stats|averaged|on|the|of|end|epoch|summary|performance", re.IGNORECASE
)
_NO_METRIC = re.compile(
    r"^(?:eta|date|(?:data_|iter_|batch_)?time|ts|timestamp|version|v|v_num|port|pid|seed|rank|world_size|gpus?|host"
    r"|devices?|size|max_?mem|mem|memory|gpu_?mem|elapsed|remaining|id|node|data|instances|images|dur|duration|year"
    r"|line|cuda|python|.{0,40}(?:_size|_version|_id|_port|_seed|_mem|_bytes))$",
    re.IGNORECASE,
)
_STEPS = frozenset(("step", "global_step", "iteration", "iter", "num_updates"))
_COUNTED = _STEPS | {"epoch", "batch", "steps", "epochs", "iterations", "batches", "episode", "episodes", "micro_step"}
_END = r"(?![\w:]|[./-]\d|,\d{3}(?!\d))"
# `name=1.5` and `name: 1.5`; a name as metrics have them, not in the middle of another word.
_PAIR = re.compile(
    r"(?<![\w.@-])(?<![^\d]/)([A-Za-z_][\w./@-]{0,99})(?:\s?=\s?|:\s{0,8})(?:tensor\(|\[{1,2})?(%s)(?![\w.])" % NUMBER
)
_TOTAL = re.compile(r"(?: ?/ ?| of )([0-9]{1,15})(?![\w.])")  # `step=160/200`
# `Namespace(epoch=14, lr=1.0)`, `epochs=3, amp=True, lr=0.1`
_CODE = re.compile(r"[=:] ?(?:True|False|None)\b|[A-Za-z_]\w{0,40}\((?:[^()=]{0,80}, ?)?\w{1,40}=")
_NAMED = re.compile(
    r"(?<![\w./'@-])([A-Za-z_][\w./@-]{0,99})(\s{0,3}[:=]\s{0,20}|\s{1,12})(?:tensor\(|\[{1,2}|np\.float\d\d\()?(%s)"
    r"(?:\s?/\s?(\d{1,15})%s|%s)(?:\s{1,2}\(\s{0,6}(%s)\))?" % (NUMBER, _END, _END, NUMBER)
)
_BEFORE = re.compile(r"(?:([A-Za-z]{2,20}) )?([A-Za-z]{2,20}) $")
_QUOTE = re.compile(r"[\"'`<>(/\\]\S")
_WORD = re.compile(r"[A-Za-z]{1,40}")
_ITEM = re.compile(r"""["']([A-Za-z_][\w./@ -]{0,99})["']\s?:\s?["']?(%s)["']?\s{0,2}(?=[,}])""" % NUMBER)
_FIELD = re.compile(r"^([A-Za-z_][\w'./@+ -]{0,99}?)\s?:\s?(%s)(?: \+ [\d.e-]{1,30})?$" % NUMBER)
_ROUND = re.compile(r"^(?:\[(\d{1,12})\]|(\d{1,12}):)\t")
_COLUMNS = re.compile(r"\s{2,80}|\s{0,80}[|│┃]\s{0,80}|\t")
_PART = re.compile(r"(?<!\d)\d{1,2}%[ |]{1,2}[━─█▏▎▍▌▋▊▉ |]")
_CELL = re.compile(r"^(?:%s)$" % NUMBER)
_NAME_CELL = re.compile(r"^[A-Za-z][\w./@-]{0,40}$")
_COUNT_CELL = re.compile(r"^(\d{1,9})(?:/(\d{1,9}))?$")
_BLOCK = re.compile(r"^\*{5} (\w{1,40}) metrics \*{5}$")
_BLOCK_ENTRY = re.compile(r"^  ([A-Za-z_]\w{0,99})\s{0,40}=\s{1,40}(%s)$" % NUMBER)
_BAR_ENTRY = re.compile(r"^ {20,300}([A-Za-z_][\w./-]{0,99}): (%s)\s{0,80}$" % NUMBER)  # Rich puts them below its bar
_BOX_HEADER = re.compile(r"[┃│|]\s{1,40}(?:Test|Validate) metric\s{1,40}[┃│|]")
_BOX_ENTRY = re.compile(r"^[│|]\s{1,60}([A-Za-z_][\w./@-]{0,99})\s{1,60}[│|]\s{1,60}(%s)\s{1,60}[│|]" % NUMBER)
_SECTION = re.compile(r"^(?:test|val\w{0,8}|eval\w{0,8}) (?:error|results?|set|metrics)?:?\s{0,5}$", re.IGNORECASE)
_THOUSANDTHS = 1000


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

    def find(self, text: str) -> Dict[str, float]:
        """``step`` and ``steps``, ``epoch`` and ``epochs`` (0: unknown); empty: the line names no progress."""
        epoch = self._find_epoch(text)
        match, is_bar = first_count(text)
        if match is None:
            return self._epochs(text) if epoch is not None else {}
        before = text[: match.start("done")]
        if _OTHERS.search(before) or _EVALUATION.search(before):
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
        # Rich's bar of Lightning counts epochs from 0, up to the last one.
        is_rich = " • " in text and "━" in text
        match = _EPOCH.search(text)
        if match is None or _OTHERS.search(text[: match.start()]) or _EVALUATION.search(text[: match.start()]):
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

    def _count(self, done: int, total: int, *, is_inside: bool) -> Dict[str, float]:
        if total < self._all and self._done < self._all:
            return {}  # something smaller in between, such as an evaluation
        if done == total != self._all and not is_inside and (self._epoch is None or self._all):
            return {}  # a loop that is over when it is first heard of, such as a look through files
        if total < self._all and not is_inside and (self._epoch or (None,))[0] == self._epoch_of_count:
            return {}  # an evaluation at the end
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


class PrintedMetrics:
    """Reads one process's lines, in their order. ``is_bar``: the last line was a bar that is not yet full."""

    def __init__(self) -> None:
        self._progress = PrintedProgress()
        self._step = None  # type: Optional[int]  # of the last line with a count, or an epoch
        self._epoch_of_step = -1
        self._last_count = 0
        self._offset = 0  # steps of the epochs before, where a line has a count within an epoch of unknown length
        self._columns = []  # type: List[str]
        self._section = ""  # what the next line's names begin with
        self._is_in_block = False
        self._is_best_next = False
        self._has_parts_of_epochs = False
        self._waiting = {}  # type: Dict[str, float]  # a record that only names a part of an epoch, until the bar moves
        self.is_bar = False

    def find(self, text: str) -> Dict[str, float]:
        """Numbers by name, with ``step``, ``steps``, ``epoch``, ``epochs`` where known; empty: there are none."""
        self.is_bar = False
        pairs = _pairs(text)
        if "step" in pairs:
            return self._note(self._with_step_of_all_epochs(pairs))
        for read in (self._record, self._table, self._round, self._bar, self._block):
            values = read(text)
            if values is not None:
                return self._note(values)
        if pairs:
            return self._note(self._with_step_of_all_epochs(pairs))
        return self._note(self._line(text))

    def finish(self) -> Dict[str, float]:
        """The record that still waits for its step."""
        waiting, self._waiting = self._waiting, {}
        return {**waiting, "step": self._step} if waiting and self._step is not None else {}

    def _note(self, values: Dict[str, float]) -> Dict[str, float]:
        if "step" in values:
            self._step = int(values["step"])
        elif "epoch" in values and not self._progress.has_counts:
            self._step = int(values["epoch"])
        return values

    def _with_step_of_all_epochs(self, pairs: Dict[str, float]) -> Dict[str, float]:
        """A count that begins again with each epoch goes on; a batch of an epoch is a step."""
        epoch = pairs.get("epoch")
        count = pairs.get("step", pairs.get("batch") if epoch is not None else None)
        if epoch is None or count is None or epoch != int(epoch):
            return self._with_epoch(pairs)
        others = {name: value for name, value in pairs.items() if name != "batch" or "step" in pairs}
        return {**others, "step": self._count_over_epochs(int(epoch), int(count))} if len(others) > 1 else {}

    def _with_epoch(self, pairs: Dict[str, float]) -> Dict[str, float]:
        """The step where a line has only an epoch. A part of an epoch counts in thousandths without a bar."""
        epoch = pairs.get("epoch")
        if epoch is None or "step" in pairs or epoch - epoch != 0:
            return pairs
        if self._progress.has_counts and self._step is not None:
            return {**pairs, "epoch": int(epoch), "step": self._step}
        self._has_parts_of_epochs |= epoch != int(epoch)
        if self._has_parts_of_epochs:
            others = {name: value for name, value in pairs.items() if name not in ("epoch", "epochs")}
            return {**others, "step": round(epoch * _THOUSANDTHS)}
        return pairs

    def _count_over_epochs(self, epoch: int, count: int) -> int:
        if epoch > self._epoch_of_step >= 0 and count <= self._last_count:
            self._offset += self._last_count
        elif epoch < self._epoch_of_step:
            self._offset = 0  # another training in the same program
        self._epoch_of_step, self._last_count = epoch, count
        return self._offset + count

    def _record(self, text: str) -> Optional[Dict[str, float]]:
        """`{'loss': 1.386, 'epoch': 0.15}`, and the same as JSON."""
        text = text.strip()
        if not text.startswith("{") or not text.endswith("}") or text.count("{") > 1:
            return None
        values = {}  # type: Dict[str, float]
        for match in _ITEM.finditer(text):
            name = "step" if match[1] in _STEPS else match[1].replace(" ", "_")
            if len(values) < NAMES and not _NO_METRIC.match(name):
                values.setdefault(name, float(match[2]))
        if not any(is_measure(name) for name in values):
            return {}
        if "step" in values:
            return self._with_step_of_all_epochs(values)
        if "epoch" not in values:
            return {} if self._step is None else {**values, "step": self._step}
        epoch = values["epoch"]
        if self._progress.has_counts and epoch - epoch == 0:
            # The bar is drawn behind the record, with the count that the record belongs to.
            before, self._waiting = self.finish(), {name: value for name, value in values.items() if name != "epoch"}
            return before
        return self._with_epoch(values)

    def _table(self, text: str) -> Optional[Dict[str, float]]:
        """Rows below a header such as `epoch     train_loss  valid_loss  accuracy  time`."""
        header = _header(text)
        if header:
            self._columns = header
            return {}
        columns = self._columns
        if not columns:
            return None
        cells = _cells(text)[: len(columns)]
        if len(cells) < len(columns):
            return None
        if columns[0] == "Class":
            if cells[0] != "all" or self._step is None:
                return None
            found = {"val/" + name: float(cell) for name, cell in zip(columns[3:], cells[3:]) if _CELL.match(cell)}
            return {**found, "step": self._step}
        count = _COUNT_CELL.match(cells[0])
        values = {
            name: float(cell)
            for name, cell in zip(columns[1:], cells[1:])
            if _CELL.match(cell) and not _NO_METRIC.match(name)
        }
        if count is None or not values or any(not _is_value(cell) for cell in cells[1:-1]):
            return None
        if _PART.search(text):
            return {}  # the last state of the row is the epoch's
        values["step"] = int(count[1])
        if columns[0].lower() == "epoch":
            values["epoch"] = values["step"]
        if count[2] is not None:
            values["epochs"] = int(count[2])
        return values

    def _round(self, text: str) -> Optional[Dict[str, float]]:
        """`[0]	train-logloss:0.48	eval-auc:0.9`, `[1]	valid_0's l2: 0.24`, `7:	learn: 0.6	test: 0.7`"""
        match = _ROUND.match(text)
        if match is None:
            self._is_best_next = (self._is_best_next and not text.strip()) or "est iteration" in text
            return None
        is_best, self._is_best_next = self._is_best_next, False
        fields = [_FIELD.match(field) for field in text[match.end() :].strip().split("\t")]
        if is_best or not fields or fields[0] is None:
            return {}
        values = {
            field[1].replace("'s ", "/"): float(field[2])
            for field in fields[:NAMES]
            if field is not None and field[1] not in ("best", "total", "remaining")
        }
        is_known = (match[2] is not None and "learn" in values) or match[1] is not None
        return {**values, "step": int(match[1] or match[2])} if values and is_known else {}

    def _bar(self, text: str) -> Optional[Dict[str, float]]:
        match, is_bar = first_count(text)
        if match is None or not is_bar:
            return None
        done, total = int(match["done"]), int(match["all"])
        before = text[: match.start()]
        evaluation = _EVALUATION.search(before)
        progress = self._progress.find(text)
        rest = match["rest"].partition("/s")[2] or match["rest"].partition("s/it")[2] or text[match.end("rest") :]
        values = {**named(before), **named(rest)}
        if evaluation is not None and done == total and self._step is not None:
            return self._evaluated(evaluation, values)
        if not progress:
            return {}
        waiting, self._waiting = self._waiting, {}
        self.is_bar = done < total and not waiting
        self._is_in_block = match.re is _RICH
        return {**waiting, **values, **progress}

    def _block(self, text: str) -> Optional[Dict[str, float]]:
        """`***** eval metrics *****` and the lines below it; boxes with `Test metric` above."""
        if _BLOCK.match(text) or _BOX_HEADER.search(text):
            self._is_in_block = True
            return {}
        entries = (pattern.match(text) for pattern in (_BLOCK_ENTRY, _BOX_ENTRY, _BAR_ENTRY) if self._is_in_block)
        entry = next((match for match in entries if match is not None), None)
        if entry is None:
            self._is_in_block = self._is_in_block and text[:1] in (" ", "├", "│", "┡")
            return None
        if self._step is None or entry[1].lower() in _COUNTED or _NO_METRIC.match(entry[1]):
            return {}
        return {entry[1]: float(entry[2]), "step": self._step}

    def _line(self, text: str) -> Dict[str, float]:
        if _SECTION.match(text):
            self._section = "test/" if text[:4].lower() == "test" else "val/"
            return {}
        section, self._section = self._section, "" if text.strip() else self._section
        match, _ = first_count(text)
        at = _EPOCH.search(text) or _COUNT_OF_STEPS.search(text)
        before = text[: match.start("done")] if match is not None else text[: at.start()] if at is not None else ""
        evaluation = _EVALUATION.search(before)
        if evaluation is not None:
            if match is not None and int(match["done"]) < int(match["all"]):
                return {}  # a batch of an evaluation
            values = named(text, is_mean=match is not None)
            step = self._step if self._step is not None else int(at["count"]) if at is not None else None
            return self._evaluated(evaluation, values, step)
        progress = self._progress.find(text) or self._unbounded(text)
        is_certain = bool(progress)
        if not progress and self._step is not None:
            is_certain = _COUNT_OF_EPOCHS.search(text) is not None
            progress["step"] = self._step
        if not progress:
            return {}
        values = named(text)
        if not is_certain:
            return self._summary(text, values, section)
        if not any(is_measure(name) for name in values) and not re.search(r"[=:]\s{0,3}[-+]?\d{0,9}\.\d", text):
            values = {}
        if _CODE.search(text):
            values = {}
        if not values:
            return progress if "epochs" in progress or "steps" in progress else {}
        if "step" not in progress and self._progress.has_counts and self._step is not None:
            progress["step"] = self._step
        return {**values, **progress}

    def _unbounded(self, text: str) -> Dict[str, float]:
        """``step`` or ``epoch`` without a total: `Epoch 3: loss=0.31`, `[10,  2000] loss: 1.3`."""
        both = _EPOCH_AND_BATCH.match(text)
        if both is not None:
            return {"step": self._count_over_epochs(int(both[1]), int(both[2]))}
        bracketed = _BRACKETED_STEP.match(text)
        if bracketed is not None and any(is_measure(name) for name in named(text)):
            return {"step": int(bracketed[1])}
        epoch, step = _COUNT_OF_EPOCHS.search(text), _COUNT_OF_STEPS.search(text)
        first = min((match for match in (epoch, step) if match is not None), key=lambda at: at.start(), default=None)
        if first is None or _FRACTION.search(text[: first.end()]) or _OTHERS.search(text[: first.start()]):
            return {}
        if step is not None and (epoch is not None or step["part"] is None):
            count = int(step["count"])
            return {"step": count if epoch is None else self._count_over_epochs(int(epoch[1]), count)}
        if self._progress.has_counts:
            return {}
        return {"epoch": int(epoch[1])} if epoch is not None else {}

    def _summary(self, text: str, values: Dict[str, float], section: str) -> Dict[str, float]:
        """A line that begins with a metric: `Test set: Average loss: 0.04, Accuracy: 9847/10000`, ` * Acc@1 71.2`."""
        values = {name: value for name, value in values.items() if is_measure(name)}
        first = next((match for match in _NAMED.finditer(text) if is_measure(match[1])), None)
        if not values or first is None or first.start() > 60 or len(text) > 300 or _CODE.search(text):
            return {}
        leading = text[: first.start()]
        if _QUOTE.search(leading) or any(_LEADING.fullmatch(word) is None for word in _WORD.findall(leading)):
            return {}
        if section or text.lstrip().startswith("* "):
            section = section or "val/"
            return {**_prefixed(section, values), "step": self._step or 0}
        evaluation = _EVALUATION.search(leading)
        return {**values, "step": self._step or 0} if evaluation is None else self._evaluated(evaluation, values)

    def _evaluated(
        self, evaluation: Match[str], values: Dict[str, float], step: Optional[int] = None
    ) -> Dict[str, float]:
        step = self._step if step is None else step
        if not values or step is None:
            return {}
        return {**_prefixed("test/" if evaluation["test"] else "val/", values), "step": step}


def is_measure(name: str) -> bool:
    return _MEASURE.search(name) is not None or _WEAK_MEASURE.search(name) is not None


def named(text: str, *, is_mean: bool = False) -> Dict[str, float]:
    """Numbers with a name before them: `loss=0.3`, `valid loss 0.5`; names are as printed, with `_` for blanks.

    ``is_mean``: of `Loss: 6.9 (7.1)` the number in brackets, the mean so far.
    """
    values = {}  # type: Dict[str, float]
    for match in _NAMED.finditer(text):
        name = _name(text, match)
        if name and len(values) < NAMES:
            value = float(match[5] if is_mean and match[5] else match[3])
            if match[4] is not None:
                value = value / float(match[4]) if float(match[4]) else value
            values.setdefault(name, value)
    return values


def named_spans(text: str) -> List[Tuple[str, int, int]]:
    """Name, beginning and end of each number whose name is that of a metric."""
    found = ((_name(text, match), match) for match in _NAMED.finditer(text[:300]))
    return [
        (re.sub(r"[@.]", "_", name), *match.span(3))
        for name, match in found
        if name and is_measure(name) and "." in match[3]
    ]


def _name(text: str, match: Match[str]) -> str:
    """The name of a number with the words before it that belong to it; empty: it is no metric."""
    word = match[1]
    before = _BEFORE.search(text[max(0, match.start() - 44) : match.start()])
    words = [part for part in before.groups() if part] if before is not None else []
    lower = word.lower()
    is_second = bool(words) and words[-1].lower() in _SECOND_WORDS.get(lower, ())
    is_strong = is_second or _MEASURE.search(word) is not None
    is_attached = match[2].strip() != ""
    if (
        lower in _COUNTED
        or _NO_METRIC.match(word)
        or (_LEADING.fullmatch(lower) and lower != "loss" and "." not in match[3])
    ):
        return ""
    if not is_attached and not is_strong and not (match[3].count(".") and _WEAK_MEASURE.search(word)):
        return ""
    if match[4] is not None and not re.search(r"acc|correct|prec", word, re.IGNORECASE):
        return ""
    if is_attached and not is_strong and words and not _WEAK_MEASURE.search(word):
        return ""  # the last word of a sentence: `number of skipped iterations: 0`
    joined = []  # type: List[str]
    for part in reversed(words):
        if _QUALIFIER.fullmatch(part) is None:
            break
        joined.insert(0, part)
    return "_".join([*joined, word])


def _prefixed(prefix: str, values: Dict[str, float]) -> Dict[str, float]:
    return {name if _EVALUATION.search(name) else prefix + name: value for name, value in values.items()}


def _pairs(text: str) -> Dict[str, float]:
    """Pairs of name and number of a line that names a step or an epoch in the same way; else none."""
    pairs = {}  # type: Dict[str, float]
    if _CODE.search(text):
        return pairs
    is_spaced = False
    for match in _PAIR.finditer(text):
        if len(pairs) >= NAMES:
            break
        name = "step" if match[1] in _STEPS else match[1]
        if name == "steps" and match.start() == 0:
            name = "step"
        if name in ("step", "epoch") and name not in pairs:
            total = _TOTAL.match(text, match.end())
            if total is not None:
                pairs.setdefault(name + "s", float(total[1]))
        if text[match.end() : match.end() + 1] != ":" and not _NO_METRIC.match(name):
            pairs.setdefault(name, float(match[2]))
            is_spaced |= " =" in match[0]
    # Without a step, or an epoch that serves as one, a number in a line is only a number.
    if ("step" not in pairs and "epoch" not in pairs) or len(pairs) < 2:
        return {}
    return {} if is_spaced and not any(is_measure(name) for name in pairs) else pairs


def _cells(text: str) -> List[str]:
    return [cell for cell in _COLUMNS.split(text.strip().strip("|│┃").strip()) if cell]


def _is_value(cell: str) -> bool:
    return cell[:1].isdigit() or cell[:1] in "-+.n"


def _header(text: str) -> List[str]:
    """The columns of a table of metrics, if ``text`` is its header."""
    if "poch" not in text and "ter" not in text and "tep" not in text and "mAP50" not in text:
        return []
    cells = _cells(text.partition("):")[0] if "mAP50" in text else text)
    if len(cells) < 3 or any(not cell[0].isalpha() or len(cell) > 40 for cell in cells):
        return []
    if cells[0] == "Class" and "mAP50" in cells:
        return [cell.strip("()").rpartition("(")[2] for cell in cells]
    if cells[0].lower() not in ("epoch", "iter", "iteration", "step"):
        return []
    names = [cell.replace(" ", "_") for cell in cells]
    return names if any(_MEASURE.search(name) for name in names) and all(map(_NAME_CELL.match, names)) else []
