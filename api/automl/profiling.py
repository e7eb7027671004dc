"""A first look at data on a volume, so that what is wrong with them is told before a trial is spent."""

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

from core.domain.automl.columns import Columns
from core.domain.automl.counters import Counters
from core.domain.automl.space import IMAGES, TABULAR
from core.domain.errors import InvalidRequest, TrainmasterError
from core.storage.tree import Tree

CSV_ENDS: Final = (".csv", ".csv.gz", ".tsv", ".tsv.gz")
PARQUET_ENDS: Final = (".parquet", ".pq")
IMAGE_ENDS: Final = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff")
# Of a table, after it is unpacked: half a second of reading.
_READ_BYTES: Final = 16 * 2**20
_FOLDERS: Final = 2_000
FILES_COUNTED: Final = 200
# Of one folder: there may be millions, and a request has seconds.
_ENTRIES_LOOKED_AT: Final = 20_000
_SHOWN: Final = 30
_HEAD: Final = 50  # rows
_CELL_LIMIT: Final = 2**20
_QUOTED: Final = re.compile(r'"(?:[^"]|"")*(?:"|$)')  # as ``trainmaster_serving.tables`` has it
_PARQUET: Final = b"PAR1"  # begins and ends each file


@dataclass(frozen=True, slots=True)
class Seen:
    """``file``: the one that was named, empty for a folder. ``columns``, ``cells`` (of the target, as far as was read): of CSV.
    ``counters``: columns that number its rows, as far as was read. ``about``: what else its columns are.

    ``is_whole``: nothing was left unread. ``is_parquet``: of which nothing is read here. ``classes``: images of each folder, counted up to 200. Images with a ``file`` have
    their names and classes in that table instead.
    """

    kind: str
    folder: str
    file: str = ""
    columns: tuple[str, ...] = ()
    cells: tuple[str, ...] = ()
    counters: tuple[str, ...] = ()
    about: Columns | None = None
    is_whole: bool = False
    is_parquet: bool = False
    classes: tuple[tuple[str, int], ...] = ()


def look(tree: Tree, path: str, *, kind: str | None, target: str | None) -> Seen:
    """What lies at ``path`` of a volume, which the caller may read.

    Raises:
        InvalidRequest: there is nothing to learn from, or no such target; the field at fault is named.
    """
    if not tree.stat(path).is_dir:
        folder, _, name = path.rpartition("/")
        if not name.lower().endswith((*CSV_ENDS, *PARQUET_ENDS)):
            raise _refused(
                "data", f"{name} is no table: {', '.join((*CSV_ENDS, *PARQUET_ENDS))} are known. Images lie in folders."
            )
        return _table(tree, [path], folder, name, target, kind)
    names = sorted(name for name in _entries(tree, path) if not name.startswith("."))
    tables = [name for name in names if name.lower().endswith((*CSV_ENDS, *PARQUET_ENDS))]
    # Without a target it is their folders that tell images apart, whatever tables lie beside them.
    if tables and (kind != IMAGES or target is not None):
        try:
            return _table(tree, [f"{path}/{name}".lstrip("/") for name in tables], path, "", target, kind)
        except InvalidRequest:
            if kind != IMAGES:
                raise
    if kind == TABULAR:
        raise _refused("data", f"the folder has no table: {', '.join((*CSV_ENDS, *PARQUET_ENDS))} are known.")
    return _images(tree, path, names)


def _table(
    tree: Tree, paths: Sequence[str], folder: str, file: str, target: str | None, kind: str | None = None
) -> Seen:
    if target is None:
        raise _refused("target", "say which column is to be predicted.")
    texts = [path for path in paths if path.lower().endswith(CSV_ENDS)]
    if kind == IMAGES and len(paths) != 1:
        raise _refused("data", "of images one table says the classes; name its file.")
    if len(texts) < len(paths):
        if kind == IMAGES:
            raise _refused("data", "the classes of images are read from CSV.")
        for path in paths:
            _demand_parquet(tree, path)
        return Seen(TABULAR, folder, file, is_parquet=True)  # Parquet is read by the trials alone
    read = _read(tree, texts[0], target)
    own = texts[0].rpartition("/")[2]
    if kind != TABULAR and len(texts) == 1 and _names_images(tree, folder, read, target):
        return Seen(IMAGES, folder, own, read.columns, read.cells, is_whole=read.is_whole)
    if kind == IMAGES:
        raise _refused(
            "data",
            f"no column of {own} names images that lie beside it, such as cats/1.png; or put images into one folder for each "
            "class.",
        )
    is_whole = read.is_whole and len(texts) == 1
    return Seen(TABULAR, folder, file, read.columns, read.cells, read.counters, read.about, is_whole)


def _demand_parquet(tree: Tree, path: str) -> None:
    """Of a file that is called Parquet: that it is whole. Its pages are read by the trials."""
    if not path.lower().endswith(PARQUET_ENDS):
        return
    with os.fdopen(tree.open_file(path), "rb") as stream:
        first = stream.read(len(_PARQUET))
        size = stream.seek(0, os.SEEK_END)
        stream.seek(max(0, size - len(_PARQUET)))
        if first != _PARQUET or stream.read() != _PARQUET or size <= 2 * len(_PARQUET):
            name = path.rpartition("/")[2]
            raise _refused("data", f"{name} is no Parquet file, or not all of it is there.")


