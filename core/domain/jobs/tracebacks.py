"""Python's tracebacks in the last lines of a log."""

from __future__ import annotations

import re
from typing import Final

# Line prefixes of runtimes and engines: the log's time, the rank, torchrun's own rank.
PREFIX: Final = re.compile(r"^(?:\d{4}-\d\d-\d\dT[\d:.]+Z ?)?(?:\[rank ?\d+\]:? ?)*")
# The last line of a Python traceback, by naming convention; the message is optional.
EXCEPTION: Final = re.compile(
    r"^(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Failure|Timeout|Warning|Iteration|NotFound)\b"
    r"(?::\s.*)?$"
)
RUNTIME: Final = "trainmaster: "  # how the runtime begins its lines in a log

# Behind the frames of a traceback any name is an exception's: `queue.Empty`, `RayTaskError(ValueError): …`.
_RAISED: Final = re.compile(r"^(?:[A-Za-z_<][\w<>]*\.)*[A-Za-z_]\w*(?:\([\w.]+\))?(?::(?:\s.*)?)?$")
_BEGIN: Final = re.compile(r"Traceback \(most recent call last\):\s*$")
_FRAME: Final = re.compile(r'^\s+File "[^"]+", line \d+')
# Python goes on after these: finalizers at its end, and records that its logging could not format.
_HARMLESS: Final = re.compile(r"^(?:Exception ignored in|--- Logging error ---)")
# CUDA's and NCCL's messages have five lines; warnings of torch at its end, and an `echo`, come behind them.
_LINES_BEHIND: Final = 8


def exception_at_end(log_tail: str) -> str | None:
    """The exception with which a program's output ends, as its line in the traceback; ``None``: there is none.

    A few lines may follow: the rest of its message, and what a shell prints. More are a program that went on.

    Args:
        log_tail: the last lines of the log; a traceback in it may have lost its beginning.
    """
    lines = [PREFIX.sub("", line).rstrip() for line in log_tail.splitlines()]
    lines = [line for line in lines if line and not line.startswith(RUNTIME)]
    end = len(lines)  # behind it are tracebacks after which Python goes on
    while end > 0:
        frame = next((n for n in range(end - 1, -1, -1) if _FRAME.match(lines[n]) or _BEGIN.search(lines[n])), None)
        if frame is None:
            return None
        begin = frame
        while begin > 0 and not _BEGIN.search(lines[begin]) and lines[begin][0].isspace():
            begin -= 1
        is_traceback = bool(_BEGIN.search(lines[begin])) or lines[begin][0].isspace()
        if is_traceback and not (begin > 0 and _HARMLESS.match(lines[begin - 1])):
            return _exception_behind(lines[frame + 1 : end])
        end = begin - 1 if is_traceback else begin
    return None


def _exception_behind(lines: list[str]) -> str | None:
    """The exception in the lines behind the last frame, unless the program went on after it."""
    flush = [line for line in lines if not line[0].isspace()]  # code, carets and long messages are indented
    if not flush or not _RAISED.match(flush[0]):
        return None
    behind = sum(any(map(str.isalnum, line)) for line in flush[1:])
    return flush[0] if behind <= _LINES_BEHIND else None
