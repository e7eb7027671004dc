"""Output of commands: tables and text for users, JSON for programs; untrusted text without escape sequences."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from trainmaster.sizes import format_size

if TYPE_CHECKING:
    from pydantic import BaseModel
    from rich.console import Console

_BAR_AFTER_S: Final = 0.5
# Progress lines without a terminal: the first after, then every.
_LINE_AFTER_S: Final = 3.0
_LINE_EVERY_S: Final = 10.0
# A desired state that the next reconcile pass will reach.
_PENDING_REQUESTS: Final = {
    (state, desired): f" ({desired} requested)"
    for state in ("queued", "starting", "running")
    for desired in ("cancel", "pause")
}
# Icon and colour in addition to the word, which alone states the state.
_STATES: Final[dict[str, tuple[str, str]]] = {
    "queued": ("◌", "yellow"),
    "starting": ("◔", "cyan"),
    "running": ("●", "blue"),
    "paused": ("‖", "yellow"),
    "cancelling": ("◍", "magenta"),
    "succeeded": ("✓", "green"),
    "failed": ("✗", "red"),
    "cancelled": ("⊘", "magenta"),
    "expired": ("⊘", "red"),
    "placed": ("◌", "cyan"),
    "ended": ("■", "dim"),
    "pending": ("◌", "yellow"),
    "lost": ("?", "red"),
    "stopped": ("■", "dim"),
}


def answers() -> Console:
    """The console for results, on stdout. Created on each call, since stdout may have been replaced."""
    from rich.console import Console

    return Console(highlight=False, emoji=False)


def notes() -> Console:
    """The console for all other messages, on stderr."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, emoji=False)


def note(text: str, style: str = "") -> None:
    """One line on stderr."""
    from rich.text import Text

    notes().print(Text(without_escapes(text), style), soft_wrap=True)


def say(text: str = "") -> None:
    """One line on stdout, as it is."""
    sys.stdout.write(text + "\n")


def print_json(value: BaseModel | Sequence[BaseModel] | dict[str, Any] | list[Any]) -> None:
    """``value`` as indented JSON on stdout."""
    import json

    sys.stdout.write(json.dumps(to_plain(value), indent=2, ensure_ascii=False) + "\n")


def print_result(value: Any, text: str, *, as_json: bool) -> None:
    """The result of a command: ``value`` as JSON, or ``text``."""
    if as_json:
        print_json(value)
    else:
        say(text)


def print_json_line(value: BaseModel) -> None:
    """One object on one line, flushed for programs that read the stream."""
    sys.stdout.write(value.model_dump_json() + "\n")
    sys.stdout.flush()


def to_plain(value: Any) -> Any:
    from pydantic import BaseModel

    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    return value


def is_fancy(console: Console) -> bool:
    """Whether it is a terminal that shows Unicode."""
    return console.is_terminal and "utf" in (console.encoding or "").lower()


