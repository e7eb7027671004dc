"""Instances of a batch prediction: files and their rows."""

from __future__ import annotations

import json
import math
import os
import re
from typing import Any, Iterator, List, NamedTuple

from trainmaster_serving.errors import InputProblem
from trainmaster_serving.tables import CSV_SUFFIXES, read_csv, read_lines

_JSON_SUFFIXES = (".jsonl", ".ndjson", ".json", ".jsonl.gz", ".ndjson.gz", ".json.gz")
# Only JSON's numbers: 00123 and 1_000 are identifiers. And non-finite numbers as other tools write them.
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?P<fraction>\.[0-9]+)?(?P<exponent>[eE][+-]?[0-9]+)?", re.ASCII)
_NOT_FINITE = ("nan", "NaN", "inf", "-inf", "Infinity", "-Infinity")
_DIGITS = 300  # maximum length of a number


class Row(NamedTuple):
    """One instance, not parsed yet. ``line``: its first line in the file. ``text``: JSON. ``problem``: why it is
    invalid.
    """

    file: str
    line: int
    text: str
    problem: str = ""


def find_files(folder: str, file: str, kind: str) -> List[str]:
    """The files, sorted by name. Raises ``InputProblem``: there are none."""
    if file:
        return [os.path.join(folder, file)]
    found = []
    for root, folders, names in os.walk(folder):
        folders.sort()
        found += [
            os.path.join(root, name)
            for name in names
            if not name.startswith(".") and (kind != "auto" or name.lower().endswith((*_JSON_SUFFIXES, *CSV_SUFFIXES)))
        ]
    if not found:
        known = ", ".join(end for end in (*_JSON_SUFFIXES, *CSV_SUFFIXES) if not end.endswith(".gz"))
        raise InputProblem(
            "There are no instances in %s: names must end in %s (optionally followed by .gz), or name the format."
            % (folder, known)
        )
    return sorted(found)


def is_csv(path: str, kind: str) -> bool:
    return kind == "csv" or (kind == "auto" and path.lower().endswith(CSV_SUFFIXES))


def read_rows(folder: str, paths: List[str], kind: str, csv_rows: str = "object") -> Iterator[Row]:
    """``csv_rows``: whether a row of CSV is an ``object`` by the header's names, or the ``array`` of its cells.

    Raises:
        InputProblem: a file is missing, incomplete, or not text; or the header of a CSV file has a duplicate name.
    """
    for path in paths:
        name = os.path.relpath(path, folder)
        if is_csv(path, kind):
            yield from _rows_of_csv(path, name, csv_rows)
        else:
            for number, line in enumerate(read_lines(path), start=1):
                if line.strip():
                    yield Row(name, number, line)


def _rows_of_csv(path: str, name: str, csv_rows: str) -> Iterator[Row]:
    rows = read_csv(path)
    _, names = next(rows, (1, []))
    twice = sorted({column for column in names if names.count(column) > 1})
    if twice and csv_rows == "object":
        raise InputProblem(
            "%s: two columns are called %s; give each its own name, or have rows be arrays (--csv-rows array)."
            % (path, ", ".join(map(repr, twice[:5])))
        )
    for number, (line, cells) in enumerate(rows, start=2):  # numbered as in a spreadsheet: the header is row 1
        if len(cells) != len(names):
            has = "%d cell%s" % (len(cells), "" if len(cells) == 1 else "s")
            yield Row(name, line, json.dumps(cells), "row %d has %s, the header has %d" % (number, has, len(names)))
        elif csv_rows == "array":
            yield Row(name, line, json.dumps([_value(cell) for cell in cells]))
        else:
            yield Row(name, line, json.dumps({key: _value(cell) for key, cell in zip(names, cells)}))


def _value(text: str) -> Any:
    """The value of a cell: a number if it is written as one."""
    if text in _NOT_FINITE:
        return float(text)
    found = _NUMBER.fullmatch(text) if len(text) <= _DIGITS else None
    if found is None:
        return text
    if not (found["fraction"] or found["exponent"]):
        return int(text)
    number = float(text)
    return number if math.isfinite(number) else text
