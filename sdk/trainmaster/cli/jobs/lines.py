"""Log lines of many replicas on one screen."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from datetime import date, datetime
from typing import TYPE_CHECKING, Final

from trainmaster.cli.terminal.escapes import only_colours, without_escapes

if TYPE_CHECKING:
    from trainmaster.wire.jobs import LogLine

# Told apart on dark and light grounds; red is left for errors.
_COLOURS: Final = (36, 32, 33, 35, 34, 96, 92, 93, 95, 94)


class LinePrinter:
    """Writes each line behind its replica's name, in the replica's own colour on a terminal.

    A terminal gets of a line's escape sequences the colours alone; a pipe gets the line as it is.

    Args:
        why_ended: asked for the number of an attempt when lines of a later one come: why it ended, in a sentence.
    """

    def __init__(self, *, with_times: bool = False, why_ended: Callable[[int], str | None] | None = None) -> None:
        self._with_times = with_times
        self._why_ended = why_ended
        self._is_terminal = sys.stdout.isatty()
        self._has_colour = self._is_terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        self._colours: dict[str, int] = {}
        self._width = 0
        self._attempt: int | None = None
        self._day = datetime.now().astimezone().date()  # noqa: TID251 (the command line is an edge)

    def print(self, line: LogLine) -> None:
        name = f"{line.role}-{line.index}" + ("" if line.local_rank is None else f" rank {line.rank}")
        self.begin_attempt(line.attempt)
        if self._with_times and line.at:
            self._begin_day(line.at.astimezone().date())
        self._width = max(self._width, len(name))
        label = name.ljust(self._width)
        if self._has_colour:
            colour = self._colours.setdefault(name, _COLOURS[len(self._colours) % len(_COLOURS)])
            label = f"\x1b[{colour}m{label}\x1b[0m"
        at = f"{line.at.astimezone():%H:%M:%S.%f}"[:-3] + " " if self._with_times and line.at else ""
        text = self._shown(line.text)
        reset = "\x1b[0m" if self._has_colour and "\x1b" in text else ""
        self._write(f"{label} | {at}{text}{reset}\n")

    def _begin_day(self, day: date) -> None:
        """Times alone tell of today; of another day it is said."""
        if day != self._day:
            self._day = day
            self._write(f"── {day.isoformat()} ──\n")

    def begin_attempt(self, number: int) -> None:
        """Say that attempt ``number`` begins, and why those before it ended; nothing for the one that is shown."""
        first = self._attempt
        self._attempt = number
        if first is None or number == first:
            return
        for earlier in range(first, number):
            why = self._why_ended(earlier) if self._why_ended else None
            if why:
                self._write(f"── attempt {earlier} ended: {without_escapes(why)} ──\n")
        self._write(f"── attempt {number} ──\n")

    def _shown(self, text: str) -> str:
        if not self._is_terminal:
            return text
        return only_colours(text) if self._has_colour else without_escapes(only_colours(text))

    def _write(self, text: str) -> None:
        try:
            sys.stdout.write(text)
        except UnicodeEncodeError:  # a terminal of ASCII
            sys.stdout.write(text.encode("ascii", "replace").decode())
        sys.stdout.flush()