def state_text(state: str, console: Console, *, desired: str = "run") -> Any:
    """The state in its colour; ``desired``: the requested state, shown if it is not reached yet."""
    from rich.text import Text

    icon, colour = _STATES.get(state, ("•", ""))
    request = _PENDING_REQUESTS.get((state, desired), "")
    return Text((f"{icon} {state}" if is_fancy(console) else state) + request, colour)


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[Any]], *, empty: str, wraps: Sequence[str] = ()
) -> None:
    """Print a table. In a pipe: one line per row, columns two spaces apart, nothing truncated or wrapped.

    Args:
        rows: cells are strings, numbers, ``None`` (shown as a dash) or rich texts, such as of ``state_text``.
        empty: message on stderr if there are no rows.
        wraps: columns that wrap on a terminal instead of being truncated.
    """
    table = [[_cell(cell) for cell in row] for row in rows]
    if not table:
        note(empty, "dim")
        return
    console = answers()
    if console.is_terminal and (shown := _rich_table(columns, table, wraps, console.width)) is not None:
        console.print(shown)
        return
    lines = [list(columns), *[[str(cell) for cell in row] for row in table]]
    widths = [max(len(line[place]) for line in lines) for place in range(len(columns))]
    for line in lines:
        say("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


_NONE: Final = "–"


def _cell(value: Any) -> Any:
    if value is None or value == "":
        return _NONE
    if isinstance(value, int | float):
        return str(value)  # rich rejects numbers
    return value if not isinstance(value, str) else _single_line(value)


def _single_line(text: str) -> str:
    return " ".join(without_escapes(text).split())


# Maximum width of a column, enough for long names.
_WIDEST: Final = 32
# Maximum width of a column that wraps.
_NARROW: Final = 18
# Between two columns.
_GAP: Final = 2
# Terminal width from which the last column wraps instead of being truncated.
_ROOMY: Final = 140


def _width(cell: Any) -> int:
    return len(str(cell))


def _rich_table(columns: Sequence[str], rows: Sequence[Sequence[Any]], wraps: Sequence[str], room: int) -> Any | None:
    """The table for a terminal; ``None`` if it is so narrow that rich would drop columns silently."""
    from rich.markup import escape
    from rich.table import Table

    if len(columns) > 1 and all(str(line[-1]) == _NONE for line in rows):
        columns, rows = columns[:-1], [line[:-1] for line in rows]  # leave an empty last column out
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, _GAP, 0, 0), expand=True)
    for place, column in enumerate(columns[:-1]):
        # Identifying columns are never truncated; the last column, with sentences, shrinks.
        width = max(_width(line[place]) for line in [columns, *rows])
        if column in wraps:
            table.add_column(column, overflow="fold", min_width=min(width, _NARROW), max_width=_NARROW)
        else:
            table.add_column(column, no_wrap=True, min_width=min(width, _WIDEST))
        room -= min(width, _NARROW if column in wraps else _WIDEST) + _GAP
    if room <= 0 or (columns[-1] in wraps and room < _NARROW // 2):
        return None
    if columns:
        is_roomy = answers().width >= _ROOMY or columns[-1] in wraps
        table.add_column(columns[-1], ratio=1, no_wrap=not is_roomy, overflow="fold" if is_roomy else "ellipsis")
    for row in rows:
        table.add_row(*[escape(cell) if isinstance(cell, str) else cell for cell in row])
    return table


def print_pairs(pairs: Iterable[tuple[str, Any]]) -> None:
    """Print ``name   value`` lines, without pairs of an empty value."""
    from rich.text import Text

    shown = [(name, value) for name, value in pairs if value not in (None, "", [], {})]
    width = max((len(name) for name, _ in shown), default=0)
    console = answers()
    for name, value in shown:
        shown_value = value if isinstance(value, Text) else Text(without_escapes(str(value)))
        console.print(Text.assemble((f"{name.ljust(width)}  ", "bold"), shown_value), soft_wrap=True)


def print_changes(before: Mapping[str, str], after: Mapping[str, str]) -> None:
    """Print ``name: before → after`` for each setting that has changed."""
    changed = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    for name in changed:
        say(f"{name}: {before.get(name, '–')} → {after.get(name, '–')}")
    if not changed:
        note("No changes.", "dim")


def note_change(change: str, at: datetime | None, user: str | None) -> None:
    """When and by whom settings were changed; nothing if they never were."""
    if at is not None:
        by = f" by {user}" if user else ""
        note(f"{change}{by} {local_time(at)}.", "dim")


def warn(warnings: Iterable[str]) -> None:
    for warning in warnings:
        note(f"Warning: {warning}", "yellow")


# --- times and amounts ----------------------------------------------------------------------------------------------


def count(number: float, noun: str) -> str:
    """``1 file``, ``3 files``, ``0.5 GPU``."""
    shown = number if isinstance(number, int) else f"{number:.10g}"
    return f"{shown} {noun}" if 0 < number <= 1 else f"{shown} {noun}s"


def now() -> datetime:
    return datetime.now(UTC)  # noqa: TID251 (the command line is a boundary)


def duration(span: timedelta | float | None) -> str | None:
    """``42 s``, ``3 m 05 s``, ``2 h 10 m``, ``5 d 3 h``."""
    if span is None:
        return None
    seconds = span.total_seconds() if isinstance(span, timedelta) else float(span)
    seconds = max(0.0, seconds)
    if seconds < 10:
        return f"{seconds:.1f} s"
    total_s = round(seconds)
    minutes, seconds_left = divmod(total_s, 60)
    if total_s < 60:
        return f"{total_s} s"
    hours, minutes_left = divmod(minutes, 60)
    if hours == 0:
        return f"{minutes} m {seconds_left:02d} s"
    days, hours_left = divmod(hours, 24)
    return f"{hours} h {minutes_left:02d} m" if days == 0 else f"{days} d {hours_left} h"


def ago(at: datetime | None, present: datetime) -> str | None:
    return None if at is None else f"{duration(present - at)} ago"


def local_time(at: datetime | None) -> str | None:
    """Date and time in the local time zone."""
    return None if at is None else at.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def values_text(values: Mapping[str, Any], separator: str = "  ") -> str:
    """``loss=0.1234  step=3``: metrics or parameters by name."""
    return separator.join(
        f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={value}" for name, value in values.items()
    )


def size(count: int | None) -> str | None:
    return None if count is None else format_size(count)


# --- progress -------------------------------------------------------------------------------------------------------


@contextmanager
def progress_bar(label: str) -> Iterator[Any]:
    """A function to call with the bytes done and the total: a delayed bar on a terminal, otherwise lines."""
    console = notes()
    if not console.is_terminal:
        yield _line_by_line(label)
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    bar = Progress(*columns, console=console, transient=True)
    task = bar.add_task(label, total=None)
    shown_from_s = time.monotonic() + _BAR_AFTER_S

    def advance(done: int, total: int) -> None:
        bar.update(task, completed=done, total=total)
        if not bar.live.is_started and time.monotonic() >= shown_from_s:
            bar.start()

    try:
        yield advance
    finally:
        bar.stop()


def _line_by_line(label: str) -> Callable[[int, int], None]:
    next_s = time.monotonic() + _LINE_AFTER_S

    def advance(done: int, total: int) -> None:
        nonlocal next_s
        if done < total and time.monotonic() >= next_s:
            note(f"{label}: {format_size(done)} of {format_size(total)}", "dim")
            next_s = time.monotonic() + _LINE_EVERY_S

    return advance


@contextmanager
def busy(label: str) -> Iterator[Callable[[str], None]]:
    """A function to call with the present stage of a long operation: a spinner on a terminal, otherwise lines."""
    console = notes()
    if not console.is_terminal:
        yield lambda stage: note(f"{label}: {stage}", "dim")
        return
    with console.status(label) as status:
        yield lambda stage: status.update(f"{label}: {stage}")


def is_interactive() -> bool:
    """Whether the user can be prompted."""
    return sys.stdin.isatty() and sys.stderr.isatty()


# --- escape sequences of untrusted text: a log line must not move the cursor or fill the clipboard ------------------

# ECMA-48: a colour (SGR) is a control sequence with digits and separators that ends in `m`. All others are removed:
# strings (OSC, DCS, PM, APC, SOS) up to their end or that of the text, control sequences, other escapes, and the
# control characters of 7 and 8 bits except the tab.
_COLOUR: Final = r"\x1b\[[0-9;:]*m"
_OTHER: Final = (
    r"(?:\x1b[\]PX^_]|[\x90\x98\x9d\x9e\x9f]).*?(?:\x07|\x1b\\|\x9c|$)"
    r"|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"
    r"|\x1b[ -/]*[0-~]?"
    r"|[\x00-\x08\x0a-\x1f\x7f-\x9f]"
)
_WITH_COLOUR: Final = re.compile(f"({_COLOUR})|{_OTHER}", re.DOTALL)
_ANY: Final = re.compile(f"{_COLOUR}|{_OTHER}", re.DOTALL)


def without_escapes(text: str) -> str:
    """``text`` without control characters and terminal sequences; line ends and tabs stay."""
    if text.isprintable():
        return text
    return "\n".join(_ANY.sub("", line) for line in text.split("\n"))


def only_colours(line: str) -> str:
    """A line with no escape sequences except colours.

    Of a progress bar that overwrites itself, only the last state remains, as on a terminal.
    """
    if line.isprintable():
        return line
    overwritten = [part for part in line.split("\r") if part]
    return _WITH_COLOUR.sub(lambda match: match[1] or "", overwritten[-1] if overwritten else "")
