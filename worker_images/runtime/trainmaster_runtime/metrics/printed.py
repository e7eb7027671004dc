"""Metrics and progress in the lines that training programs print anyway.

The text gives a step (a count of steps, an epoch, a bar of tqdm or Keras) and named numbers; what has only one of them
is no metric. Formats without names next to their numbers (columns below a header, evaluation lines of boosting, records
in braces) are recognised by their shape. A number counts with the step of its line: a count within an epoch becomes a
count over all epochs. A line without a count, such as the result of an evaluation, counts with the last one.

All regular expressions are bounded, so that the time is linear in the line.
"""

from __future__ import annotations

import re

from trainmaster_runtime.metrics.named_numbers import (
    COUNTED,
    NAMES,
    NUMBER,
    STEPS,
    are_settings,
    begins_with_measure,
    first_measure,
    has_result,
    is_code,
    is_excluded,
    is_measure,
    is_unambiguous_measure,
    join_thousands,
    named,
    names_settings,
    pairs,
)
from trainmaster_runtime.metrics.printed_counts import (
    EPOCH,
    EVALUATION,
    KERAS,
    OTHER_LOOPS,
    RICH,
    UNIT_OF_OTHER_LOOPS,
    PrintedProgress,
    first_count,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Match, Optional

_COUNT_OF_STEPS = re.compile(
    r"(?<![\w/-])(?:global[ _]?step|step|iter(?:ation)?|episode|num_updates|(?P<part>batch))[\s:=#\[]{1,8}"
    r"(?P<count>\d{1,15})(?![\w./%]|:\d|,\d)",
    re.IGNORECASE,
)
_COUNT_OF_EPOCHS = re.compile(r"(?<![\w/-])ep(?:och)?[\s:=#\[]{1,8}(\d{1,15})(?![\w/%]|\.\d|:\d|,\d)", re.IGNORECASE)
_COUNT_OVER_EPOCHS = re.compile(r"(?<![\w/-])(?:num_updates|global[ _]?step)[\s:=]{1,8}\d", re.IGNORECASE)
_FRACTION = re.compile(r"\d{1,15}/\d")
_EPOCH_AND_BATCH = re.compile(r"^\[\s{0,8}(\d{1,9}),\s{0,12}(\d{1,15})\]\s")  # `[10,  2000] loss: 1.300`
_BRACKETED_STEP = re.compile(r"^\[(\d{1,15})\]\s{1,4}(?=[A-Za-z])")  # `[100] accuracy=0.5, loss=1.3`

_ITEM = re.compile(r"""["']([A-Za-z_][\w./@ -]{0,99})["']\s?:\s?["']?(%s)["']?\s{0,2}(?=[,}])""" % NUMBER)
_FIELD = re.compile(r"^([A-Za-z_][\w'./@+ -]{0,99}?)\s?:\s?(%s)(?:\s?\+\s?[\d.e-]{1,30})?$" % NUMBER)
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
# `300it [00:10, 30.0it/s, loss=0.3]`, `100/Unknown  3s 30ms/step - loss: 1.3`
_OPEN_BARS = (
    re.compile(r"(?:^|[\s:])(?P<done>\d{1,15})it \[\d{1,3}:\d\d(?::\d\d)?, {1,3}(?P<rest>[^\]]{0,600})"),
    re.compile(r"^\s{0,20}(?P<done>\d{1,15})/Unknown\s{1,8}(?:- )?\d{1,6}m?s (?P<rest>[^/]{0,20}/step - .{0,600})"),
)
# `[LightGBM] [Info] Iteration:100, valid_1 auc : 0.8`
_LIGHTGBM = re.compile(r"^\[LightGBM\] \[Info\] Iteration:(\d{1,9}), (\w{1,80}) ([\w@.-]{1,40}) : (%s)$" % NUMBER)
# `Loss at step 100: 0.3`, `Training loss (for one batch) at step 0: 80.1`, `Cost after epoch 3: 0.12`
_AT_COUNT = re.compile(
    r"^\s{0,8}((?:[A-Za-z]{1,20} ){0,3}(?:[A-Za-z]{0,12}_?loss|cost|error|acc|accuracy|reward|perplexity|score))"
    r"(?: \([A-Za-z ]{1,40}\))? (?:at|after) (?:(?P<epoch>epoch)|step|iteration|iter|batch|episode) (?P<count>\d{1,12})"
    r"(?:\s?/\s?\d{1,12})?\s?[:=]\s{0,8}(?P<value>%s)(?![\w:]|[./-]\d|,\d)" % NUMBER,
    re.IGNORECASE,
)
# `Loss: 0.0007 after 460 batches`
_AFTER_COUNT = re.compile(
    r"^\s{0,8}((?:[A-Za-z]{1,20} ){0,3}(?:[A-Za-z]{0,12}_?loss|cost|error|acc|accuracy|reward|perplexity|score))"
    r"\s?[:=]\s{0,8}(?P<value>%s) after (?P<count>\d{1,12}) (?:(?P<epoch>epochs?)|(?:step|iteration|episode)s?"
    r"|batch(?:es)?)(?!\w)" % NUMBER,
    re.IGNORECASE,
)
# Ray Train: `Reporting training result 4: TrainingReport(checkpoint=…, metrics={'loss': 0.13}, …) from rank 0`
_RAY_REPORT = re.compile(
    r"Reporting training result (\d{1,9}): TrainingReport\(.{0,900}?metrics=(\{[^{}]{1,900}\}).{0,300}\)"
    r" from rank 0(?!\d)"
)
# `Test Accuracy of the network on the 10000 test images: 57.2 %`
_ON_DATA = re.compile(
    r"^\s{0,8}(?:(?:test|val|validation) )?(accuracy|loss|error) of the (?:[a-z]{1,20} ){1,3}on (?:the |all ){0,2}"
    r"(?:\d{1,9} )?((?P<test>test)|val(?:idation)?) (?:images|samples|examples|sentences|set|data)\s?:\s{0,8}"
    r"(?P<value>%s)\s?%%?\s{0,5}$" % NUMBER,
    re.IGNORECASE,
)
_RECORD_BEHIND_COUNT = re.compile(r"^([^{}]{3,200})\{([^{}]{1,900})\}\s{0,5}$")
_SPLIT_OF_RECORD = re.compile(r"""["'](?:mode|split|phase)["']\s?:\s?["'](?:(?P<test>test)|val|eval|dev)""")
_SPLIT_OF_EPOCH = re.compile(r"^\s{0,8}(?:Epoch|Iter)\((?:val|(?P<test>test))\)\s?\[")
# As a word of its own: not in `tests/run.py step=3`, `my-eval-job step=3`.
_EVALUATION_WORD = re.compile(
    r"(?<![\w/.-])(?:(?P<test>test)(?:ing)?|val|valid(?:ation|ating)?|eval(?:uation|uate|uating)?|dev)(?![\w/-]|\.\w)",
    re.IGNORECASE,
)
# `Epoch 3 | Val | Loss 0.4`, `Epoch 3 - val: loss 0.4`
_SPLIT_BETWEEN = re.compile(
    r"(?:[|,\[(]\s{0,3}|-\s{1,3})(?:val(?:id(?:ation)?)?|eval(?:uation)?|dev|(?P<test>test))"
    r"(?:\s{0,3}[|\])]|\s{1,3}-\s|:\s{1,3}(?=[A-Za-z]))",
    re.IGNORECASE,
)
_HEADLINE = re.compile(r"^[\s\W]{0,20}epoch[\s:=#\[]{1,8}\d{1,9}(?![\w.])", re.IGNORECASE)
_BOX_RULE = re.compile(r"^-{30,200}\s{0,5}$")
_BOX_ROW = re.compile(r"^\| {1,8}([a-z_]{1,40}/)?([\w.-]{0,60}) {0,80}\| {0,8}(%s)? {0,80}\|\s{0,5}$" % NUMBER)
_COCO = re.compile(
    r"^ {0,4}Average (?:Precision|Recall) {1,8}\((A[PR])\) @\[ IoU=0\.(50:0\.95|50|75) {0,8}"
    r"\| area= {0,4}([asml])[a-z]{2,6} "
    r"\| maxDets= {0,4}(\d{1,5}) \] = (0\.\d{1,9}|1\.0{0,9})"
)
_SOURCE_FILE = re.compile(r'^\s{0,40}File "[^"]{1,400}", line \d')
_THOUSANDTHS = 1000


class PrintedMetrics:
    """Reads one process's lines, in their order. ``is_bar``: the last line was a bar that is not yet full."""

    def __init__(self) -> None:
        self._progress = PrintedProgress()
        self._step = None  # type: Optional[int]  # of the last line with a count, or an epoch
        self._epoch = None  # type: Optional[int]  # of the last line without any other count
        self._epoch_of_step = -1
        self._last_count = 0
        self._offset = 0  # steps of the epochs before, where a line has a count within an epoch of unknown length
        self._columns = []  # type: List[str]
        self._section = ""  # what the next line's names begin with
        self._is_in_block = False
        self._is_best_next = False
        self._box = {}  # type: Dict[str, float]  # the rows so far of a box that has its step in a row
        self._group = ""  # of the rows in it
        self._is_source_next = False  # a line of a traceback names the file and line of the next
        self._has_parts_of_epochs = False
        self._waiting = {}  # type: Dict[str, float]  # a record that only names a part of an epoch, until the bar moves
        self.is_bar = False

    def find(self, text: str) -> Dict[str, float]:
        """Numbers by name, with ``step``, ``steps``, ``epoch``, ``epochs`` where known; empty: there are none."""
        self.is_bar = False
        text = join_thousands(text)
        report = _RAY_REPORT.search(text) if "TrainingReport(" in text else None
        if report is not None:
            return self._note({**_items(report[2]), "step": int(report[1])})
        is_source, self._is_source_next = self._is_source_next, _SOURCE_FILE.match(text) is not None
        if is_source or names_settings(text):
            return {}
        text = _without_braces(text)
        found, begin = pairs(text)
        evaluation = _EVALUATION_WORD.search(text, 0, begin) or _split_between(text)
        if "step" in found:
            return self._pairs(found, evaluation)
        for read in (
            self._record,
            self._boxed,
            self._coco,
            self._table,
            self._round,
            self._bar,
            self._open_bar,
            self._block,
        ):
            values = read(text)
            if values is not None:
                return self._note(values)
        if found:
            return self._pairs(found, evaluation)
        return self._note(self._line(text))

    def finish(self) -> Dict[str, float]:
        """The record that still waits for its step."""
        waiting, self._waiting = self._waiting, {}
        return {**waiting, "step": self._step} if waiting and self._step is not None else {}

    def _note(self, values: Dict[str, float]) -> Dict[str, float]:
        if "step" in values:
            self._step = int(values["step"])
        elif "epoch" in values and not self._progress.has_counts:
            self._step = self._epoch = int(values["epoch"])
        return values

    def _pairs(self, found: Dict[str, float], evaluation: Optional[Match[str]]) -> Dict[str, float]:
        if evaluation is None:
            return self._note(self._with_step_of_all_epochs(found))
        values = {name: value for name, value in found.items() if name not in COUNTED}
        step, epoch = found.get("step"), found.get("epoch")
        if step is not None and epoch is None and step == int(step):
            return (
                self._evaluated(evaluation, values, int(step)) if step >= (self._step or 0) else {}
            )  # or a batch of it
        if epoch is not None and epoch == int(epoch) and (self._step is None or self._step == self._epoch):
            return self._evaluated(evaluation, values, int(epoch))
        return self._evaluated(evaluation, values)

    def _with_step_of_all_epochs(self, found: Dict[str, float]) -> Dict[str, float]:
        """A count that begins again with each epoch goes on; a batch of an epoch is a step."""
        epoch = found.get("epoch")
        count = found.get("step", found.get("batch") if epoch is not None else None)
        if epoch is None or count is None or epoch != int(epoch):
            return self._with_epoch(found)
        others = {name: value for name, value in found.items() if name != "batch" or "step" in found}
        return {**others, "step": self._count_over_epochs(int(epoch), int(count))} if len(others) > 1 else {}

    def _with_epoch(self, found: Dict[str, float]) -> Dict[str, float]:
        """The step where a line has only an epoch. A part of an epoch counts in thousandths without a bar."""
        epoch = found.get("epoch")
        if epoch is None or "step" in found or epoch - epoch != 0:
            return found
        if self._progress.has_counts and self._step is not None:
            return {**found, "epoch": int(epoch), "step": self._step}
        self._has_parts_of_epochs |= epoch != int(epoch)
        if self._has_parts_of_epochs:
            others = {name: value for name, value in found.items() if name not in ("epoch", "epochs")}
            return {**others, "step": round(epoch * _THOUSANDTHS)}
        return found

    def _count_over_epochs(self, epoch: int, count: int) -> int:
        if epoch > self._epoch_of_step >= 0 and count <= self._last_count:
            self._offset += self._last_count
        elif epoch < self._epoch_of_step:
            self._offset = 0  # another training in the same program
        self._epoch_of_step, self._last_count = epoch, count
        return self._offset + count

    def _count_again(self, count: int) -> int:
        """The same where nothing names the epoch."""
        if count < self._last_count:
            self._offset += self._last_count
        self._last_count = count
        return self._offset + count

    def _record(self, text: str) -> Optional[Dict[str, float]]:
        """`{'loss': 1.386, 'epoch': 0.15}`, and the same as JSON."""
        text = text.strip()
        if not text.startswith("{") or not text.endswith("}") or text.count("{") > 1:
            return None
        values = {}  # type: Dict[str, float]
        for match in _ITEM.finditer(text):
            name = "step" if match[1] in STEPS else match[1].replace(" ", "_")
            if len(values) < NAMES and not is_excluded(name):
                values.setdefault(name, float(match[2]))
        split = _SPLIT_OF_RECORD.search(text)
        if split is not None:
            return self._evaluated(split, {name: value for name, value in values.items() if name not in COUNTED})
        if not any(is_measure(name) for name in values) or ("step" not in values and not has_result(values)):
            return {}
        if "step" in values:
            return self._with_step_of_all_epochs(values)
        if "epoch" not in values:
            is_result = "epochs" not in values and has_result(filter(is_unambiguous_measure, values))
            values = {name: value for name, value in values.items() if is_measure(name)}
            return {**values, "step": self._step} if is_result and self._step is not None else {}
        epoch = values["epoch"]
        if self._progress.has_counts and epoch - epoch == 0:
            # The bar is drawn behind the record, with the count that the record belongs to.
            before, self._waiting = self.finish(), {name: value for name, value in values.items() if name != "epoch"}
            return before
        return self._with_epoch(values)

    def _boxed(self, text: str) -> Optional[Dict[str, float]]:
        """A box of Stable-Baselines3: names and numbers in groups such as `rollout/`, of which one is the step."""
        if _BOX_RULE.match(text):
            box, self._box, self._group = self._box, {}, ""
            return box if "step" in box and len(box) > 1 else None
        row = _BOX_ROW.match(text) if text.startswith("| ") else None
        if row is None or not (row[1] or self._group):
            return None
        self._group = row[1] or self._group
        if row[2] == "total_timesteps" and row[3] is not None and row[3].isdigit():
            self._box["step"] = int(row[3])
        elif row[2] and row[3] is not None and row[2] not in COUNTED and not is_excluded(row[2]):
            self._box.setdefault(self._group + row[2], float(row[3]))
        return {}

    def _coco(self, text: str) -> Optional[Dict[str, float]]:
        """COCO's summary, a number in a line."""
        match = _COCO.match(text) if "Average " in text else None
        if match is None:
            return None
        area = "" if match[3] == "a" else match[3]
        detail = "@" + match[4] if match[1] == "AR" and not area else match[2] if ":" not in match[2] else area
        return {} if self._step is None else {"val/" + match[1] + detail: float(match[5]), "step": self._step}

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
            if _CELL.match(cell) and not is_excluded(name)
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
        match = _LIGHTGBM.match(text)
        if match is not None:
            return {match[2] + "/" + match[3]: float(match[4]), "step": int(match[1])}
        match = _ROUND.match(text)
        if match is None:
            self._is_best_next = (self._is_best_next and not text.strip()) or "est iteration" in text
            return None
        is_best, self._is_best_next = self._is_best_next, False
        fields = [_FIELD.match(field) for field in text[match.end() :].strip().split("\t")]
        is_read = self._step is not None and self._step >= int(match[1] or match[2])
        if (is_best and is_read) or not fields or fields[0] is None:
            return {}  # LightGBM alone prints no round but the best
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
        evaluation = EVALUATION.search(before)
        progress = self._progress.find(text)
        rest = match["rest"].partition("/s")[2] or match["rest"].partition("s/it")[2] or text[match.end("rest") :]
        values = {**named(before.rstrip(" :")), **named(rest)}
        if done == 0:
            values = {name: value for name, value in values.items() if value != 0}  # `loss: 0.00` before the first step
        if evaluation is not None and done == total and self._step is not None:
            return self._evaluated(evaluation, values)
        if not progress and match.re is KERAS and done == total and values and self._progress.is_at_end:
            return {**_prefixed("val/", values), "step": self._step or 0}  # `model.evaluate` behind `model.fit`
        if not progress:
            return {}
        waiting, self._waiting = self._waiting, {}
        self.is_bar = done < total and not waiting
        self._is_in_block = match.re is RICH
        return {**waiting, **values, **progress}

    def _open_bar(self, text: str) -> Optional[Dict[str, float]]:
        """A bar without a total."""
        if "it [" not in text and "/Unknown" not in text:
            return None
        match = next((match for match in (bar.search(text) for bar in _OPEN_BARS) if match is not None), None)
        if match is None:
            return None
        before = text[: match.start("done")]
        rest = match["rest"].partition("/s")[2]
        values = {**named(before.rstrip(" :")), **named(rest)}
        is_other = OTHER_LOOPS.search(before) or EVALUATION.search(before) or UNIT_OF_OTHER_LOOPS.search(match["rest"])
        if is_other or self._progress.has_counts or not has_result(values):
            return {}
        self.is_bar = True
        return {**values, "step": self._count_again(int(match["done"]))}

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
        if self._step is None or entry[1].lower() in COUNTED or is_excluded(entry[1]):
            return {}
        return {entry[1]: float(entry[2]), "step": self._step}

    def _line(self, text: str) -> Dict[str, float]:
        if _SECTION.match(text):
            self._section = "test/" if text[:4].lower() == "test" else "val/"
            return {}
        section, self._section = self._section, "" if text.strip() else self._section
        sentence = self._sentence(text)
        if sentence is not None:
            return sentence
        split = _SPLIT_OF_EPOCH.match(text)
        match, _ = first_count(text)
        if split is not None and match is None:
            return self._evaluated(split, named(text))
        at = EPOCH.search(text) or _COUNT_OF_STEPS.search(text)
        before = text[: match.start("done")] if match is not None else text[: at.start()] if at is not None else ""
        evaluation = EVALUATION.search(before) or _split_between(text)
        if evaluation is not None:
            if self._is_batch(text, match):
                return {}
            values = named(text, is_mean=match is not None)
            return self._evaluated(evaluation, values, self._step_of_evaluation(text))
        progress = self._progress.find(text) or self._unbounded(text)
        is_certain, has_step = bool(progress), "step" in progress
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
        if is_code(text) or (are_settings(values) and not has_step):
            values = {}
        if not values:
            if _HEADLINE.match(text):
                self._note(progress)
            return progress if "epochs" in progress or "steps" in progress else {}
        if "step" not in progress and self._progress.has_counts and self._step is not None:
            progress["step"] = self._step
        return {**values, **progress}

    def _sentence(self, text: str) -> Optional[Dict[str, float]]:
        """`Loss at step 100: 0.3`, `Loss: 0.3 after 100 batches`, `Accuracy of the model on the 9 test images: 9`"""
        match = _ON_DATA.match(text)
        if match is not None:
            return self._evaluated(match, {match[1]: float(match["value"])})
        match = _AT_COUNT.match(text) or _AFTER_COUNT.match(text)
        if match is None:
            return None
        name, count = match[1].replace(" ", "_"), int(match["count"])
        if self._progress.has_counts and self._step is not None:
            return {name: float(match["value"]), "step": self._step}
        if match["epoch"]:
            return {name: float(match["value"]), "epoch": count}
        return {name: float(match["value"]), "step": self._count_again(count)}

    def _is_batch(self, text: str, match: Optional[Match[str]]) -> bool:
        """Whether a line of an evaluation, with the bounded count ``match``, is that of one of its batches."""
        if match is not None:
            return int(match["done"]) < int(match["all"])
        count = _COUNT_OF_STEPS.search(text)
        return count is not None and EPOCH.search(text) is None and int(count["count"]) < (self._step or 0)

    def _step_of_evaluation(self, text: str) -> Optional[int]:
        """The step that a line of an evaluation names, else the last one."""
        count, epoch = _COUNT_OF_STEPS.search(text), EPOCH.search(text)
        if count is not None and count["part"] is None and int(count["count"]) >= (self._step or 0):
            return int(count["count"])
        if epoch is not None and (self._step is None or self._step == self._epoch):
            return int(epoch["count"])
        return self._step

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
        if first is None or _FRACTION.search(text[: first.end()]) or OTHER_LOOPS.search(text[: first.start()]):
            return {}
        if step is not None and (epoch is not None or step["part"] is None):
            count = int(step["count"])
            if _COUNT_OVER_EPOCHS.search(text):
                return {"step": count}
            return {"step": count if epoch is None else self._count_over_epochs(int(epoch[1]), count)}
        if self._progress.has_counts:
            return {}
        if step is not None and epoch is None:  # a batch
            return {"step": self._count_again(int(step["count"]))} if has_result(named(text)) else {}
        return {"epoch": int(epoch[1])} if epoch is not None else {}

    def _summary(self, text: str, values: Dict[str, float], section: str) -> Dict[str, float]:
        """A line that begins with a metric: `Test set: Average loss: 0.04, Accuracy: 9847/10000`, ` * Acc@1 71.2`."""
        values = {name: value for name, value in values.items() if is_measure(name)}
        leading = begins_with_measure(text)
        if leading is None or not has_result(values):
            return {}
        if section or text.lstrip().startswith("* "):
            section = section or "val/"
            return {**_prefixed(section, values), "step": self._step or 0}
        evaluation = EVALUATION.search(leading)
        return {**values, "step": self._step or 0} if evaluation is None else self._evaluated(evaluation, values)

    def _evaluated(
        self, evaluation: Match[str], values: Dict[str, float], step: Optional[int] = None
    ) -> Dict[str, float]:
        step = self._step if step is None else step
        if not values or step is None:
            return {}
        return {**_prefixed("test/" if evaluation["test"] else "val/", values), "step": step}


def _split_between(text: str) -> Optional[Match[str]]:
    """The word between its count and its first metric by which a line is that of an evaluation."""
    return _SPLIT_BETWEEN.search(text, 0, first_measure(text) + 1)


def _prefixed(prefix: str, values: Dict[str, float]) -> Dict[str, float]:
    return {name if EVALUATION.search(name) else prefix + name: value for name, value in values.items()}


def _items(text: str) -> Dict[str, float]:
    """The metrics of a record such as `{'loss': 0.13, 'epoch': 2}`."""
    found = {match[1]: float(match[2]) for match in _ITEM.finditer(text)}
    return {name: value for name, value in found.items() if name not in COUNTED and not is_excluded(name)}


def _without_braces(text: str) -> str:
    """`step 10: {'loss': 0.5}` as `step 10: loss: 0.5`; any other line as it is."""
    match = _RECORD_BEHIND_COUNT.match(text)
    if match is None or not (EPOCH.search(match[1]) or _COUNT_OF_STEPS.search(match[1]) or first_count(match[1])[0]):
        return text
    return match[1] + match[2].replace("'", "").replace('"', "")


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
    return names if any(is_unambiguous_measure(name) for name in names) and all(map(_NAME_CELL.match, names)) else []
