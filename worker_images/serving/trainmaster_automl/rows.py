"""First pipeline step of every model of tables: raw rows to numbers and categories, the same in training and
serving; and the kinds of columns.

Columns that number the rows are detected, because they encode the order of the rows, which does not generalise to new
rows. The control plane has the same rule in ``core/domain/automl/columns.py``, to report it before any trial.
"""

from __future__ import annotations

import math
import re
from datetime import datetime, timezone
from typing import Any, Iterable, Sequence

import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin

from trainmaster_automl.table_files import MISSING

NUMBER, DATE, CATEGORY, MANY, DROPPED = "number", "date", "category", "many", "dropped"
NOTHING = "(nothing)"
# The reason for dropping a column of texts.
OWN_TEXTS = "nearly every row has a text of its own, as names and free text have"
# Above this number categories are target-encoded instead of one-hot encoded.
FEW_CATEGORIES = 40
# Share of non-numeric cells in a column of numbers, which count as missing.
_STRAY = 0.02
_NUMBER = re.compile(r"[-+]?(0|[1-9]\d{0,30}|(0|[1-9]\d{0,30})?\.\d{1,40}|[1-9]\d{0,30}\.|0\.)([eE][-+]?\d{1,3})?")
_DATE_FORMATS = ("%Y/%m/%d", "%d.%m.%Y", "%m/%d/%Y", "%d/%m/%Y", "%Y%m%dT%H%M%S")
_DATE_PARTS = 6

# ``id``, ``user_id``, ``PassengerId``, ``ID``, but not ``paid``; ``Unnamed: 0`` is how pandas reads its own index back.
_NAME_OF_ID = re.compile(
    r"(?:.*[_\W])?(?:id|idx|uid|rowid)|(?:row[ _]?)?(?:index|number|num|no|nr)\.?|unnamed: 0", re.IGNORECASE
)
_CAMEL_CASE_ID = re.compile(r".*[a-z0-9]I[dD]")


def number_of(cell: Any) -> float:
    """The number in a cell; NaN if it is none, or exceeds a float. ``00123`` is text, as in JSON."""
    if isinstance(cell, bool) or not isinstance(cell, (int, float, str)):
        return math.nan
    if isinstance(cell, str) and not _NUMBER.fullmatch(cell.strip()):
        return math.nan
    try:
        number = float(cell)
    except OverflowError:
        return math.nan
    return number if math.isfinite(number) else math.nan


def date_of(cell: Any, form: str) -> datetime | None:
    """The date in a cell, or ``None``. ``form``: ``iso``, or a format of ``strptime``."""
    if not isinstance(cell, str):
        return None
    try:
        date = datetime.fromisoformat(cell.strip()) if form == "iso" else _parse_date(cell.strip(), form)
        return date if date.tzinfo is None else date.astimezone(timezone.utc).replace(tzinfo=None)
    except (ValueError, OverflowError):  # OverflowError: before the year 1 in UTC
        return None


def _parse_date(text: str, form: str) -> datetime:
    return datetime.strptime(text, form)  # noqa: DTZ007 (as in the cells: without a time zone)


def text_of(cell: Any) -> str:
    """A category's name: the same for ``3``, ``3.0`` and ``"3"``."""
    if cell is None or (isinstance(cell, float) and math.isnan(cell)):
        return NOTHING
    if isinstance(cell, bool):
        return "true" if cell else "false"
    if isinstance(cell, float) and cell.is_integer():
        return str(int(cell))
    text = str(cell).strip()
    return NOTHING if text.lower() in MISSING else text  # requests may spell missing values as in the table


def kind_of(cells: Iterable[Any]) -> tuple[str, str]:
    """The kind of a column, and why it is dropped or the format of its dates."""
    present = [cell for cell in cells if text_of(cell) != NOTHING]
    different = {text_of(cell) for cell in present}
    if not present:
        return DROPPED, "it is empty"
    if len(different) == 1:
        return DROPPED, "it is the same everywhere"
    numbers = sum(not math.isnan(number_of(cell)) for cell in present)
    if numbers >= (1 - _STRAY) * len(present):
        return NUMBER, ""
    for form in ("iso", *_DATE_FORMATS):
        if all(date_of(cell, form) is not None for cell in present):
            return DATE, form
    if len(different) > 20 and len(different) > 0.9 * len(present):
        return DROPPED, OWN_TEXTS
    return (CATEGORY if len(different) <= FEW_CATEGORIES else MANY), ""