def _names_images(tree: Tree, folder: str, read: _Read, target: str) -> bool:
    """Whether a column holds names of files of images, of which the first is there."""
    for place, name in enumerate(read.columns):
        names = [row[place].strip() for row in read.head]
        if name == target or not names or not all(one.lower().endswith(IMAGE_ENDS) for one in names):
            continue
        try:
            if not tree.stat(f"{folder}/{names[0]}".lstrip("/")).is_dir:
                return True
        except TrainmasterError:
            continue
    return False


@dataclass(frozen=True, slots=True)
class _Read:
    """``cells``: the target's. ``counters``: columns that number the rows. ``about``: what else they are. ``head``: the first rows. ``is_whole``: these are all."""

    columns: tuple[str, ...]
    cells: tuple[str, ...]
    counters: tuple[str, ...]
    about: Columns
    head: tuple[list[str], ...]
    is_whole: bool


def _read(tree: Tree, path: str, target: str) -> _Read:
    name = path.rpartition("/")[2]
    raw = os.fdopen(tree.open_file(path), "rb")
    cells: list[str] = []
    head: list[list[str]] = []
    with raw:
        opened = gzip.GzipFile(fileobj=raw) if name.lower().endswith(".gz") else raw
        try:
            data = opened.read(_READ_BYTES + 1)
            is_whole = len(data) <= _READ_BYTES
            if not is_whole:
                data = data[: data.rfind(b"\n") + 1]
            lines = io.StringIO(data.decode("utf-8-sig"), newline="")
            columns, rows = _parsed(lines, name)
            place = _place_of(target, columns)
            counters, about = Counters(columns), Columns(columns, place)
            for number, row in enumerate(rows if is_whole else _but_last(rows), start=2):
                if row and len(row) != len(columns):
                    raise _refused(
                        "data", f"{name}, row {number}: it has {len(row)} cells, and the first line has {len(columns)}."
                    )
                if row:
                    cells.append(row[place])
                    counters.add(row)
                    about.add(row)
                    head += [row] if len(head) < _HEAD else []
        except UnicodeDecodeError as error:
            raise _refused("data", f"{name} is no UTF-8 text (byte {error.start}); save it as UTF-8.") from error
        except (OSError, EOFError, csv.Error, zlib.error) as error:
            raise _refused("data", f"{name} cannot be read: {error}.") from error
    counted = tuple(name for name in counters.names() if name != target)
    return _Read(columns, tuple(cells), counted, about, tuple(head), is_whole)


def _but_last(rows: Iterator[list[str]]) -> Iterator[list[str]]:
    """The last row may be a part: a quoted cell has line ends, too."""
    held: list[str] | None = None
    for row in rows:
        if held is not None:
            yield held
        held = row


def _entries(tree: Tree, path: str) -> Iterator[str]:
    """Names in a folder, in no order, the first few thousand."""
    with tree.open_folder(path) as fd, os.scandir(fd) as entries:
        for entry in islice(entries, _ENTRIES_LOOKED_AT):
            yield entry.name


def _parsed(lines: io.StringIO, name: str) -> tuple[tuple[str, ...], Iterator[list[str]]]:
    csv.field_size_limit(_CELL_LIMIT)
    first = lines.readline()
    if not first:
        raise _refused("data", f"{name} is empty.")
    if not first.strip():
        raise _refused("data", f"the first line of {name} is empty; the names of the columns belong there.")
    delimiter = max((",", ";", "\t", "|"), key=_QUOTED.sub("", first).count)
    columns = tuple(cell.strip() for cell in next(csv.reader([first], delimiter=delimiter), []))
    if len(columns) < 2:
        raise _refused(
            "data",
            f"the first line of {name}, {first.strip()[:50]!r}, names less than two columns; a target and at least one other are "
            "needed, with commas, semicolons, tabs or bars between their names.",
        )
    blank = [str(place) for place, column in enumerate(columns, start=1) if not column]
    if blank:
        raise _refused("data", f"column {', '.join(blank[:5])} of {name} has no name in the first line; give it one.")
    twice = [column for column, count in Counter(columns).items() if count > 1]
    if twice:
        raise _refused("data", f"two columns of {name} are called {', '.join(twice[:5])}; give each its own name.")
    return columns, csv.reader(lines, delimiter=delimiter)


def _place_of(target: str, columns: Sequence[str]) -> int:
    if target in columns:
        return columns.index(target)
    close = get_close_matches(target, columns, 1) or [
        name for name in columns if name.strip().lower() == target.strip().lower()
    ]
    hint = f" Did you mean {close[0]!r}?" if close else ""
    more = f" and {len(columns) - _SHOWN} more" if len(columns) > _SHOWN else ""
    raise _refused(
        "target", f"there is no column {target!r}.{hint} The columns are {', '.join(columns[:_SHOWN])}{more}."
    )


def _images(tree: Tree, path: str, names: Sequence[str]) -> Seen:
    found: dict[str, int] = {}
    for name in names[:_FOLDERS]:
        place = f"{path}/{name}".lstrip("/")
        try:
            if not tree.stat(place).is_dir:
                continue
            images = (one for one in _entries(tree, place) if one.lower().endswith(IMAGE_ENDS))
            count = sum(1 for _ in islice(images, FILES_COUNTED))
        except TrainmasterError:
            continue
        if count:
            found[name] = count
    if len(found) < 2:
        there = f"one folder with images ({next(iter(found))})" if found else "no folder with images"
        raise _refused(
            "data",
            f"there is {there} and no table; images lie in one folder for each class, at least two of them.",
        )
    return Seen(IMAGES, path, classes=tuple(found.items()), is_whole=True)


def _refused(field: str, sentence: str) -> InvalidRequest:
    return InvalidRequest(f"{field}: {sentence}", field=field)
