"""Prints the log lines of several replicas."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from datetime import date, datetime
from typing import TYPE_CHECKING, Final

from trainmaster.cli.terminal.escapes import only_colours, without_escapes

if TYPE_CHECKING:
    from trainmaster.wire.jobs import LogLine

# Distinguishable on dark and light backgrounds; red is reserved for errors.
_COLOURS: Final = (36, 32, 33, 35, 34, 96, 92, 93, 95, 94)


class LinePrinter:
    """Writes each line with its replica's name as prefix, on a terminal in the replica's colour.

    On a terminal, escape sequences other than colours are removed; a pipe gets the unchanged line.

    Args:
        why_ended: returns why an attempt ended; called when the first line of a later attempt arrives.
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
        """Print the date when the day changes; lines have only times."""
        if day != self._day:
            self._day = day
            self._write(f"── {day.isoformat()} ──\n")

    def begin_attempt(self, number: int) -> None:
        """Print that attempt ``number`` begins, and why the previous ones ended; nothing for the present attempt."""
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
        except UnicodeEncodeError:  # an ASCII terminal
            sys.stdout.write(text.encode("ascii", "replace").decode())
        sys.stdout.flush()
