"""Infer the task from the target's values: classification or regression, and the metric."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from core.domain.automl.space import CLASSIFICATION, REGRESSION

# Integers with so few values, each that often, are classes.
_FEW_VALUES: Final = 20
_OFTEN: Final = 10
_STRAY: Final = 0.02
# Ratio of the largest to the smallest class from which "accuracy" misleads.
_IMBALANCED: Final = 4.0
# As in ``trainmaster_automl.rows``: ``0045`` is text.
_NUMBER: Final = re.compile(
    r"[-+]?(0|[1-9]\d{0,30}|(0|[1-9]\d{0,30})?\.\d{1,40}|[1-9]\d{0,30}\.|0\.)([eE][-+]?\d{1,3})?"
)
# A number in human notation: `1,234.50`, `1.234,5`, `12 345`, `3,14`, `$5`, `7 %`.
_WRITTEN: Final = re.compile(
    r"[-+]?(?P<before>[$€£¥])? ?(\d{1,3}([,.' \u00a0\u202f]\d{3})+([.,]\d+)?|\d+[.,]\d+|\d+) ?(?P<behind>[%€$£¥])?"
)
# Notations for a missing value, in lower case; as in ``trainmaster_automl.table_files``.
MISSING: Final = frozenset(("", "na", "n/a", "nan", "null", "none", "?"))


@dataclass(frozen=True, slots=True)
class TargetProfile:
    """Profile of a sample of the target's cells. ``classes``: frequency of each value, the largest first.

    ``rows``: usable rows. ``strays``: non-numeric cells of a regression, ``stray``: the first of them. ``written``: an
    example of quantities in human notation, such as ``1,234``; empty without any.
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
        """More than the trials tolerate."""
        return self.strays > _STRAY * (self.rows + self.strays)

    @property
    def is_imbalanced(self) -> bool:
        counts = [count for _, count in self.classes]
        return self.task == CLASSIFICATION and len(counts) > 1 and counts[0] >= _IMBALANCED * counts[-1]

    @property
    def metric(self) -> str:
        """The default metric."""
        if self.task == REGRESSION:
            return "rmse"
        return "balanced_accuracy" if self.is_imbalanced else "accuracy"


def profile_target(cells: Sequence[str], task: str | None = None) -> TargetProfile:
    """``cells``: raw cells of the target's column. ``task``: the user's choice, which overrides the inferred one."""
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
    """The largest number of training rows of each class after a test split of ``fraction``.

    As scikit-learn's ``StratifiedShuffleSplit`` divides: each class gets its share, rounded down, and the largest
    remainders get one more. Ties are broken by chance there; here each of them counts as getting it.
    """
    rows = sum(counts)
    training = max(0, rows - max(round(fraction * rows), 1, len(counts)))
    parts = [divmod(count * training, rows) for count in counts]
    spare = training - sum(whole for whole, _ in parts)
    return tuple(whole + (sum(other > rest for _, other in parts) < spare) for whole, rest in parts)


def _written_of(counts: Counter[str], rows: int) -> str:
    written = [text for text in counts if is_written_number(text)]
    others = rows - sum(counts[text] for text in written)
    return written[0] if len(written) > _FEW_VALUES and others <= _STRAY * rows else ""


def is_written_number(text: str) -> bool:
    """Whether it is a number only in human notation: with thousands separators, a decimal comma, or a sign."""
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
    """NaN: not a number."""
    number = float(text) if _NUMBER.fullmatch(text) else math.nan
    return number if math.isfinite(number) else math.nan
