"""Reading of table files: CSV by the standard library, Parquet if pyarrow is installed."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from difflib import get_close_matches
from random import Random  # noqa: TID251 (seeded by the study)
from typing import Any, Iterator, Sequence

from trainmaster_serving.errors import InputProblem
from trainmaster_serving.input_files import CSV_SUFFIXES, read_csv

from trainmaster_automl.options import DataProblem

PARQUET_SUFFIXES = (".parquet", ".pq")
# Common spellings of a missing value.
MISSING = frozenset(("", "na", "n/a", "nan", "null", "none", "?"))


@dataclass(frozen=True)
class RawTable:
    """``rows``: lists of cells, texts from CSV, values from Parquet; missing cells are ``None``. ``row_count``: rows
    in the files, of which ``rows`` may be a sample.

    ``indices``: of ``rows`` among all rows, from 0.
    """

    names: list[str]
    rows: list[list[Any]]
    row_count: int
    indices: list[int]

    def split_target(self, target: str) -> tuple[list[str], list[list[Any]], list[Any]]:
        """Names and rows without the column ``target``, and that column. Raises ``DataProblem``: no such column."""
        if target not in self.names:
            raise DataProblem(no_such_column(target, self.names))
        index = self.names.index(target)
        names = self.names[:index] + self.names[index + 1 :]
        return names, [row[:index] + row[index + 1 :] for row in self.rows], [row[index] for row in self.rows]


def no_such_column(target: str, names: Sequence[str]) -> str:
    close = get_close_matches(target, names, n=1, cutoff=0.6)
    hint = " Did you mean %r?" % close[0] if close else ""
    more = " and %d more" % (len(names) - 30) if len(names) > 30 else ""
    return "There is no column %r.%s The columns are %s%s." % (target, hint, ", ".join(names[:30]), more)


def read_table(folder: str, file: str, max_rows: int, seed: int) -> RawTable:
    """Read the table, or the concatenation of all tables of the folder, which must have the same columns.

    Args:
        max_rows: of more rows a uniform sample is drawn.

    Raises:
        DataProblem: there is no table, or it cannot be read; names the file and line.
    """
    paths = [os.path.join(folder, file)] if file else _tables_of(folder)
    names: list[str] | None = None
    sample: list[tuple[int, list[Any]]] = []
    row_count = 0
    generator = Random(seed)  # noqa: S311 (a sample by the study's seed)
    for path in paths:
        rows = _rows_of(path)
        own = [str(cell) for cell in next(rows)]
        if names is None:
            names = _checked_names(own, path)
        elif own != names:
            raise DataProblem(
                "%s has other columns than %s; a folder needs tables with equal columns." % (path, paths[0])
            )
        for row in rows:
            # Reservoir sampling, Vitter's algorithm R.
            index = row_count if row_count < max_rows else generator.randint(0, row_count)
            if index < max_rows:
                if row_count < max_rows:
                    sample.append((row_count, row))
                else:
                    sample[index] = (row_count, row)
            row_count += 1
    if not row_count or names is None:
        raise DataProblem("%s has no rows below its header." % paths[0])
    sample.sort(key=lambda entry: entry[0])
    return RawTable(names, [row for _, row in sample], row_count, [index for index, _ in sample])


def _tables_of(folder: str) -> list[str]:
    try:
        names = sorted(name for name in os.listdir(folder) if name.lower().endswith((*CSV_SUFFIXES, *PARQUET_SUFFIXES)))
    except OSError as error:
        raise DataProblem("The data's folder cannot be read: %s." % error.strerror) from error
    if not names:
        raise DataProblem(
            "The data's folder has no table; supported are %s." % ", ".join((*CSV_SUFFIXES, *PARQUET_SUFFIXES))
        )
    return [os.path.join(folder, name) for name in names]


def _checked_names(names: list[str], path: str) -> list[str]:
    blank = [str(index + 1) for index, name in enumerate(names) if not name.strip()]
    if blank:
        raise DataProblem("%s: column %s has no name in the first line." % (path, ", ".join(blank[:5])))
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise DataProblem("%s: two columns are called %s." % (path, ", ".join(twice[:5])))
    if len(names) < 2:
        raise DataProblem("%s has one column; a target and at least one other are needed." % path)
    return names


def _rows_of(path: str) -> Iterator[list[Any]]:
    """Rows of a file, the names first. Raises ``DataProblem``."""
    try:
        yield from _parquet(path) if path.lower().endswith(PARQUET_SUFFIXES) else _csv(path)
    except OSError as error:
        raise DataProblem("%s cannot be read: %s." % (path, error)) from error


def _csv(path: str) -> Iterator[list[Any]]:
    try:
        rows = read_csv(path)
        _, names = next(rows, (1, []))
        yield names
        for line, row in rows:
            if len(row) != len(names):
                raise DataProblem(
                    "%s, line %d: it has %d cells, and the first line has %d." % (path, line, len(row), len(names))
                )
            yield [None if cell.strip().lower() in MISSING else cell.strip() for cell in row]
    except InputProblem as problem:
        raise DataProblem(str(problem)) from problem


def _parquet(path: str) -> Iterator[list[Any]]:
    try:
        from pyarrow import parquet  # pyright: ignore[reportMissingImports] (if installed)
    except ImportError as error:
        raise DataProblem("%s is Parquet, and pyarrow is not installed where it is read; write CSV." % path) from error
    try:
        opened = parquet.ParquetFile(path)
    except Exception as error:  # pyarrow raises many types
        raise DataProblem("%s cannot be read as Parquet: %s" % (path, str(error)[:300])) from error
    yield list(opened.schema_arrow.names)
    for batch in opened.iter_batches(batch_size=10_000):
        columns = [column.to_pylist() for column in batch.columns]
        for cells in zip(*columns):
            yield [_plain(cell) for cell in cells]


def _plain(cell: Any) -> Any:
    """Texts and numbers unchanged, dates in ISO format, everything else as text."""
    if cell is None or (isinstance(cell, float) and math.isnan(cell)):
        return None
    if isinstance(cell, bool):
        return "true" if cell else "false"
    if isinstance(cell, (int, float, str)):
        return cell
    return cell.isoformat() if hasattr(cell, "isoformat") else str(cell)