class RowReader(BaseEstimator, TransformerMixin):  # type: ignore[misc]
    """Transforms raw rows to a matrix of objects: numbers first, then categories as texts.

    Args:
        names: of all columns. kinds, forms: of each, from ``kind_of`` of the trials' rows; fixed before any validation,
            so that ``fit`` learns nothing.
    """

    # The server passes rows of any types, not arrays of one type.
    takes_rows = True

    def __init__(self, names: Sequence[str] = (), kinds: Sequence[str] = (), forms: Sequence[str] = ()) -> None:
        self.names = names
        self.kinds = kinds
        self.forms = forms

    def fit(self, rows: Any, target: Any = None) -> RowReader:  # noqa: ARG002 (scikit-learn's signature)
        self.feature_names_in_ = np.asarray(
            [name for name, kind in zip(self.names, self.kinds) if kind != DROPPED], dtype=object
        )
        return self

    def transform(self, rows: Any) -> Any:
        """A matrix (rows, numbers + categories) of objects. Raises ``ValueError``: rows have another width."""
        columns = self._columns(rows)
        numbers: list[list[Any]] = []
        texts: dict[str, list[list[Any]]] = {CATEGORY: [], MANY: []}
        for cells, (kind, form) in zip(columns, self._used()):
            if kind == NUMBER:
                numbers.append([number_of(cell) for cell in cells])
            elif kind == DATE:
                numbers += _date_parts(cells, form)
            else:
                texts[kind].append([text_of(cell) for cell in cells])
        made = np.empty((len(rows), len(numbers) + len(texts[CATEGORY]) + len(texts[MANY])), dtype=object)
        for index, column in enumerate([*numbers, *texts[CATEGORY], *texts[MANY]]):
            made[:, index] = column
        return made

    def blocks(self) -> tuple[slice, slice, slice]:
        """Columns of numbers, of categories with few values, and of those with many, in the result of ``transform``."""
        kinds = [kind for kind, _ in self._used()]
        numbers = kinds.count(NUMBER) + _DATE_PARTS * kinds.count(DATE)
        few = numbers + kinds.count(CATEGORY)
        return slice(0, numbers), slice(numbers, few), slice(few, few + kinds.count(MANY))

    def _used(self) -> list[tuple[str, str]]:
        return [(kind, form) for kind, form in zip(self.kinds, self.forms) if kind != DROPPED]

    def _columns(self, rows: Any) -> list[list[Any]]:
        used = [index for index, kind in enumerate(self.kinds) if kind != DROPPED]
        width = len(rows[0])
        if width == len(self.names):
            return [[row[index] for row in rows] for index in used]
        if width == len(used):
            return [[row[index] for row in rows] for index in range(width)]
        names = [self.names[index] for index in used]
        raise ValueError("rows have %d cells; the model takes %d: %s" % (width, len(names), ", ".join(names[:20])))


def _date_parts(cells: Sequence[Any], form: str) -> list[list[float]]:
    """Year, month, day, weekday, hour, and days since 1970 of each; NaN if it is not a date."""
    dates = [date_of(cell, form) for cell in cells]
    start = datetime(1970, 1, 1)  # noqa: DTZ001 (as in the cells: without a time zone)
    parts = [
        (d.year, d.month, d.day, d.weekday(), d.hour, (d - start).total_seconds() / 86_400)
        if d is not None
        else (math.nan,) * _DATE_PARTS
        for d in dates
    ]
    return [[float(parts_of_date[index]) for parts_of_date in parts] for index in range(_DATE_PARTS)]


def is_counter(name: str, cells: Sequence[Any], indices: Sequence[int]) -> bool:
    """Whether the column numbers the rows: distinct whole numbers, with the name of an id, or counting from 0 or 1.

    Args:
        indices: of the rows in the whole table, from 0, because the rows may be a sample.
    """
    values = [number_of(cell) for cell in cells]
    if not values or any(math.isnan(value) or not value.is_integer() for value in values):
        return False
    if len(set(values)) < len(values):
        return False
    steps = {value - index for value, index in zip(values, indices)}
    return _is_name_of_id(name) or steps in ({0.0}, {1.0})


def _is_name_of_id(name: str) -> bool:
    return bool(_NAME_OF_ID.fullmatch(name.strip()) or _CAMEL_CASE_ID.fullmatch(name.strip()))
