"""The log files of a job: ``.trainmaster/logs/<job id>/<attempt>/<role>-<index>.log`` under its output.

The runtime writes each line as ``2026-11-21T07:00:00.123456Z <text>``; with several processes in a replica the text
begins with ``[rank N] ``. Anything else is shown as is: the folder belongs to the job.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, TypeAlias

from trainmaster.spec.enums import role_order

from core.domain.errors import InvalidRequest, NotFound
from core.storage.tree import Tree

FOLDER: Final = ".trainmaster/logs"
_FILE: Final = re.compile(r"^([a-z](?:[a-z0-9-]{0,18}[a-z0-9])?)-(0|[1-9][0-9]{0,5})\.log$")
_ATTEMPT: Final = re.compile(r"^[1-9][0-9]{0,8}$")
_RANK: Final = re.compile(rb"^\[rank ([0-9]{1,7})\] ")
# "2026-11-21T07:00:00.123456Z": fixed width, so that bytes compare as times.
STAMP_BYTES: Final = 27
# The runtime splits longer lines; a foreign file without line breaks is cut here.
LINE_LIMIT: Final = 128 * 2**10
_BACK_BLOCK: Final = 16 * 2**10
_TIME_BLOCK: Final = 64 * 2**10  # a binary search for a time ends at this size; the rest is scanned


# Attempt, then the roles' order, then the index.
Order: TypeAlias = tuple[int, tuple[int, str], int]


@dataclass(frozen=True, slots=True)
class LogFile:
    """One replica's log in one attempt, with its size when listed."""

    attempt: int
    role: str
    index: int
    size_bytes: int

    @property
    def name(self) -> str:
        return f"{self.role}-{self.index}"

    @property
    def order(self) -> Order:
        return (self.attempt, role_order(self.role), self.index)


@dataclass(frozen=True, slots=True)
class Line:
    """A line without its timestamp and line break."""

    at: datetime | None
    text: str


def stamp_of(raw: bytes) -> bytes | None:
    """The line's timestamp as bytes that sort by time, or ``None`` without one."""
    if len(raw) >= STAMP_BYTES and raw[26] == 90 and raw[10] == 84 and raw[4] == 45 and raw[:4].isdigit():
        return raw[:STAMP_BYTES]
    return None


