"""Numbers in a line with a name next to them, and what such a number must be to be a metric.

Times, sizes, counts and settings are none; rates per second are. Words decide: a name that is a metric wherever it
stands (``loss``), one that is a metric before ``=`` or ``:`` (``score``), and any other in a line with a step. All
regular expressions are bounded, so that the time is linear in the line.
"""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Iterable, List, Match, Optional, Tuple

NUMBER = (
    r"[-+]?(?:[0-9]{1,20}(?:\.[0-9]{0,20})?|\.[0-9]{1,20})(?:[eE][-+]?[0-9]{1,4})?|[-+]?(?:nan|NaN|inf|Inf|Infinity)"
)
NAMES = 20  # in one line

# `1,000`, but not a part of a list: `[1,200]`, `(3,224,224)`; in brackets only as a part of `[1,000/5,000]`.
_GROUPS = r"[1-9]\d{0,2}(?:,\d{3}){1,5}(?!\d|,\d)"
_THOUSANDS = re.compile(
    r"(?<![\w.,(\[{])%s(?!\s?[\])}])|(?<=[\[(])%s(?=\s?/)|(?:(?<=/)|(?<=/ ))%s" % (_GROUPS, _GROUPS, _GROUPS)
)
_DECIMAL_COMMA = re.compile(r"(?<![\d,.(\[])(?:0,\d|\d{1,9},(?:\d{1,2}|\d{4,9})(?![\d,.]))")

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
_LEARNING_RATE = re.compile(r"(?:^|[^a-z])(?:lr|learning_rate)(?:$|[^a-z])", re.IGNORECASE)
_SECOND_WORDS = {
    "norm": ("grad", "gradient"),
    "rate": ("learning", "error"),
    "scale": ("loss",),
    "value": ("loss",),
}
_QUALIFIERS = (
    r"train(?:ing)?|val|valid(?:ation)?|test|eval(?:uation)?|dev|average|avg|mean|total|running|best|last|m?lm|grad"
    r"|gradient|learning|loss|error|smoothed|ema|mse|bce|cross|entropy|episode|[dg]|discriminator|generator|actor"
    r"|critic|policy|value"
)
_QUALIFIER = re.compile(_QUALIFIERS, re.IGNORECASE)
# What may stand before the first name of a line without a count.
_LEADING = re.compile(
    _QUALIFIERS + r"|set|results?|final|metrics|stats|averaged|on|the|of|end|epoch|summary|performance", re.IGNORECASE
)
_RATE = re.compile(r"^(?:.{0,80}(?:per_|/)s(?:ec(?:ond)?)?|[wutfiq]ps)$", re.IGNORECASE)
_NO_METRIC = re.compile(
    r"^(?:[\w.-]{1,60}/)?(?:"
    # times
    r"eta|date|(?:.{0,40}[_-])?(?:run)?time(?:_(?:ms?|s|secs?|seconds))?|(?:.{0,40}_)?wall|time_elapsed|ts|timestamp"
    r"|.{0,40}_(?:ms|secs?|seconds)|elapsed|remaining|dur|duration|year|(?:.{0,40}_)?(?:batch|reader)_cost"
    # sizes
    r"|size|max_?mem|mem|memory|(?:.{0,40}_)?(?:gpu_?mem|memory)(?:_.{0,40})?|rss|v?ram|cpu|(?:.{0,40}_)?reserved"
    r"|(?:.{0,40}_)?allocated|gb_free|free|.{0,40}_(?:[kmgt]i?b|bytes|size|mem)|shape|dims?|flos|total_flos"
    # counts
    r"|(?:.{0,40}_)?(?:samples|examples|tokens|items|rows|files|images|instances|params|parameters)|(?:num|n)_.{1,40}"
    r"|(?:total|env|max|warmup|micro|consumed)_(?:time)?steps?|wpb|bsz|bs|nsentences|ntokens|line|world_size|gpus?"
    # names and settings
    r"|version|v|v_num|port|pid|seed|rank|host|devices?|id|node|data|cuda|python|.{0,40}_(?:version|id|port|seed)"
    r"|gamma|momentum|weight_decay|wd|patience|min_delta|dropout|warmup|threshold|(?:target|goal)_.{1,40}"
    r"|.{0,40}_(?:weight|coeff?|threshold|decay|epochs)"
    # exceptions such as KeyError, but no MeanSquaredError
    r"|(?:\w{1,40}\.){0,3}(?!\w{0,40}(?:mean|squared|absolute|train|val(?!ue)|test|word|char))"
    r"(?-i:[A-Z])\w{0,60}(?-i:Error|Exception)"
    r")$",
    re.IGNORECASE,
)
# What is no metric even in a line of nothing but names and numbers.
_NO_FIGURE = re.compile(
    r"^(?:eta|date|(?:data_|iter_|batch_)?time|ts|timestamp|version|v|v_num|port|pid|seed|rank|world_size|gpus?|host"
    r"|devices?|size|max_?mem|mem|memory|gpu_?mem|elapsed|remaining|id|node|data|instances|images|dur|duration|year"
    r"|line|cuda|python|.{0,40}(?:_size|_version|_id|_port|_seed|_mem|_bytes))$",
    re.IGNORECASE,
)
_REPORT = re.compile(r"^\s{0,20}(?:[A-Za-z_][\w./@-]{0,99}=(?:%s)(?:\s{1,4}|$))+$" % NUMBER)
STEPS = frozenset(("step", "global_step", "iteration", "iter", "num_updates"))
COUNTED = STEPS | {"epoch", "batch", "steps", "epochs", "iterations", "batches", "episode", "episodes", "ep"}
_END = r"(?![\w:]|[./-]\d|,\d)"
# `name=1.5` and `name: 1.5`; a name as metrics have them, not in the middle of another word.
_PAIR = re.compile(
    r"(?<![\w.@-])(?<![^\d]/)([A-Za-z_][\w./@-]{0,99})(?:\s?=\s?|:\s{0,8})(?:tensor\(|\[{1,2})?(%s)(?![\w.]|,\d)"
    % NUMBER
)
_TOTAL = re.compile(r"(?: ?/ ?| of )([0-9]{1,15})(?![\w.])")  # `step=160/200`
# `epochs=3, amp=True, lr=0.1`
_CODE = re.compile(r"[=:] ?(?:True|False|None)\b|[A-Za-z_]\w{0,40}\((?:[^()=]{0,80}, ?)?\w{1,40}=")
# Lines that name settings, and source code: `Namespace(epoch=14, lr=1.0)`, `config: epoch=10 lr=0.1`, `loss = 0.5 * a`
_SETTINGS = re.compile(
    r"(?<![\w.])(?!tensor\()[A-Za-z_]\w{0,40}\((?:[^()=]{0,80}, ?)?\w{1,40}="
    r"|^[\s\W]{0,20}(?:[A-Za-z]{1,20}[ _-]){0,3}(?:config\w{0,10}|hparams|hyper[- _]?param\w{0,10}|args|arguments"
    r"|options|flags|settings|params|parameters|exp_name|experiment)\s{0,3}[:=]"
    r"|^\s{0,80}[A-Za-z_][\w.]{0,60}(?:, ?[A-Za-z_][\w.]{0,60}){0,3}\s?[-+*/]?=\s?(?:%s)"
    r"\s?(?:\*\*?\s?\d|(?:\*\*?|[@/%%+-])\s?(?:\(|[A-Za-z_][\w.]{0,40}(?![\w.]|\s?[=:]|\s[\dA-Za-z])))"
    r"|^ {4,80}(?-i:[a-z_])[\w.]{0,60} = (?:%s)(?:\s{0,5}$|\s{1,5}#| if )|^\s{0,80}(?-i:return|yield|assert) "
    % (NUMBER, NUMBER),
    re.IGNORECASE,
)
NAMED = re.compile(
    r"(?<![\w./'@-])([A-Za-z_][\w./@-]{0,99})(\s{0,3}[:=]\s{0,20}|\s{1,12})"
    r"(?:tensor\(|\[{1,2}|np\.float\d\d\(|\((?=[\d.]{1,8}%%\)))?(%s)"
    r"(?:\s?/\s?(\d{1,15})%s|%s)(?:\s{1,2}\(\s{0,6}(%s)\))?" % (NUMBER, _END, _END, NUMBER)
)
_BEFORE = re.compile(r"(?:([A-Za-z]{1,20})\.? )?([A-Za-z]{1,20})\.? $")
_QUOTE = re.compile(r"[\"'`<>(/\\]\S")
_WORD = re.compile(r"[A-Za-z]{1,40}")
_LONG = 300  # no line without a count that reports a result is longer


