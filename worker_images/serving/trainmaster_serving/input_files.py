"""Input files: text and CSV, which AutoML's trials read, too, and the rows of a batch prediction."""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
import os
import re
import zlib
from itertools import chain
from typing import Any, Iterator, List, NamedTuple, Tuple

from trainmaster_serving.errors import InputProblem

CSV_SUFFIXES = (".csv", ".csv.gz", ".tsv", ".tsv.gz")
_CELL_LIMIT = 32 * 2**20  # characters: the limit of a request to an endpoint
_QUOTED = re.compile(r'"(?:[^"]|"")*(?:"|$)')
_JSON_SUFFIXES = (".jsonl", ".ndjson", ".json", ".jsonl.gz", ".ndjson.gz", ".json.gz")
# Only JSON's numbers: 00123 and 1_000 are identifiers. And non-finite numbers as other tools write them.
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?P<fraction>\.[0-9]+)?(?P<exponent>[eE][+-]?[0-9]+)?", re.ASCII)
_NOT_FINITE = ("nan", "NaN", "inf", "-inf", "Infinity", "-Infinity")
_DIGITS = 300  # maximum length of a number


def _read_lines(path: str) -> Iterator[str]:
    """Lines of a text file, unpacked if its name ends in ``.gz``, without a byte order mark, with unchanged line ends.

    Raises:
        InputProblem: it is missing, incomplete, or not UTF-8.
        OSError: the file system failed; another try may succeed.
    """
    try:
        raw = gzip.open(path, "rb") if path.lower().endswith(".gz") else open(path, "rb")  # noqa: SIM115 (closed below)
        with raw, io.TextIOWrapper(raw, encoding="utf-8-sig", newline="") as text:
            yield from text
    except FileNotFoundError as error:
        raise InputProblem("There is no file %s." % path) from error
    except UnicodeDecodeError as error:
        raise InputProblem(
            "%s, line %d: it is not UTF-8 text; save the file as UTF-8, such as by `iconv -f LATIN1 -t UTF-8`."
            % (path, _first_undecodable_line(path))
        ) from error
    except EOFError as error:
        raise InputProblem("%s is a truncated gzip file: copy it again." % path) from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise InputProblem(
            "%s is not a gzip file, or a damaged one (%s): copy it again, or remove .gz from its name." % (path, error)
        ) from error
    except OSError as error:
        error.filename = error.filename or path  # errors during reading do not name the file
        raise


def _first_undecodable_line(path: str) -> int:
    """The first line that is not UTF-8. The decoder reads ahead in blocks and does not know."""
    with gzip.open(path, "rb") if path.lower().endswith(".gz") else open(path, "rb") as raw:
        for number, line in enumerate(raw, start=1):
            try:
                line.decode("utf-8")
            except UnicodeDecodeError:
                return number
    return 1


def read_csv(path: str) -> Iterator[Tuple[int, List[str]]]:
    """Rows with their first line number, the header first, with stripped names. Empty lines are skipped.

    Raises as ``_read_lines``, and ``InputProblem``: it is not CSV.
    """
    lines = _read_lines(path)
    head: List[str] = []
    for line in lines:
        head.append(line)
        if line.strip():
            break
    csv.field_size_limit(_CELL_LIMIT)
    reader = csv.reader(chain(head, lines), delimiter=_delimiter_of(head[-1] if head else ""))
    begins, is_header = 1, True
    try:
        for cells in reader:
            if cells:
                yield begins, [cell.strip() for cell in cells] if is_header else cells
                is_header = False
            begins = reader.line_num + 1
    except csv.Error as error:
        raise InputProblem("%s, line %d: it cannot be read as CSV: %s." % (path, begins, error)) from error


def _delimiter_of(first_line: str) -> str:
    """The most frequent of comma, semicolon, tab and bar in the first line, outside of quotes."""
    bare = _QUOTED.sub("", first_line)
    return max((",", ";", "\t", "|"), key=bare.count)


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
    files = []
    for root, folders, names in os.walk(folder):
        folders.sort()
        files += [
            os.path.join(root, name)
            for name in names
            if not name.startswith(".") and (kind != "auto" or name.lower().endswith((*_JSON_SUFFIXES, *CSV_SUFFIXES)))
        ]
    if not files:
        known = ", ".join(end for end in (*_JSON_SUFFIXES, *CSV_SUFFIXES) if not end.endswith(".gz"))
        raise InputProblem(
            "There are no instances in %s: names must end in %s (optionally followed by .gz), or name the format."
            % (folder, known)
        )
    return sorted(files)


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
            for number, line in enumerate(_read_lines(path), start=1):
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
    match = _NUMBER.fullmatch(text) if len(text) <= _DIGITS else None
    if match is None:
        return text
    if not (match["fraction"] or match["exponent"]):
        return int(text)
    number = float(text)
    return number if math.isfinite(number) else text
