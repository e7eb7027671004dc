"""Reports that replicas spooled to their job's output (written by ``trainmaster_runtime.reports.spool``).

The output is writable by the job, and perhaps by other jobs: all of it may be malformed, endless or foreign. Files
without a signature by the attempt's token are ignored. The job has that token as well, so that signed content is still
untrusted: it is read in chunks and within limits.
"""

from __future__ import annotations

import errno
import hmac
import itertools
import json
import os
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, BinaryIO, Final

import orjson
from pydantic import ValidationError
from trainmaster.wire.metrics import Report, ReportItem

from core.domain.errors import Conflict, Forbidden, InvalidRequest, NotFound
from core.storage.tree import Tree

FOLDER: Final = ".trainmaster/reports"
# A runtime spools at most 16 MiB, and has a batch of half a MiB in flight.
FILE_BYTES: Final = 32 * 2**20
LINES: Final = 500_000  # of a file: more than fit into a spool
LINE_BYTES: Final = 2 * 2**20  # a runtime reads lines of a MiB, and writes them a little longer
_BATCH: Final = 500  # lines, and
BATCH_BYTES: Final = 512 * 1024  # a runtime's batch
_PIECE: Final = 64 * 1024
_CODE_BYTES: Final = 64 + 1  # the last line: SHA-256 in hex
UNKNOWN_NAME_LIMIT: Final = 1_000  # unknown names in a folder, beyond which each expected name is probed
_NUL: Final = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")  # in JSON, where a backslash is written twice
_DRAFT: Final = ".part"  # partial file of a killed runtime


@dataclass(frozen=True, slots=True, order=True)
class ReplicaStart:
    """One start of a replica."""

    role: str
    index: int
    generation: int

    @property
    def file_name(self) -> str:
        return f"{self.role}-{self.index}.{self.generation}"


@dataclass(frozen=True, slots=True)
class SpooledLines:
    """Raw lines of a start's file; parsed, they may take thirty times the memory. ``first_seq``: number of the first
    item.
    """

    start: ReplicaStart
    first_seq: int
    lines: tuple[bytes, ...]

    @property
    def size_bytes(self) -> int:
        return sum(map(len, self.lines))

    def report(self) -> Report:
        """The valid items among the lines."""
        found = (_item(line, seq) for seq, line in enumerate(self.lines, self.first_seq))
        items = [item for item in found if item is not None]
        start = self.start
        return Report(role=start.role, index=start.index, generation=start.generation, items=items)


def place_of(job_id: str, attempt_number: int) -> str:
    """The folder of an attempt's spools, relative to the output."""
    return f"{FOLDER}/{job_id}/{attempt_number}"


def find_spools(output: Tree, folder: str, starts: Collection[ReplicaStart]) -> dict[ReplicaStart, int]:
    """The starts among ``starts`` that have a spool, with its size; oldest first of each replica.

    Raises:
        Unavailable: the volume is away.
    """
    names = {start.file_name + end: start for start in starts for end in ("", _DRAFT)}
    found: dict[ReplicaStart, int] = {}
    try:
        with output.open_folder(folder) as fd:
            for name in _names(fd, names):
                with suppress(FileNotFoundError):
                    size = os.stat(name, dir_fd=fd, follow_symlinks=False).st_size
                    found[names[name]] = max(found.get(names[name], 0), size)
    except (NotFound, Forbidden, Conflict):
        return {}
    return dict(sorted(found.items()))


def _names(fd: int, wanted: Collection[str]) -> Collection[str]:
    """The names of ``wanted`` that may be in the folder: all of them if other files flood it."""
    limit = len(wanted) + UNKNOWN_NAME_LIMIT
    with os.scandir(fd) as entries:
        listed = [entry.name for entry in itertools.islice(entries, limit + 1)]
    return wanted if len(listed) > limit else [name for name in listed if name in wanted]


def read_spool(output: Tree, folder: str, start: ReplicaStart, token: str) -> Iterator[SpooledLines]:
    """The spool of ``start`` in batches of a runtime's size; empty if the file is not signed by that replica.

    Ends at the first malformed line. While iterating:

    Raises:
        Unavailable: the volume is away.
        OSError: the same, as some volumes report it.
    """
    try:
        fd = output.open_file(f"{folder}/{start.file_name}")
    except (NotFound, Forbidden, InvalidRequest):
        return
    with os.fdopen(fd, "rb") as stream:
        size = os.fstat(fd).st_size - _CODE_BYTES
        digests = _verified(stream, size, token) if 0 < size <= FILE_BYTES - _CODE_BYTES else None
        if digests is None:
            return
        lines = _lines(_read_again(stream, size, digests))
        first = _first_seq(next(lines, b""), start)
        if first is not None:
            yield from _batches(start, lines, first)