def join_thousands(text: str) -> str:
    """``text`` with numbers such as 1,234.5 as 1234.5; unchanged where a comma stands before decimals."""
    if "," not in text or _DECIMAL_COMMA.search(text) is not None:
        return text
    return _THOUSANDS.sub(lambda match: match[0].replace(",", ""), text)


def is_measure(name: str) -> bool:
    return _MEASURE.search(name) is not None or _WEAK_MEASURE.search(name) is not None


def is_unambiguous_measure(name: str) -> bool:
    """Whether it is a metric wherever it names a number."""
    return _MEASURE.search(name) is not None


def is_report(text: str) -> bool:
    """Whether it is nothing but `name=number` with a step: somebody printed it to be read, whatever the names."""
    return _REPORT.match(text) is not None and "step=" in text


def is_excluded(name: str) -> bool:
    """Whether it is a time, a size, a count or a setting, but no rate per second."""
    return _NO_METRIC.match(name) is not None and _RATE.match(name) is None


def has_result(names: Iterable[str]) -> bool:
    """Whether a metric is among them that is no learning rate: settings have one, too."""
    return any(is_measure(name) and _LEARNING_RATE.search(name) is None for name in names)


def are_settings(names: Iterable[str]) -> bool:
    """Whether a learning rate is among them, and no result."""
    names = list(names)
    return any(_LEARNING_RATE.search(name) is not None for name in names) and not has_result(names)


