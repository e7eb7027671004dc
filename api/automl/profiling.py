"""Data profiling: reads the data on a volume to report mistakes before the first trial runs."""

from __future__ import annotations

import csv
import gzip
import io
import os
import re
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import islice
from typing import Final

from core.domain.automl.columns import ColumnProfile, CounterColumns
from core.domain.automl.space import IMAGES, TABULAR
from core.domain.errors import InvalidRequest, TrainmasterError
from core.storage.tree import Tree

CSV_SUFFIXES: Final = (".csv", ".csv.gz", ".tsv", ".tsv.gz")
PARQUET_SUFFIXES: Final = (".parquet", ".pq")
IMAGE_SUFFIXES: Final = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff")
# Of a table, decompressed: takes half a second to read.
READ_LIMIT_BYTES: Final = 16 * 2**20
_FOLDER_LIMIT: Final = 2_000
FILE_COUNT_LIMIT: Final = 200
# Entries of one folder: there may be millions, and a request has seconds.
ENTRY_LIMIT: Final = 20_000
_SHOWN_COLUMNS: Final = 30
_HEAD_ROWS: Final = 50  # rows
_CELL_LIMIT_CHARS: Final = 2**20
_QUOTED: Final = re.compile(r'"(?:[^"]|"")*(?:"|$)')  # the same as in ``trainmaster_serving.input_files``
_PARQUET_MAGIC: Final = b"PAR1"  # the first and last bytes of each Parquet file


@dataclass(frozen=True, slots=True)
class DataProfile:
    """Facts about a table, or about folders of images.

    Attributes:
        kind: ``TABULAR`` or ``IMAGES``.
        folder: path on the volume, without the volume's name.
        file: the file that the request names; empty for a folder. Images with a ``file`` have their names and classes
            in that table.
        columns: of a CSV table.
        cells: the target's cells that were read, of a CSV table.
        counters: columns that number the rows, as far as the rows were read.
        about: statistics of the columns.
        is_whole: all rows were read.
        is_parquet: a Parquet table, whose content is not read here.
        classes: folder name and number of images, counted up to ``FILE_COUNT_LIMIT``.
    """

    kind: str
    folder: str
    file: str = ""
    columns: tuple[str, ...] = ()
    cells: tuple[str, ...] = ()
    counters: tuple[str, ...] = ()
    about: ColumnProfile | None = None
    is_whole: bool = False
    is_parquet: bool = False
    classes: tuple[tuple[str, int], ...] = ()


def profile_data(tree: Tree, path: str, *, kind: str | None, target: str | None) -> DataProfile:
    """Profile the data at ``path`` of a volume, which the caller may read.

    Raises:
        InvalidRequest: there are no usable data, or no such target; the error names the field at fault.
    """
    if not tree.stat(path).is_dir:
        folder, _, name = path.rpartition("/")
        if not name.lower().endswith((*CSV_SUFFIXES, *PARQUET_SUFFIXES)):
            raise _invalid(
                "data",
                f"{name} is not a table; supported are {', '.join((*CSV_SUFFIXES, *PARQUET_SUFFIXES))}. For images, "
                "name their folder.",
            )
        return _table(tree, [path], folder, name, target, kind)
    names = sorted(name for name in _entries(tree, path) if not name.startswith("."))
    tables = [name for name in names if name.lower().endswith((*CSV_SUFFIXES, *PARQUET_SUFFIXES))]
    # Without a target, the folders are the classes of images, and tables next to them are ignored.
    if tables and (kind != IMAGES or target is not None):
        try:
            return _table(tree, [f"{path}/{name}".lstrip("/") for name in tables], path, "", target, kind)
        except InvalidRequest:
            if kind != IMAGES:
                raise
    if kind == TABULAR:
        raise _invalid(
            "data", f"the folder has no table; supported are {', '.join((*CSV_SUFFIXES, *PARQUET_SUFFIXES))}."
        )
    return _images(tree, path, names)


