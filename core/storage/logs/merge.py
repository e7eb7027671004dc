"""K-way merge of all replicas' logs by time, from any position, in bounded memory.

The simple equivalent is ``heapq.merge`` over all files. This one can pause and resume (files grow, attempts follow each
other), exposes its position as a cursor, and holds a block of each file rather than an open descriptor.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from core.domain.errors import NotFound
from core.storage.logs.files import (
    LINE_LIMIT,
    JobLogs,
    LogFile,
    rank_of,
    stamp_of,
    tail_offset,
    text_of,
    time_offset,
    without_rank,
)
from core.storage.logs.filters import LineSearch, level_after

_MEMORY: Final = 4 * 2**20  # all blocks of one stream together
_BLOCK: Final = (4 * 2**10, 256 * 2**10)
# A step reads at most this much, so that a search of gigabytes can be stopped, and reports its position.
STEP_BYTES: Final = 8 * 2**20
_STEP_TEXT: Final = 2**20  # … and returns at most about this much


@dataclass(frozen=True, slots=True)
class LogPosition:
    """A stream's position: everything before ``attempt`` was read, and of its files the bytes before ``offsets``."""

    attempt: int = 0
    offsets: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Speaker:
    """The process that wrote a line. ``local_rank``: its number in the replica, if several share the file."""

    rank: int | None = None
    local_rank: int | None = None


_RUNTIME: Final = Speaker()


@dataclass(frozen=True, slots=True)
class Selection:
    """Which lines. ``ranks``: (role, index) -> first rank and number of processes, for ``rank``.

    ``level``: minimum severity (see ``core.storage.logs.filters``). ``since``, ``until``: timestamps, both inclusive.
    """

    attempt: int | None = None
    role: str | None = None
    index: int | None = None
    rank: int | None = None
    search: LineSearch | None = None
    level: int | None = None
    since: bytes | None = None
    until: bytes | None = None
    ranks: Mapping[tuple[str, int], tuple[int, int]] = field(default_factory=dict)

    def takes_file(self, file: LogFile) -> bool:
        if self.role not in (None, file.role) or self.index not in (None, file.index):
            return False
        if self.rank is None:
            return True
        known = self.ranks.get((file.role, file.index))
        return known is not None and known[0] <= self.rank < known[0] + known[1]

    def takes_line(self, speaker: Speaker, text: bytes) -> bool:
        if self.rank is not None and self.rank != speaker.rank:
            return False
        return self.search is None or self.search.matches(text)

    def speaker_of(self, file: LogFile, text: bytes) -> tuple[Speaker, bytes]:
        """The writer of ``text``, and its text without the rank prefix of the runtime."""
        first, processes = self.ranks.get((file.role, file.index), (None, 1))
        if first is None or processes == 1:
            # A single process has no prefix: what looks like one is its own text.
            return Speaker(first), text
        prefix = rank_of(text)
        if prefix is None or not first <= prefix < first + processes:
            return _RUNTIME, text  # the runtime's own line
        return Speaker(prefix, prefix - first), without_rank(text)


@dataclass(frozen=True, slots=True)
class MergedLine:
    """``offset`` is the byte after the line in its file; ``raw`` includes its timestamp, but no line break and no rank
    prefix.
    """

    file: LogFile
    offset: int
    raw: bytes
    speaker: Speaker = _RUNTIME


@dataclass(slots=True)
class _Source:
    file: LogFile
    offset: int  # of the next byte to return
    buffer: bytes = b""  # begins at `offset` less `cut`
    cut: int = 0  # bytes of the buffer already returned
    size: int = 0
    key: bytes = b""  # of the previous line: lines without a timestamp stay with it
    is_waiting: bool = False  # in the heap
    is_past: bool = False  # its next line is after `until`
    level: int | None = None  # of the line before
    is_starved: bool = False  # stopped by the step's limit