def is_code(text: str) -> bool:
    """Whether a setting or an argument of a call is in it, next to which a number is no metric."""
    return _CODE.search(text) is not None


def names_settings(text: str) -> bool:
    """Whether it is as a whole a line of settings, or source code."""
    return _SETTINGS.search(text) is not None


def first_measure(text: str) -> int:
    """Where the name of the first metric begins; 0: there is none."""
    return next((match.start() for match in NAMED.finditer(text) if is_measure(match[1])), 0)


def begins_with_measure(text: str) -> Optional[str]:
    """What stands before the first metric, if that is nothing but words that qualify it."""
    first = next((match for match in NAMED.finditer(text) if is_measure(match[1])), None)
    if first is None or first.start() > 60 or len(text) > _LONG or is_code(text):
        return None
    leading = text[: first.start()]
    if _QUOTE.search(leading) or any(_LEADING.fullmatch(word) is None for word in _WORD.findall(leading)):
        return None
    return leading


def named(text: str, *, is_mean: bool = False) -> Dict[str, float]:
    """Numbers with a name before them: `loss=0.3`, `valid loss 0.5`; names are as printed, with `_` for blanks.

    ``is_mean``: of `Loss: 6.9 (7.1)` the number in brackets, the mean so far.
    """
    values = {}  # type: Dict[str, float]
    for match in NAMED.finditer(text):
        name = _name(text, match)
        if name and len(values) < NAMES:
            value = float(match[5] if is_mean and match[5] else match[3])
            if match[4] is not None:
                value = value / float(match[4]) if float(match[4]) else value
            values.setdefault(name, value)
    return values


