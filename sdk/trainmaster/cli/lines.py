"""Log lines of many replicas on one screen."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from trainmaster.wire.jobs import LogLine

# Told apart on dark and light grounds; red is left for errors.
_COLOURS: Final = (36, 32, 33, 35, 34, 96, 92, 93, 95, 94)


class LinePrinter:
    """Writes each line behind its replica's name, in the replica's own colour on a terminal."""

    def __init__(self, *, with_times: bool = False) -> None:
        self._with_times = with_times
        self._has_colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        self._colours: dict[str, int] = {}
        self._width = 0
        self._attempt: int | None = None

    def print(self, line: LogLine) -> None:
        name = f"{line.role}-{line.index}" + ("" if line.rank is None else f" rank {line.rank}")
        if self._attempt is not None and line.attempt != self._attempt:
            self._write(f"── attempt {line.attempt} ──\n")
        self._attempt = line.attempt
        self._width = max(self._width, len(name))
        label = name.ljust(self._width)
        if self._has_colour:
            colour = self._colours.setdefault(name, _COLOURS[len(self._colours) % len(_COLOURS)])
            label = f"\x1b[{colour}m{label}\x1b[0m"
        at = f"{line.at.astimezone():%H:%M:%S.%f}"[:-3] + " " if self._with_times and line.at else ""
        reset = "\x1b[0m" if self._has_colour and "\x1b" in line.text else ""
        self._write(f"{label} | {at}{line.text}{reset}\n")

    def _write(self, text: str) -> None:
        try:
            sys.stdout.write(text)
        except UnicodeEncodeError:  # a terminal of ASCII
            sys.stdout.write(text.encode("ascii", "replace").decode())
        sys.stdout.flush()
