"""Profile of a table's columns, and the columns that number its rows, collected in the single pass that reads it,
before a trial is spent.

The trials decide by the rows that they see (``trainmaster_automl.rows``, ``trainmaster_automl.tabular``); found here is
only what holds for all rows, and therefore for theirs, too.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from core.domain.automl.task import MISSING, is_written_number, number_of

# The trials' own wording for leaks beyond the sampled part of the table.
LEAKED: Final = "looks as if it leaked the target"
LEAK: Final = (
    f"Column {{name}} {LEAKED}: its values correspond one to one to those of the target. "
    "If it is not known before the target, remove it from the table."
)
_NOTHING: Final = "(nothing)"
# Texts that differ in nearly every row are left out; with fewer rows they are categories.
_OWN_TEXTS: Final = 50
# The values of a text column are held in memory until one repeats.
_MOST_TEXTS: Final = 1_000_000
# As ``trainmaster_automl.rows`` has them.
_ID_NAME: Final = re.compile(
    r"(?:.*[_\W])?(?:id|idx|uid|rowid)|(?:row[ _]?)?(?:index|number|num|no|nr)\.?|unnamed: 0", re.IGNORECASE
)
_CAMEL: Final = re.compile(r".*[a-z0-9]I[dD]")
_WHOLE: Final = re.compile(r"[-+]?(0|[1-9]\d{0,30})(\.0*)?")


@dataclass(slots=True)
class _Column:
    """Hypotheses about a column that the rows so far have not refuted; ``None``: refuted.

    ``only``: its one value, ``""`` before the first. ``texts``: values differ in every row. ``pairs``: value -> target.
    ``equal``: it is the target's number. ``grouped``: an example of numbers such as ``1,234``.
    """

    place: int
    only: str | None = ""
    texts: set[str] | None = field(default_factory=set)
    pairs: dict[str, str] | None = field(default_factory=dict)
    values: dict[str, str] | None = field(default_factory=dict)
    equal: bool = True
    grouped: str | None = ""

    @property
    def is_settled(self) -> bool:
        """Whether all hypotheses are refuted."""
        return (
            self.only is None and self.texts is None and self.pairs is None and not self.equal and self.grouped is None
        )


@dataclass(slots=True)
class ColumnProfile:
    """``add`` each row that has a target. ``names``: of all columns; ``target``: index of the target's column."""

    names: Sequence[str]
    target: int
    _left: list[_Column] | None = None
    _rows: int = 0

    def add(self, row: Sequence[str]) -> None:
        truth = row[self.target].strip()
        if truth.lower() in MISSING:
            return
        if self._left is None:
            self._left = [_Column(place) for place in range(len(self.names)) if place != self.target]
        for column in self._left:
            _observe_cell(column, row[column.place].strip(), truth)
        self._rows += 1
        self._left = [column for column in self._left if not column.is_settled]

    def uninformative(self) -> tuple[str, ...]:
        """Columns that are empty, constant, or texts that differ in every row."""
        return tuple(
            self.names[column.place]
            for column in self._left or ()
            if column.only is not None or (column.texts is not None and self._rows >= _OWN_TEXTS)
        )

    def mirrors(self, *, is_quantity: bool) -> tuple[str, ...]:
        """Columns in one-to-one correspondence with the target, or equal to its number (target leakage)."""
        return tuple(
            self.names[column.place]
            for column in self._left or ()
            if column.only is None and (column.equal if is_quantity else column.pairs is not None)
        )

    def grouped(self) -> tuple[tuple[str, str], ...]:
        """Columns of numbers in human notation (taken for texts), each with its first value."""
        return tuple((self.names[column.place], column.grouped) for column in self._left or () if column.grouped)


def _observe_cell(column: _Column, cell: str, truth: str) -> None:
    is_missing = cell.lower() in MISSING
    if column.only is not None and not is_missing:
        column.only = cell if column.only in ("", cell) else None
    if column.texts is not None and not is_missing:
        # A value that begins like a number or a date may be one.
        if cell in column.texts or cell[0].isdigit() or cell[0] in "+-." or len(column.texts) >= _MOST_TEXTS:
            column.texts = None
        else:
            column.texts.add(cell)
    if column.pairs is not None and column.values is not None:
        text = _NOTHING if is_missing else cell
        if column.pairs.setdefault(text, truth) != truth or column.values.setdefault(truth, text) != text:
            column.pairs = column.values = None
    if column.equal:
        column.equal = number_of(cell) == number_of(truth)
    if column.grouped is not None and not is_missing:
        column.grouped = (column.grouped or cell) if is_written_number(cell) else None


@dataclass(slots=True)
class _NumberingColumn:
    """A column that may number the rows. ``step``: cell minus row number, as long as it is constant. ``ids``: values
    of an id column.
    """

    place: int
    step: int | None
    ids: set[int] | None = None


@dataclass(slots=True)
class CounterColumns:
    """``add`` each row in order; ``names`` then has the columns that number them. Most drop out at the first row."""

    columns: Sequence[str]
    _left: list[_NumberingColumn] = field(default_factory=list)
    _rows: int = 0

    def add(self, row: Sequence[str]) -> None:
        if not self._rows:
            self._left = [
                _NumberingColumn(place, None, set() if _is_name_of_id(name) else None)
                for place, name in enumerate(self.columns)
            ]
        self._left = [column for column in self._left if self._fits(column, row[column.place].strip())]
        self._rows += 1

    def names(self) -> tuple[str, ...]:
        return tuple(self.columns[column.place] for column in self._left)

    def _fits(self, column: _NumberingColumn, cell: str) -> bool:
        found = _WHOLE.fullmatch(cell)
        if found is None:
            return False
        value = int(cell.partition(".")[0])
        if column.ids is not None:
            is_new = value not in column.ids
            column.ids.add(value)
            return is_new
        step = value - self._rows
        if column.step is None:
            column.step = step
        return step == column.step and step in (0, 1)


def _is_name_of_id(name: str) -> bool:
    return bool(_ID_NAME.fullmatch(name.strip()) or _CAMEL.fullmatch(name.strip()))
