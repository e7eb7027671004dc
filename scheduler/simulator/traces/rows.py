"""Rows of a CSV file, with errors that name file, line and column."""

from __future__ import annotations

import csv
import gzip
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from scheduler.simulator.errors import ScenarioError


def read_text(path: Path) -> str:
    """The text of a file, also if it is compressed with gzip."""
    try:
        if path.suffix == ".gz":
            with gzip.open(path, "rt", encoding="utf-8") as file:
                return file.read()
        return path.read_text(encoding="utf-8")
    except (OSError, EOFError) as error:
        raise ScenarioError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    except UnicodeDecodeError as error:
        raise ScenarioError(f"{path}: is not text in UTF-8") from error


def read_rows(path: Path, needed: Sequence[str]) -> Iterator[tuple[int, Mapping[str, str]]]:
    """(line, row) of each row; the first line has the column names.

    Raises:
        ScenarioError: the file cannot be read, or a required column is missing.
    """
    lines = read_text(path).splitlines()
    reader = csv.DictReader(lines)
    missing = [column for column in needed if column not in (reader.fieldnames or ())]
    if missing:
        there = ", ".join(reader.fieldnames or ()) or "none"
        raise ScenarioError(f"{path.name}, line 1: the column {missing[0]!r} is missing; there are {there}")
    for row in reader:
        where = f"{path.name}, line {reader.line_num}"
        for column in needed:
            if row.get(column) is None:
                raise ScenarioError(f"{where}: {column}: is missing, the line is too short")
        yield reader.line_num, row


def number(row: Mapping[str, str], column: str, where: str, *, least: float = 0.0) -> float:
    """Raises :class:`ScenarioError` with line and column for values that are not numbers, or below ``least``."""
    try:
        value = float(row[column])
    except ValueError:
        raise ScenarioError(f"{where}: {column}: {row[column]!r} is not a number") from None
    if not math.isfinite(value):
        raise ScenarioError(f"{where}: {column}: {row[column]!r} is not a finite number")
    if value < least:
        raise ScenarioError(f"{where}: {column}: {row[column]!r} is less than {least:g}")
    return value


def whole(row: Mapping[str, str], column: str, where: str, *, least: int = 0) -> int:
    """The same for integers; ``2.0`` is accepted."""
    value = number(row, column, where, least=least)
    if value != int(value):
        raise ScenarioError(f"{where}: {column}: {row[column]!r} is not a whole number")
    return int(value)