def remove_spools(output: Tree, folder: str, starts: Collection[ReplicaStart]) -> None:
    """Unlink the spools of ``starts``, and then-empty folders. Follows no link and touches nothing else: other files
    are other jobs'.

    Raises:
        Unavailable: the volume is away.
        OSError: the file system refuses.
    """
    names = folder.split("/")
    with output.open_folder() as top:
        way = [os.dup(top)]
        try:
            for name in names:
                flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
                way.append(os.open(name, flags, dir_fd=way[-1]))
            for start in starts:
                for end in ("", _DRAFT):
                    with suppress(FileNotFoundError):
                        os.unlink(start.file_name + end, dir_fd=way[-1])
            # The attempt's and the job's folders. Those above belong to other jobs too, which may be about to create
            # their own.
            if _is_removed(names[-1], way[-2]):
                _is_removed(names[-2], way[-3])
        finally:
            for fd in way:
                os.close(fd)


def _is_removed(name: str, parent: int) -> bool:
    """Whether the folder was removed: a non-empty one stays."""
    try:
        os.rmdir(name, dir_fd=parent)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        return False
    return True


def _verified(stream: BinaryIO, size: int, token: str) -> list[bytes] | None:
    """The digests of the signed chunks; ``None`` if the signature does not match."""
    code = hmac.new(token.encode(), digestmod="sha256")
    digests = []
    for piece in _pieces(stream, size):
        code.update(piece)
        digests.append(sha256(piece).digest())
    signature = stream.read(_CODE_BYTES)
    return digests if hmac.compare_digest(code.hexdigest().encode() + b"\n", signature) else None


def _read_again(stream: BinaryIO, size: int, digests: Sequence[bytes]) -> Iterator[bytes]:
    """The chunks, while they match the verified digests: another job may rewrite them in between."""
    stream.seek(0)
    for piece, digest in zip(_pieces(stream, size), digests, strict=True):
        if sha256(piece).digest() != digest:
            return
        yield piece


def _pieces(stream: BinaryIO, size: int) -> Iterator[bytes]:
    for at in range(0, size, _PIECE):
        yield stream.read(min(_PIECE, size - at))


def _lines(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Without line ends. A line that is too long is cut somewhere after ``LINE_BYTES``."""
    unfinished = b""
    for piece in pieces:
        *whole, unfinished = (unfinished + piece).split(b"\n")
        yield from whole
        unfinished = unfinished[: LINE_BYTES + 1]


def _batches(start: ReplicaStart, lines: Iterator[bytes], first: int) -> Iterator[SpooledLines]:
    batch: list[bytes] = []
    size = 0
    for line in itertools.islice(lines, LINES):
        is_long = len(line) > LINE_BYTES
        if not is_long and not (line.startswith(b"{") and line.endswith(b"}")):
            break
        item = b"" if is_long else line  # no item, but it takes a number
        batch.append(item)
        size += len(item)
        if len(batch) == _BATCH or size >= BATCH_BYTES:
            yield SpooledLines(start, first, tuple(batch))
            first, batch, size = first + len(batch), [], 0
    if batch:
        yield SpooledLines(start, first, tuple(batch))


def _first_seq(head: bytes, start: ReplicaStart) -> int | None:
    """The first item's number; ``None`` if the file belongs to another start."""
    data = _object(head) if len(head) <= LINE_BYTES else {}
    if (data.get("role"), data.get("index"), data.get("generation")) != (start.role, start.index, start.generation):
        return None
    first = data.get("first_seq")
    return first if isinstance(first, int) and first > 0 else None


def _item(line: bytes, seq: int) -> ReportItem | None:
    try:
        return ReportItem.model_validate({**_object(line), "seq": seq})
    except ValidationError:
        return None


def _object(line: bytes) -> dict[str, Any]:
    """Empty if it is no object, or has values that the database cannot store: a NUL, a lone surrogate, huge numbers."""
    try:
        data = json.loads(line)  # accepts NaN, which metrics may be
        orjson.dumps(data)
    except (ValueError, TypeError, RecursionError):
        return {}
    return data if isinstance(data, dict) and not _NUL.search(line) else {}
