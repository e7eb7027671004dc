"""What a table's columns are good for, found while it is read once: told before a trial is spent.

The trials decide by the rows that they see (``trainmaster_automl.rows``, ``trainmaster_automl.tabular``); here only what is
so of all rows is found, which is so of theirs, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from core.domain.automl.task import MISSING, is_written_number, number_of

# As the trials tell of what was beyond the part of the table that was looked at.
LEAKED: Final = "looks as if it leaked the target"
LEAK: Final = (
    f"Column {{name}} {LEAKED}: each of its values goes with one of the target's, and the other way round. "
    "Where it is not known before the target is, take it out of the table."
)
_NOTHING: Final = "(nothing)"
# Texts of which nearly each row has its own are left out; below so many rows they are categories.
_OWN_TEXTS: Final = 50
# A column of names is kept in memory until one comes twice.
_MOST_TEXTS: Final = 1_000_000


@dataclass(slots=True)
class _Column:
    """What may still be so of a column after the rows so far; ``None``: it is not.

    ``only``: its one value, ``""`` before the first. ``texts``: each row has its own. ``pairs``: the target of each value.
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
        """Whether nothing is left to be found out."""
        return (
            self.only is None and self.texts is None and self.pairs is None and not self.equal and self.grouped is None
        )


@dataclass(slots=True)
class ColumnProfile:
    """``add`` each row that has a target. ``names``: of all columns; ``target``: the place of the target."""

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
            _look(column, row[column.place].strip(), truth)
        self._rows += 1
        self._left = [column for column in self._left if not column.is_settled]

    def useless(self) -> tuple[str, ...]:
        """Columns that are empty, the same everywhere, or texts of which each row has its own."""
        return tuple(
            self.names[one.place]
            for one in self._left or ()
            if one.only is not None or (one.texts is not None and self._rows >= _OWN_TEXTS)
        )

    def mirrors(self, *, is_quantity: bool) -> tuple[str, ...]:
        """Columns whose values and the target's stand for each other one to one, or that are the target's number."""
        return tuple(
            self.names[one.place]
            for one in self._left or ()
            if one.only is None and (one.equal if is_quantity else one.pairs is not None)
        )

    def grouped(self) -> tuple[tuple[str, str], ...]:
        """Columns of numbers that are written as people write them, and the first of each: they are taken for texts."""
        return tuple((self.names[one.place], one.grouped) for one in self._left or () if one.grouped)


def _look(column: _Column, cell: str, truth: str) -> None:
    is_missing = cell.lower() in MISSING
    if column.only is not None and not is_missing:
        column.only = cell if column.only in ("", cell) else None
    if column.texts is not None and not is_missing:
        # What begins as a number or a date does may be one.
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
