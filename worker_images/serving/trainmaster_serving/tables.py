"""Reading of text and CSV files, shared by AutoML's trials and batch predictions."""

from __future__ import annotations

import csv
import gzip
import io
import re
import zlib
from itertools import chain
from typing import Iterator, List, Tuple

from trainmaster_serving.errors import InputProblem

CSV_SUFFIXES = (".csv", ".csv.gz", ".tsv", ".tsv.gz")
_CELL_LIMIT = 32 * 2**20  # characters: the limit of a request to an endpoint
_QUOTED = re.compile(r'"(?:[^"]|"")*(?:"|$)')


def read_lines(path: str) -> Iterator[str]:
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

    Raises as ``read_lines``, and ``InputProblem``: it is not CSV.
    """
    lines = read_lines(path)
    head: List[str] = []
    for line in lines:
        head.append(line)
        if line.strip():
            break
    csv.field_size_limit(_CELL_LIMIT)
    reader = csv.reader(chain(head, lines), delimiter=delimiter_of(head[-1] if head else ""))
    begins, is_header = 1, True
    try:
        for cells in reader:
            if cells:
                yield begins, [cell.strip() for cell in cells] if is_header else cells
                is_header = False
            begins = reader.line_num + 1
    except csv.Error as error:
        raise InputProblem("%s, line %d: it cannot be read as CSV: %s." % (path, begins, error)) from error


def delimiter_of(first_line: str) -> str:
    """The most frequent of comma, semicolon, tab and bar in the first line, outside of quotes."""
    bare = _QUOTED.sub("", first_line)
    return max((",", ";", "\t", "|"), key=bare.count)
