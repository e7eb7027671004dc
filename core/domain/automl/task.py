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
# What people write for nothing, in lower case; as ``trainmaster_automl.reading`` has it.
MISSING: Final = frozenset(("", "na", "n/a", "nan", "null", "none", "?"))


@dataclass(frozen=True, slots=True)
class Target:
    """What a sample of the target's cells says. ``classes``: how often each value is there, the commonest first.

    ``rows``: that can be learnt from. ``strays``: cells of a regression that are no numbers, ``stray``: the first of them.
    """

    task: str
    why: str
    rows: int
    classes: tuple[tuple[str, int], ...]
    strays: int = 0
    stray: str = ""

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


def look_at(cells: Sequence[str], task: str | None = None) -> Target:
    """``cells``: of the target as they are written. ``task``: what the user says, who knows better."""
    present = [cell.strip() for cell in cells if cell.strip().lower() not in MISSING]
    counts = Counter(present)
    classes = tuple(counts.most_common())
    found, why = _task_of(present, counts)
    if task is not None:
        found, why = task, "as you said"
    strange = [cell for cell in present if math.isnan(_number(cell))] if found == REGRESSION else []
    return Target(found, why, len(present) - len(strange), classes, len(strange), strange[0] if strange else "")


def _task_of(present: Sequence[str], counts: Counter[str]) -> tuple[str, str]:
    numbers = {text: _number(text) for text in counts}
    strange = sum(count for text, count in counts.items() if math.isnan(numbers[text]))
    if strange > _STRAY * len(present):
        return CLASSIFICATION, f"its values are words ({len(counts)} different ones)"
    values = {number for number in numbers.values() if not math.isnan(number)}
    few = len(values) <= _FEW_VALUES and len(present) >= _OFTEN * len(values)
    if len(values) <= 2 or (few and all(value.is_integer() for value in values)):
        return CLASSIFICATION, f"its values are {len(values)} whole numbers"
    return REGRESSION, f"its values are numbers ({len(values)} different ones)"


def _number(text: str) -> float:
    number = float(text) if _NUMBER.fullmatch(text) else math.nan
    return number if math.isfinite(number) else math.nan