def named_spans(text: str) -> List[Tuple[str, int, int, bool]]:
    """Name, beginning and end of each number with a name, and whether that is a metric's."""
    spans = []  # type: List[Tuple[str, int, int, bool]]
    for match in NAMED.finditer(text[:_LONG]):
        name = _name(text, match)
        is_metric = bool(name) and is_measure(name) and "." in match[3]
        if match[4] is None and (is_metric or match[2].strip() or "." in match[3]):
            spans.append((re.sub(r"[@.]", "_", name or match[1]), *match.span(3), is_metric))
    return spans


def _words_before(text: str, start: int) -> List[str]:
    before = _BEFORE.search(text[max(0, start - 44) : start])
    return [part for part in before.groups() if part] if before is not None else []


def _qualified(words: List[str], name: str) -> str:
    joined = []  # type: List[str]
    for part in reversed(words):
        if _QUALIFIER.fullmatch(part) is None:
            break
        joined.insert(0, part)
    return "_".join([*joined, name])


def _name(text: str, match: Match[str]) -> str:
    """The name of a number with the words before it that belong to it; empty: it is no metric."""
    word = match[1]
    words = _words_before(text, match.start())
    lower = word.lower()
    is_second = bool(words) and words[-1].lower() in _SECOND_WORDS.get(lower, ())
    is_strong = is_second or _MEASURE.search(word) is not None
    is_attached = match[2].strip() != ""
    if lower in COUNTED or is_excluded(word) or (_LEADING.fullmatch(lower) and lower != "loss" and "." not in match[3]):
        return ""
    if not is_attached and not is_strong and not (match[3].count(".") and _WEAK_MEASURE.search(word)):
        return ""
    if match[4] is not None and not re.search(r"acc|correct|prec", word, re.IGNORECASE):
        return ""
    if is_attached and not is_strong and _ends_sentence(words) and not _WEAK_MEASURE.search(word):
        return ""  # the last word of a sentence: `number of skipped iterations: 0`
    return _qualified(words, word)


def _ends_sentence(words: List[str]) -> bool:
    return bool(words) and _QUALIFIER.fullmatch(words[-1]) is None


def pairs(text: str) -> Tuple[Dict[str, float], int]:
    """Pairs of name and number of a line that names a step or an epoch in the same way; else none; where they begin."""
    found = {}  # type: Dict[str, float]
    if is_code(text):
        return found, 0
    is_spaced, begin, is_meant = False, -1, is_report(text)
    for match in _PAIR.finditer(text):
        if len(found) >= NAMES:
            break
        name = "step" if match[1] in STEPS else match[1]
        name = "step" if name == "steps" and match.start() == 0 else name
        begin = match.start() if begin < 0 else begin
        if name in ("step", "epoch") and name not in found:
            total = _TOTAL.match(text, match.end())
            if total is not None:
                found.setdefault(name + "s", float(total[1]))
        elif name not in ("epochs", "steps", "batch"):
            words = _words_before(text, match.start())
            if _ends_sentence(words) and not is_measure(name):
                continue
            is_none = _NO_FIGURE.match(name) is not None if is_meant else is_excluded(name)
            name = "" if name in COUNTED or is_none else _qualified(words, name)
        if name and text[match.end() : match.end() + 1] != ":":
            found.setdefault(name, float(match[2]))
            is_spaced |= " =" in match[0]
    # Without a step, or an epoch that serves as one, a number in a line is only a number.
    if ("step" not in found and "epoch" not in found) or len(found) < 2:
        return {}, 0
    if are_settings(found) and ("step" not in found or text.startswith("steps")):
        return {}, 0
    if "step" in found:
        found.pop("batch", None)
    return ({}, 0) if is_spaced and not any(is_measure(name) for name in found) else (found, begin)