def stamp_at(at: datetime) -> bytes:
    """``at`` in the runtime's format, clamped to the calendar."""
    try:
        moment = at.astimezone(UTC)
    except OverflowError:
        moment = at.replace(tzinfo=UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ").rjust(STAMP_BYTES, "0").encode()


def text_of(raw: bytes) -> bytes:
    """The line without its timestamp."""
    return raw if stamp_of(raw) is None else raw[STAMP_BYTES + 1 :]


def rank_of(text: bytes) -> int | None:
    match = _RANK.match(text)
    return None if match is None else int(match[1])


def without_rank(text: bytes) -> bytes:
    """The text after the prefix that :func:`rank_of` finds."""
    return text[text.index(b"] ") + 2 :]


def parse_line(raw: bytes) -> Line:
    """Parse a line; never fails. Bytes that are not UTF-8 become U+FFFD."""
    text = text_of(raw)
    at = None
    if text is not raw:
        try:
            at = datetime.fromisoformat(raw[: STAMP_BYTES - 1].decode("ascii")).replace(tzinfo=UTC)
        except ValueError:  # user text that looked like a timestamp
            text = raw
    return Line(at, text.rstrip(b"\r").decode("utf-8", "replace"))


class JobLogs:
    """The log files below a job's output folder. Blocks on the disk; the cost is proportional to what is read, not to
    file size.
    """

    def __init__(self, output: Tree, job_id: str) -> None:
        self._output = output
        # Jobs may share an output, and each numbers its attempts from 1.
        self._folder = f"{FOLDER}/{job_id}"

    def attempts(self) -> list[int]:
        """Numbers of the attempts that have a log folder, in order."""
        try:
            return sorted(int(name) for name in self._output.names(self._folder) if _ATTEMPT.match(name))
        except NotFound:
            return []  # nothing has started yet

    def files(self, attempt: int) -> list[LogFile]:
        """The attempt's files in rank order; none when it has no folder."""
        found = []
        try:
            with self._output.open_folder(f"{self._folder}/{attempt}") as folder, os.scandir(folder) as entries:
                for entry in entries:
                    match = _FILE.match(entry.name)
                    if match is None:
                        continue
                    try:
                        status = entry.stat(follow_symlinks=False)
                    except FileNotFoundError:
                        continue
                    if stat.S_ISREG(status.st_mode):
                        found.append(LogFile(attempt, match[1], int(match[2]), status.st_size))
        except NotFound:
            return []
        return sorted(found, key=lambda file: file.order)

    def all_files(self, *, after: Order | None = None) -> Iterator[LogFile]:
        """The files of all attempts in order, or those after ``after``; folders are listed lazily."""
        for attempt in self.attempts():
            if after is None or attempt >= after[0]:
                yield from (file for file in self.files(attempt) if after is None or file.order > after)

    def open(self, attempt: int, name: str) -> int:
        """A descriptor of the file; the caller closes it.

        Raises:
            NotFound: no such attempt or replica, or it has not logged yet.
        """
        if _FILE.match(f"{name}.log") is None:
            raise InvalidRequest("The name of a log is <role>-<index>, for example worker-0.", field="name")
        try:
            return self._output.open_file(f"{self._folder}/{attempt}/{name}.log")
        except NotFound:
            raise NotFound(f"There is no log of {name} in attempt {attempt}; nothing of it has started yet.") from None

    @contextmanager
    def opened(self, attempt: int, name: str) -> Iterator[int]:
        fd = self.open(attempt, name)
        try:
            yield fd
        finally:
            os.close(fd)

    def read(self, attempt: int, name: str, offset: int, length: int) -> bytes:
        """At most ``length`` bytes; fewer at the end of the file."""
        with self.opened(attempt, name) as fd:
            return os.pread(fd, length, offset)

    def after_hole(self, attempt: int, name: str, offset: int) -> int | None:
        """The first complete line after a punched hole; ``None`` if ``offset`` is in none."""
        with self.opened(attempt, name) as fd:
            try:
                data = os.lseek(fd, offset, os.SEEK_DATA)
            except OSError as error:
                if error.errno != errno.ENXIO:
                    return None  # a file system without holes
                data = os.fstat(fd).st_size  # nothing follows
            if data <= offset:
                return None
            # Drop the line that the hole cut in two.
            end = os.pread(fd, LINE_LIMIT, data).find(b"\n")
            return data + end + 1


def line_starts_backwards(fd: int, end: int, *, block_bytes: int = _BACK_BLOCK) -> Iterator[int]:
    """The offset of each line before ``end``, last line first. A last line without a line break counts."""
    if end <= 0:
        return
    # A break at the end terminates the last line, it starts no other.
    position = end - 1 if os.pread(fd, 1, end - 1) == b"\n" else end
    while position > 0:
        start = max(0, position - block_bytes)
        block = os.pread(fd, position - start, start)
        if not block.strip(b"\0"):  # in a hole, which may be large: skip it
            position = min(start, _hole_start(fd))
            continue
        upper = len(block)
        while (cut := block.rfind(b"\n", 0, upper)) >= 0:
            yield start + cut + 1
            upper = cut
        position = start
    yield 0


def _hole_start(fd: int) -> int:
    try:
        return os.lseek(fd, 0, os.SEEK_HOLE)
    except OSError:
        return 2**62


def tail_offset(fd: int, lines: int) -> int:
    """The offset of the last ``lines`` lines; reads from the end, so that the file's size does not matter."""
    offset = size = os.fstat(fd).st_size
    if lines <= 0:
        return size
    for count, start in enumerate(line_starts_backwards(fd, size), start=1):
        offset = start
        if count >= lines:
            break
    return offset


def time_offset(fd: int, stamp: bytes) -> int:
    """A line start with nothing from ``stamp`` on before it, near the first such line, by binary search.

    The runtime writes in order of time. Foreign text without timestamps is scanned from an earlier point.
    """
    low, high = 0, os.fstat(fd).st_size
    while high - low > _TIME_BLOCK:
        middle = (low + high) // 2
        found = _stamped_line(fd, middle, high)
        if found is None or found[1] >= stamp:
            high = middle
        else:
            low = found[0]
    return low


def _stamped_line(fd: int, start: int, end: int) -> tuple[int, bytes] | None:
    """(offset, timestamp) of the first complete line after ``start`` that has a timestamp, if near."""
    block = os.pread(fd, min(end - start, LINE_LIMIT), start)
    cut = block.find(b"\n") + 1
    while 0 < cut < len(block):
        stamp = stamp_of(block[cut : cut + STAMP_BYTES])
        if stamp is not None:
            return start + cut, stamp
        cut = block.find(b"\n", cut) + 1
    return None