def _table(
    tree: Tree, paths: Sequence[str], folder: str, file: str, target: str | None, kind: str | None = None
) -> DataProfile:
    if target is None:
        raise _invalid("target", "name the column to predict.")
    texts = [path for path in paths if path.lower().endswith(CSV_SUFFIXES)]
    if kind == IMAGES and len(paths) != 1:
        raise _invalid("data", "one table has the classes of the images; name its file.")
    if len(texts) < len(paths):
        if kind == IMAGES:
            raise _invalid("data", "the classes of images are read from CSV.")
        for path in paths:
            _demand_parquet(tree, path)
        return DataProfile(TABULAR, folder, file, is_parquet=True)  # only the trials read Parquet
    read = _read(tree, texts[0], target)
    own = texts[0].rpartition("/")[2]
    if kind != TABULAR and len(texts) == 1 and _names_images(tree, folder, read, target):
        return DataProfile(IMAGES, folder, own, read.columns, read.cells, is_whole=read.is_whole)
    if kind == IMAGES:
        raise _invalid(
            "data",
            f"no column of {own} has paths of images relative to its folder, such as cats/1.png. Add one, or put the "
            "images into one folder per class.",
        )
    is_whole = read.is_whole and len(texts) == 1
    return DataProfile(TABULAR, folder, file, read.columns, read.cells, read.counters, read.about, is_whole)


def _demand_parquet(tree: Tree, path: str) -> None:
    """Check that a file with a Parquet suffix is a complete Parquet file. The trials read its pages."""
    if not path.lower().endswith(PARQUET_SUFFIXES):
        return
    with os.fdopen(tree.open_file(path), "rb") as stream:
        first = stream.read(len(_PARQUET_MAGIC))
        size = stream.seek(0, os.SEEK_END)
        stream.seek(max(0, size - len(_PARQUET_MAGIC)))
        if first != _PARQUET_MAGIC or stream.read() != _PARQUET_MAGIC or size <= 2 * len(_PARQUET_MAGIC):
            name = path.rpartition("/")[2]
            raise _invalid("data", f"{name} is not a Parquet file, or is incomplete.")


def _names_images(tree: Tree, folder: str, read: _TableSample, target: str) -> bool:
    """Whether a column has paths of image files, the first of which exists."""
    for position, column in enumerate(read.columns):
        names = [row[position].strip() for row in read.head]
        if column == target or not names or not all(name.lower().endswith(IMAGE_SUFFIXES) for name in names):
            continue
        try:
            if not tree.stat(f"{folder}/{names[0]}".lstrip("/")).is_dir:
                return True
        except TrainmasterError:
            continue
    return False


@dataclass(frozen=True, slots=True)
class _TableSample:
    """The rows of a table that were read.

    ``cells``: the target's. ``counters``: columns that number the rows. ``about``: statistics of the columns.
    ``head``: the first rows. ``is_whole``: all rows were read.
    """

    columns: tuple[str, ...]
    cells: tuple[str, ...]
    counters: tuple[str, ...]
    about: ColumnProfile
    head: tuple[list[str], ...]
    is_whole: bool


def _read(tree: Tree, path: str, target: str) -> _TableSample:
    name = path.rpartition("/")[2]
    raw = os.fdopen(tree.open_file(path), "rb")
    cells: list[str] = []
    head: list[list[str]] = []
    with raw:
        opened = gzip.GzipFile(fileobj=raw) if name.lower().endswith(".gz") else raw
        try:
            data = opened.read(READ_LIMIT_BYTES + 1)
            is_whole = len(data) <= READ_LIMIT_BYTES
            if not is_whole:
                data = data[: data.rfind(b"\n") + 1]
            lines = io.StringIO(data.decode("utf-8-sig"), newline="")
            columns, rows = _parsed(lines, name)
            place = _place_of(target, columns)
            counters, about = CounterColumns(columns), ColumnProfile(columns, place)
            for number, row in enumerate(rows if is_whole else _but_last(rows), start=2):
                if row and len(row) != len(columns):
                    raise _invalid(
                        "data", f"{name}, row {number}: it has {len(row)} cells, but the header has {len(columns)}."
                    )
                if row:
                    cells.append(row[place])
                    counters.add(row)
                    about.add(row)
                    head += [row] if len(head) < _HEAD_ROWS else []
        except UnicodeDecodeError as error:
            raise _invalid("data", f"{name} is not UTF-8 (at byte {error.start}); save it as UTF-8.") from error
        except (OSError, EOFError, csv.Error, zlib.error) as error:
            raise _invalid("data", f"{name} cannot be read: {error}.") from error
    counted = tuple(name for name in counters.names() if name != target)
    return _TableSample(columns, tuple(cells), counted, about, tuple(head), is_whole)


