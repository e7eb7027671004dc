"""The log files of a job: ``.trainmaster/logs/<job id>/<attempt>/<role>-<index>.log`` under its output.

The runtime writes each line as ``2026-11-21T07:00:00.123456Z <text>``, and with several processes in a replica the
text begins with ``[rank N] ``. Whatever else stands there is shown as it is: the folder belongs to the job.
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
# "2026-11-21T07:00:00.123456Z": of one width, so that the bytes compare as the times do.
STAMP_BYTES: Final = 27
# The runtime splits longer lines; a file without line breaks is somebody else's and is cut here.
LINE_LIMIT: Final = 128 * 2**10
_BACK_BLOCK: Final = 16 * 2**10
_TIME_BLOCK: Final = 64 * 2**10  # a search for a time ends this near, and the rest is read


# Attempt, then the roles' order, then the index.
Order: TypeAlias = tuple[int, tuple[int, str], int]


@dataclass(frozen=True, slots=True)
class LogFile:
    """One replica's log in one attempt, as large as it was when it was listed."""

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
    """A line without its stamp and line break."""

    at: datetime | None
    text: str


def stamp_of(raw: bytes) -> bytes | None:
    """The line's time as bytes that sort by time, or ``None`` when it has none."""
    if len(raw) >= STAMP_BYTES and raw[26] == 90 and raw[10] == 84 and raw[4] == 45 and raw[:4].isdigit():
        return raw[:STAMP_BYTES]
    return None


def stamp_at(at: datetime) -> bytes:
    """``at`` as the runtime stamps it; beyond the ends of the calendar, its end."""
    try:
        moment = at.astimezone(UTC)
    except OverflowError:
        moment = at.replace(tzinfo=UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ").rjust(STAMP_BYTES, "0").encode()


def text_of(raw: bytes) -> bytes:
    """The line without its stamp."""
    return raw if stamp_of(raw) is None else raw[STAMP_BYTES + 1 :]


def rank_of(text: bytes) -> int | None:
    match = _RANK.match(text)
    return None if match is None else int(match[1])


def without_rank(text: bytes) -> bytes:
    """The text behind the rank that :func:`rank_of` finds."""
    return text[text.index(b"] ") + 2 :]


def parse_line(raw: bytes) -> Line:
    """A line as it stands in the file; never fails. Bytes that are not UTF-8 are shown as U+FFFD."""
    text = text_of(raw)
    at = None
    if text is not raw:
        try:
            at = datetime.fromisoformat(raw[: STAMP_BYTES - 1].decode("ascii")).replace(tzinfo=UTC)
        except ValueError:  # looked like a stamp and was the user's own text
            text = raw
    return Line(at, text.rstrip(b"\r").decode("utf-8", "replace"))


class JobLogs:
    """The log files below a job's output folder. Blocks on the disk; a file of any size costs what is read of it."""

    def __init__(self, output: Tree, job_id: str) -> None:
        self._output = output
        # Jobs may share an output, and each counts its attempts from 1.
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
        """Those of all attempts in order, or those ``after`` such a place; folders are read as they are needed."""
        for attempt in self.attempts():
            if after is None or attempt >= after[0]:
                yield from (file for file in self.files(attempt) if after is None or file.order > after)

    def open(self, attempt: int, name: str) -> int:
        """A descriptor of the file; the caller closes it.

        Raises:
            NotFound: no such attempt or replica, or it has not written yet.
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
        """Where the first whole line behind a dropped part begins; ``None`` when ``offset`` is in none."""
        with self.opened(attempt, name) as fd:
            try:
                data = os.lseek(fd, offset, os.SEEK_DATA)
            except OSError as error:
                if error.errno != errno.ENXIO:
                    return None  # a file system without holes
                data = os.fstat(fd).st_size  # nothing follows
            if data <= offset:
                return None
            # The line that the drop cut in two goes with it.
            end = os.pread(fd, LINE_LIMIT, data).find(b"\n")
            return data + end + 1


def line_starts_backwards(fd: int, end: int, *, block_bytes: int = _BACK_BLOCK) -> Iterator[int]:
    """The offset of each line before ``end``, the last line first. A last line without a line break counts."""
    if end <= 0:
        return
    # A break at the end ends the last line, it begins no other.
    position = end - 1 if os.pread(fd, 1, end - 1) == b"\n" else end
    while position > 0:
        start = max(0, position - block_bytes)
        block = os.pread(fd, position - start, start)
        if not block.strip(b"\0"):  # in a dropped part, which may be large: go on before it
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
    """Where the last ``lines`` lines of the file begin; reads the file from its end, so its size does not matter."""
    offset = size = os.fstat(fd).st_size
    if lines <= 0:
        return size
    for count, start in enumerate(line_starts_backwards(fd, size), start=1):
        offset = start
        if count >= lines:
            break
    return offset


def time_offset(fd: int, stamp: bytes) -> int:
    """Where a line begins with nothing from ``stamp`` on before it; near to the first such line, by halving the file.

    The runtime writes a file in order of time. Where somebody else's text has no stamps it is read from further up.
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
    """(offset, stamp) of the first whole line behind ``start`` that has a stamp, if it is near."""
    block = os.pread(fd, min(end - start, LINE_LIMIT), start)
    cut = block.find(b"\n") + 1
    while 0 < cut < len(block):
        stamp = stamp_of(block[cut : cut + STAMP_BYTES])
        if stamp is not None:
            return start + cut, stamp
        cut = block.find(b"\n", cut) + 1
    return None
