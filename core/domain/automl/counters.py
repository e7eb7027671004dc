"""Columns that number the rows, found in the single pass that reads a table; same rule as
``trainmaster_automl.counters``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

# As ``trainmaster_automl.counters`` has them.
_NAME: Final = re.compile(
    r"(?:.*[_\W])?(?:id|idx|uid|rowid)|(?:row[ _]?)?(?:index|number|num|no|nr)\.?|unnamed: 0", re.IGNORECASE
)
_CAMEL: Final = re.compile(r".*[a-z0-9]I[dD]")
_WHOLE: Final = re.compile(r"[-+]?(0|[1-9]\d{0,30})(\.0*)?")


@dataclass(slots=True)
class _Column:
    """``step``: cell minus row number, as long as it is constant. ``seen``: values of an id column."""

    place: int
    step: int | None
    seen: set[int] | None = None


@dataclass(slots=True)
class CounterColumns:
    """``add`` each row in order; ``names`` then has the columns that number them. Most drop out at the first row."""

    columns: Sequence[str]
    _left: list[_Column] = field(default_factory=list)
    _rows: int = 0

    def add(self, row: Sequence[str]) -> None:
        if not self._rows:
            self._left = [
                _Column(place, None, set() if is_name_of_id(name) else None) for place, name in enumerate(self.columns)
            ]
        self._left = [column for column in self._left if self._fits(column, row[column.place].strip())]
        self._rows += 1

    def names(self) -> tuple[str, ...]:
        return tuple(self.columns[column.place] for column in self._left)

    def _fits(self, column: _Column, cell: str) -> bool:
        found = _WHOLE.fullmatch(cell)
        if found is None:
            return False
        value = int(cell.partition(".")[0])
        if column.seen is not None:
            is_new = value not in column.seen
            column.seen.add(value)
            return is_new
        step = value - self._rows
        if column.step is None:
            column.step = step
        return step == column.step and step in (0, 1)


def is_name_of_id(name: str) -> bool:
    return bool(_NAME.fullmatch(name.strip()) or _CAMEL.fullmatch(name.strip()))