def _but_last(rows: Iterator[list[str]]) -> Iterator[list[str]]:
    """All rows but the last, which may be incomplete: a quoted cell can contain line ends."""
    previous: list[str] | None = None
    for row in rows:
        if previous is not None:
            yield previous
        previous = row


def _entries(tree: Tree, path: str) -> Iterator[str]:
    """The first ``ENTRY_LIMIT`` names in a folder, unordered."""
    with tree.open_folder(path) as fd, os.scandir(fd) as entries:
        for entry in islice(entries, ENTRY_LIMIT):
            yield entry.name


def _parsed(lines: io.StringIO, name: str) -> tuple[tuple[str, ...], Iterator[list[str]]]:
    csv.field_size_limit(_CELL_LIMIT_CHARS)
    first = lines.readline()
    if not first:
        raise _invalid("data", f"{name} is empty.")
    if not first.strip():
        raise _invalid("data", f"the first line of {name} is empty; it must have the names of the columns.")
    delimiter = max((",", ";", "\t", "|"), key=_QUOTED.sub("", first).count)
    columns = tuple(cell.strip() for cell in next(csv.reader([first], delimiter=delimiter), []))
    if len(columns) < 2:
        raise _invalid(
            "data",
            f"the first line of {name}, {first.strip()[:50]!r}, names fewer than two columns; a target and at least "
            "one feature are needed, separated by commas, semicolons, tabs or bars.",
        )
    blank = [str(place) for place, column in enumerate(columns, start=1) if not column]
    if blank:
        raise _invalid("data", f"column {', '.join(blank[:5])} of {name} has no name in the header; add one.")
    twice = [column for column, count in Counter(columns).items() if count > 1]
    if twice:
        raise _invalid("data", f"two columns of {name} are named {', '.join(twice[:5])}; give each its own name.")
    return columns, csv.reader(lines, delimiter=delimiter)


def _place_of(target: str, columns: Sequence[str]) -> int:
    if target in columns:
        return columns.index(target)
    close = get_close_matches(target, columns, 1) or [
        name for name in columns if name.strip().lower() == target.strip().lower()
    ]
    hint = f" Did you mean {close[0]!r}?" if close else ""
    more = f" and {len(columns) - _SHOWN_COLUMNS} more" if len(columns) > _SHOWN_COLUMNS else ""
    raise _invalid(
        "target", f"there is no column {target!r}.{hint} The columns are {', '.join(columns[:_SHOWN_COLUMNS])}{more}."
    )


def _images(tree: Tree, path: str, names: Sequence[str]) -> DataProfile:
    found: dict[str, int] = {}
    for name in names[:_FOLDER_LIMIT]:
        place = f"{path}/{name}".lstrip("/")
        try:
            if not tree.stat(place).is_dir:
                continue
            images = (entry for entry in _entries(tree, place) if entry.lower().endswith(IMAGE_SUFFIXES))
            count = sum(1 for _ in islice(images, FILE_COUNT_LIMIT))
        except TrainmasterError:
            continue
        if count:
            found[name] = count
    if len(found) < 2:
        there = f"one folder with images ({next(iter(found))})" if found else "no folder with images"
        raise _invalid(
            "data",
            f"there is {there} and no table; put images into one folder per class, with at least two classes.",
        )
    return DataProfile(IMAGES, path, classes=tuple(found.items()), is_whole=True)


def _invalid(field: str, sentence: str) -> InvalidRequest:
    return InvalidRequest(f"{field}: {sentence}", field=field)
