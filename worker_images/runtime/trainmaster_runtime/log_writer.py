"""The replica's log: every line with its time, from the first byte, and never in the way of the job."""

from __future__ import annotations

import errno
import os

from trainmaster_runtime import clock
from trainmaster_runtime.process import syscalls

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_LINE_BYTES = 65_536
TAIL_BYTES = 4_096
# A progress bar may redraw hundreds of times a second; twice is what a reader can follow.
_REDRAW_S = 0.5
RETRY_S = 1.0
_SECRET_BYTES = 6
_MASK = b"***"
_BLOCK = 4_096  # file systems give room back in these


class JobLog:
    """An append-only file of ``<time> <text>`` lines.

    A failed write (disk full) never raises: the lines are dropped and counted, tried again after a second, and the
    loss is noted in the log as soon as it can be written.

    The file takes at most about ``limit_bytes`` of the disk: its first and its newest half of that stay, what is
    between gives its room back. Offsets in the file never change, so readers go on undisturbed. Where the file system
    cannot do that (NFS before 4.2), nothing more is written at the limit.
    """

    def __init__(self, path: str, limit_bytes: int | None = None) -> None:
        self.path = path
        self._limit = limit_bytes
        self._size = 0
        self._dropped_to = 0  # of the bytes behind the first half
        self._is_closed = False  # at its limit, where nothing can be dropped
        self.failure: OSError | None = None  # of the newest write
        self.lost_bytes = 0
        self._lost_since = 0
        self._tail = b""
        self._retry_at = 0.0
        self._is_torn = False  # the file ends inside a line
        self._masked: list[bytes] = []
        self._fd = -1
        try:
            self._open()
        except OSError as error:
            self.failure = error

    @property
    def is_disk_full(self) -> bool:
        """Whether the newest write failed for want of room."""
        return self.failure is not None and self.failure.errno in (errno.ENOSPC, errno.EDQUOT)

    def mask(self, secrets: Iterable[str]) -> None:
        """Write ``***`` instead of these texts from now on: of each text the lines of at least six bytes.

        Shorter ones would mask ordinary words.
        """
        lines = {line.strip() for text in secrets for line in text.encode("utf-8", "surrogateescape").splitlines()}
        # The longest first: one secret may be part of another.
        self._masked = sorted((line for line in lines if len(line) >= _SECRET_BYTES), key=len, reverse=True)

    def say(self, text: str) -> None:
        """A line of the runtime's own."""
        self.write([b"trainmaster: " + text.encode("utf-8", "replace")])

    def write(self, lines: list[bytes]) -> None:
        if not lines:
            return
        for secret in self._masked:
            lines = [line.replace(secret, _MASK) for line in lines]
        now = clock.now()
        stamp = clock.stamp(now).encode() + b" "
        block = stamp + (b"\n" + stamp).join(lines) + b"\n"
        self._tail = (self._tail + block[-TAIL_BYTES:])[-TAIL_BYTES:]
        if self._is_closed:
            self.lost_bytes += len(block)
            return
        if self.failure is not None and now < self._retry_at:
            self._lose(len(block))
            return
        if self.failure is not None or self._is_torn:
            block = self._mend(stamp) + block
        self._append(block, now)
        if self._limit is not None and self._size > max(self._limit, self._dropped_to + self._limit // 2 + self._step):
            self._drop_middle(self._limit, now)

    def tail(self) -> str:
        """The last lines, at most 4 KiB, without their times."""
        text = self._tail.decode("utf-8", "replace")
        lines = text.splitlines()
        if len(self._tail) == TAIL_BYTES:
            del lines[0]
        return "\n".join(line.partition(" ")[2] for line in lines)

    def _open(self) -> None:
        os.makedirs(os.path.dirname(self.path), exist_ok=True)
        self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._size = os.fstat(self._fd).st_size

    @property
    def _step(self) -> int:
        """So many bytes are dropped at once."""
        return max(_BLOCK, (self._limit or 0) // 16)

    def _drop_middle(self, limit: int, now: float) -> None:
        is_first = not self._dropped_to
        start = -(-(limit // 2) // _BLOCK) * _BLOCK
        end = (self._size - limit // 2) // _BLOCK * _BLOCK
        if end <= start:
            return
        note = b"trainmaster: the log has reached its limit of %d bytes: " % limit
        try:
            syscalls.punch_hole(self._fd, start, end)
            self._dropped_to = end
            note += b"its beginning and its newest lines are kept, what is between is dropped"
        except OSError:
            self._is_closed = True
            note += b"this file system cannot drop its middle, so what comes from here on is not kept"
        if is_first:
            self._append(clock.stamp(now).encode() + b" " + note + b"\n", now)

    def _append(self, block: bytes, now: float) -> None:
        view = memoryview(block)
        try:
            if self._fd < 0:
                self._open()
            while view:
                written = os.write(self._fd, view)
                self._size += written
                self._is_torn = view[written - 1] != 10
                view = view[written:]
            self.failure = None
            self._lost_since = 0
        except OSError as error:
            self.failure = error
            self._retry_at = now + RETRY_S
            self._lose(len(view))

    def _lose(self, count: int) -> None:
        self.lost_bytes += count
        self._lost_since += count

    def _mend(self, stamp: bytes) -> bytes:
        ending = b"\n" if self._is_torn else b""
        if not self._lost_since:
            return ending
        return (
            ending
            + stamp
            + b"trainmaster: about %d bytes of the log were lost, it could not be written\n" % (self._lost_since)
        )


class LineSplitter:
    """Turns the bytes of one process into lines.

    A line ends with a newline. A carriage return redraws: the drawn text becomes a line at most twice a second, and
    what stands there when the newline comes is always kept. So is what is drawn first behind a line that was printed
    over a bar: the bar shows the step that the line belongs to. Lines over 64 KiB are split, never inside a UTF-8
    character.
    """

    def __init__(self, prefix: bytes = b"") -> None:
        self._prefix = prefix
        self._partial_line = b""
        self._is_shown = False
        self._is_behind_line = False  # that was printed over a bar
        self._drawn_at = -_REDRAW_S

    def feed(self, data: bytes, now: float) -> list[bytes]:
        """The lines that ``data`` completes. ``now`` is monotonic."""
        lines: list[bytes] = []
        if self._is_shown and data.startswith(b"\n"):
            data = data[1:]  # the second half of \r\n: the line was shown when its first half came
        self._is_shown = False
        text = self._partial_line + data
        parts = text.split(b"\n")
        self._partial_line = parts.pop()
        if b"\r" not in text and not any(len(part) > MAX_LINE_BYTES for part in parts):
            # What nearly all programs print, without a call for each line.
            lines = [self._prefix + part for part in parts] if self._prefix else parts
            parts = []
        for part in parts:
            self._finish(part[:-1] if part.endswith(b"\r") else part, now, lines)
        if b"\r" in self._partial_line[:-1]:
            # The last piece is still being drawn; a \r at the very end may be half of \r\n.
            keep = self._partial_line.rindex(b"\r", 0, len(self._partial_line) - 1) + 1
            self._redraw(self._partial_line[:keep].split(b"\r"), now, lines)
            self._partial_line = self._partial_line[keep:]
        elif self._partial_line.endswith(b"\r") and now - self._drawn_at >= _REDRAW_S and len(self._partial_line) > 1:
            self._emit(self._partial_line[:-1], lines)
            self._partial_line = b""
            self._is_shown = True
            self._drawn_at = now
        while len(self._partial_line) > MAX_LINE_BYTES:
            cut = _whole_characters(self._partial_line, MAX_LINE_BYTES)
            lines.append(self._prefix + self._partial_line[:cut])
            self._partial_line = self._partial_line[cut:]
        return lines

    def finish(self) -> list[bytes]:
        """The last line, without a newline."""
        lines: list[bytes] = []
        last_line, self._partial_line = self._partial_line.rstrip(b"\r"), b""
        if last_line:
            self._emit(last_line.rpartition(b"\r")[2], lines)
        return lines

    def _finish(self, text: bytes, now: float, lines: list[bytes]) -> None:
        if b"\r" in text:
            pieces = text.split(b"\r")
            text = pieces.pop()
            self._redraw(pieces, now, lines)
            self._is_behind_line = any(map(bytes.strip, pieces)) and bool(text)
            if not text:
                # "100%\r\n" after redraws: what was drawn last is the line.
                text = next((piece for piece in reversed(pieces) if piece), b"")
        self._emit(text, lines)

    def _redraw(self, pieces: list[bytes], now: float, lines: list[bytes]) -> None:
        drawn = [piece for piece in pieces if piece.strip()]
        if drawn and (now - self._drawn_at >= _REDRAW_S or self._is_behind_line):
            self._drawn_at = now
            self._emit(drawn[0 if self._is_behind_line else -1], lines)
            self._is_behind_line = False

    def _emit(self, text: bytes, lines: list[bytes]) -> None:
        while len(text) > MAX_LINE_BYTES:
            cut = _whole_characters(text, MAX_LINE_BYTES)
            lines.append(self._prefix + text[:cut])
            text = text[cut:]
        lines.append(self._prefix + text)


def _whole_characters(text: bytes, limit: int) -> int:
    """The largest cut up to ``limit`` that does not divide a UTF-8 character."""
    cut = limit
    while cut > limit - 4 and text[cut] & 0xC0 == 0x80:
        cut -= 1
    return cut if text[cut] & 0xC0 != 0x80 else limit
