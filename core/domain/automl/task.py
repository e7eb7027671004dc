"""What is to be learnt, by the values of the target: a class or a number, and by which metric."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from core.domain.automl.space import CLASSIFICATION, REGRESSION

# Whole numbers of so few values, each that often, are classes.
_FEW_VALUES: Final = 20
_OFTEN: Final = 10
_STRAY: Final = 0.02
# How many times as often as the rarest the commonest class is where "accuracy" begins to deceive.
_IMBALANCED: Final = 4.0
# As ``trainmaster_automl.rows`` has it: ``0045`` is text.
_NUMBER: Final = re.compile(
    r"[-+]?(0|[1-9]\d{0,30}|(0|[1-9]\d{0,30})?\.\d{1,40}|[1-9]\d{0,30}\.|0\.)([eE][-+]?\d{1,3})?"
)
# A number as people write it: `1,234.50`, `1.234,5`, `12 345`, `3,14`, `$5`, `7 %`.
_WRITTEN: Final = re.compile(
    r"[-+]?(?P<before>[$€£¥])? ?(\d{1,3}([,.' \u00a0\u202f]\d{3})+([.,]\d+)?|\d+[.,]\d+|\d+) ?(?P<behind>[%€$£¥])?"
)
# What people write for nothing, in lower case; as ``trainmaster_automl.table_files`` has it.
MISSING: Final = frozenset(("", "na", "n/a", "nan", "null", "none", "?"))


@dataclass(frozen=True, slots=True)
class TargetProfile:
    """What a sample of the target's cells says. ``classes``: how often each value is there, the commonest first.

    ``rows``: that can be learnt from. ``strays``: cells of a regression that are no numbers, ``stray``: the first of them.
    ``written``: an example of quantities that are not written as numbers are, such as ``1,234``; empty where they are.
    """

    task: str
    why: str
    rows: int
    classes: tuple[tuple[str, int], ...]
    strays: int = 0
    stray: str = ""
    written: str = ""

    @property
    def has_many_strays(self) -> bool:
        """More than the trials leave out."""
        return self.strays > _STRAY * (self.rows + self.strays)

    @property
    def is_imbalanced(self) -> bool:
        counts = [count for _, count in self.classes]
        return self.task == CLASSIFICATION and len(counts) > 1 and counts[0] >= _IMBALANCED * counts[-1]

    @property
    def metric(self) -> str:
        """The one unless the user says otherwise."""
        if self.task == REGRESSION:
            return "rmse"
        return "balanced_accuracy" if self.is_imbalanced else "accuracy"


def profile_target(cells: Sequence[str], task: str | None = None) -> TargetProfile:
    """``cells``: of the target as they are written. ``task``: what the user says, who knows better."""
    present = [cell.strip() for cell in cells if cell.strip().lower() not in MISSING]
    counts = Counter(present)
    classes = tuple(counts.most_common())
    found, why = _task_of(present, counts)
    if task is not None:
        found, why = task, "as you said"
    strange = [cell for cell in present if math.isnan(number_of(cell))] if found == REGRESSION else []
    return TargetProfile(
        found,
        why,
        len(present) - len(strange),
        classes,
        len(strange),
        strange[0] if strange else "",
        _written_of(counts, len(present)),
    )


def left_of(counts: Sequence[int], fraction: float) -> tuple[int, ...]:
    """How many rows of each class the trials see at most, when a test of ``fraction`` of all has its part.

    As scikit-learn's ``StratifiedShuffleSplit`` shares out: each class its part, rounded down, and one more to those of the
    largest remainders. Of equal remainders chance decides, and they count as having it.
    """
    rows = sum(counts)
    seen = max(0, rows - max(round(fraction * rows), 1, len(counts)))
    parts = [divmod(count * seen, rows) for count in counts]
    spare = seen - sum(whole for whole, _ in parts)
    return tuple(whole + (sum(other > rest for _, other in parts) < spare) for whole, rest in parts)


def _written_of(counts: Counter[str], rows: int) -> str:
    written = [text for text in counts if is_written_number(text)]
    others = rows - sum(counts[text] for text in written)
    return written[0] if len(written) > _FEW_VALUES and others <= _STRAY * rows else ""


def is_written_number(text: str) -> bool:
    """Whether it is a number only to people: with marks between thousands, a comma before its fraction, or a sign."""
    found = _WRITTEN.fullmatch(text)
    if found is None or not math.isnan(number_of(text)):
        return False
    return bool(found["before"] or found["behind"]) or not text.lstrip("+-").isdigit()


def _task_of(present: Sequence[str], counts: Counter[str]) -> tuple[str, str]:
    numbers = {text: number_of(text) for text in counts}
    strange = sum(count for text, count in counts.items() if math.isnan(numbers[text]))
    if strange > _STRAY * len(present):
        return CLASSIFICATION, f"its values are words ({len(counts)} different ones)"
    values = {number for number in numbers.values() if not math.isnan(number)}
    few = len(values) <= _FEW_VALUES and len(present) >= _OFTEN * len(values)
    if len(values) <= 2 or (few and all(value.is_integer() for value in values)):
        return CLASSIFICATION, f"its values are {len(values)} whole numbers"
    return REGRESSION, f"its values are numbers ({len(values)} different ones)"


def number_of(text: str) -> float:
    """NaN: it is none."""
    number = float(text) if _NUMBER.fullmatch(text) else math.nan
    return number if math.isfinite(number) else math.nan