class LogMerge:
    """Call ``refresh`` to see new data, then ``step`` until it returns nothing. Blocks on the disk."""

    def __init__(self, logs: JobLogs, selection: Selection, place: LogPosition) -> None:
        self._logs = logs
        self._selection = selection
        self._attempt = place.attempt
        self._offsets = dict(place.offsets)
        self._sources: dict[str, _Source] = {}
        self._heap: list[tuple[bytes, tuple[int, tuple[int, str], int], str]] = []
        self._read = 0  # bytes in this step
        self._starved = 0  # sources
        self._has_more = False

    @property
    def attempt(self) -> int:
        """The attempt that is being read; 0 before the first."""
        return self._attempt

    @property
    def place(self) -> LogPosition:
        """The position after everything that ``step`` returned."""
        return LogPosition(self._attempt, {**self._offsets, **{name: s.offset for name, s in self._sources.items()}})

    @property
    def source_count(self) -> int:
        return len(self._sources)

    def refresh(self) -> None:
        """Look for new attempts, files and bytes."""
        if self._attempt == 0:
            self._enter_next()
        self._list()

    def step(self, *, max_lines: int = 500, is_final: bool = False) -> list[MergedLine]:
        """The next available lines, oldest first, at most ``max_lines``; fewer if the step's read limit is reached.

        Args:
            is_final: nothing more will be written, so that a last line without a line break counts.
        """
        self._read = 0
        self._has_more = True
        lines: list[MergedLine] = []
        text_bytes = 0
        for source in self._sources.values():
            if source.is_starved:
                self._push(source, is_final=is_final)
        # Until every source has found its next line, the oldest is unknown.
        while len(lines) < max_lines and text_bytes < _STEP_TEXT and not self._is_starved():
            if not self._heap:
                # A newer attempt means that this one is over: its files are read once more, then left.
                if not self._enter_next(is_final=is_final):
                    self._has_more = False
                    break
                continue
            key, _, name = self._heap[0]
            source = self._sources[name]
            raw = self._take(source)
            whole = text_of(raw)
            speaker, text = self._selection.speaker_of(source.file, whole)
            if self._takes(source, key, text) and self._selection.takes_line(speaker, text):
                if text is not whole:
                    raw = raw[: len(raw) - len(whole)] + text
                lines.append(MergedLine(source.file, source.offset, raw, speaker))
                text_bytes += len(raw)
            self._push(source, is_final=is_final)
            if self._read >= STEP_BYTES:
                break
        return lines

    def _takes(self, source: _Source, key: bytes, text: bytes) -> bool:
        """Whether the selection includes the line's time and level."""
        if self._selection.level is not None:
            source.level = level_after(text, source.level)
            if (source.level or 0) < self._selection.level:
                return False
        return self._selection.since is None or key >= self._selection.since

    @property
    def is_truncated(self) -> bool:
        """True if ``step`` stopped at its limits: call it again."""
        return self._has_more

    def _is_starved(self) -> bool:
        return self._starved > 0

    def _list(self) -> None:
        if self._attempt == 0:
            return
        for file in self._logs.files(self._attempt):
            if not self._selection.takes_file(file):
                continue
            source = self._sources.get(file.name)
            if source is None:
                source = self._sources[file.name] = _Source(file, self._offsets.pop(file.name, 0))
            source.size = file.size_bytes
            if file.size_bytes < source.offset:  # the file was truncated: its contents are new
                source.offset, source.buffer, source.cut = 0, b"", 0
                self._heap = [entry for entry in self._heap if entry[2] != file.name]
                heapq.heapify(self._heap)
                source.is_waiting = False
            if not source.is_waiting and not source.is_past:
                self._push(source, is_final=False)

    def _enter_next(self, *, is_final: bool = False) -> bool:
        """Go on to the next attempt, if there is one and this one has been read to its end."""
        following = [number for number in self._logs.attempts() if number > self._attempt]
        if self._selection.attempt is not None:
            following = [number for number in following if number == self._selection.attempt]
        if not following and not is_final:
            return False
        if self._attempt:
            self._list()
            for source in self._sources.values():
                if not source.is_waiting and not source.is_past:
                    self._push(source, is_final=True)
            if self._heap:
                return True
        if not following:
            return False
        self._attempt = following[0]
        self._sources.clear()
        self._offsets.clear()
        self._starved = 0
        self._list()
        return True

    def _push(self, source: _Source, *, is_final: bool) -> None:
        """Push the source's next complete line onto the heap, if any."""
        if source.is_starved:
            source.is_starved = False
            self._starved -= 1
        source.is_waiting = self._fill(source, is_final=is_final)
        if source.is_waiting and self._selection.until is not None and source.key > self._selection.until:
            source.is_waiting, source.is_past = False, True
        entry = (source.key, source.file.order, source.file.name)
        if self._heap and self._heap[0][2] == source.file.name:
            if source.is_waiting:
                heapq.heapreplace(self._heap, entry)
            else:
                heapq.heappop(self._heap)
        elif source.is_waiting:
            heapq.heappush(self._heap, entry)

    def _fill(self, source: _Source, *, is_final: bool) -> bool:
        """Whether the buffer has a line to return; its time is then in ``source.key``."""
        while True:
            end = source.buffer.find(b"\n", source.cut)
            rest = len(source.buffer) - source.cut
            if end >= 0 or rest >= LINE_LIMIT:
                break
            if source.offset + rest >= source.size:
                if is_final and rest:
                    break
                return False
            if self._selection.search is not None and self._read >= STEP_BYTES:
                source.is_starved = True
                self._starved += 1
                return False
            if not self._refill(source):
                return False
        stamp = stamp_of(source.buffer[source.cut : source.cut + 32])
        source.key = stamp or source.key
        return True

    def _refill(self, source: _Source) -> bool:
        rest = source.buffer[source.cut :]
        block = max(_BLOCK[0], min(_BLOCK[1], _MEMORY // max(1, len(self._sources))))
        position = source.offset + len(rest)
        try:
            data = self._logs.read(self._attempt, source.file.name, position, block)
            zero = data.find(b"\0")
            after = None
            if zero >= 0:
                after = self._logs.after_hole(self._attempt, source.file.name, position + zero)
        except NotFound:
            return False  # deleted meanwhile: everything was returned
        if after is not None:
            data = data[:zero]
            if b"\n" not in data:  # drop the line that the hole cut in two
                source.offset, source.buffer, source.cut = after, b"", 0
                return True
        self._read += len(data)
        source.buffer, source.cut = rest + data, 0
        search = self._selection.search
        # Lines without a level inherit the previous line's, so that none may be skipped.
        if search is not None and self._selection.level is None:
            whole = source.buffer.rfind(b"\n") + 1
            if whole and search.can_skip(source.buffer[:whole]):
                source.buffer = source.buffer[whole:]
                source.offset += whole
        return bool(data)

    def _take(self, source: _Source) -> bytes:
        end = source.buffer.find(b"\n", source.cut)
        if end < 0 or end - source.cut > LINE_LIMIT:
            end = min(len(source.buffer), source.cut + LINE_LIMIT)
            after = end
        else:
            after = end + 1
        raw = source.buffer[source.cut : end]
        source.offset += after - source.cut
        source.cut = after
        return raw


def newest_position(logs: JobLogs, selection: Selection, *, tail_lines: int | None) -> LogPosition:
    """Where to begin: with the chosen attempt, else the newest; there at the beginning, shortly before the selection's
    ``since``, or ``tail_lines`` lines before the end of each file (of each, not of all: a hanging replica logged its
    last lines long ago).
    """
    attempts = logs.attempts()
    number = selection.attempt if selection.attempt is not None else (attempts[-1] if attempts else 0)
    if number not in attempts:
        return LogPosition()
    offsets: dict[str, int] = {}
    for file in logs.files(number) if tail_lines is not None or selection.since is not None else ():
        if not selection.takes_file(file):
            continue
        try:
            with logs.opened(number, file.name) as fd:
                tail = 0 if tail_lines is None else tail_offset(fd, tail_lines)
                offsets[file.name] = max(tail, 0 if selection.since is None else time_offset(fd, selection.since))
        except NotFound:
            continue
    return LogPosition(number, offsets)
