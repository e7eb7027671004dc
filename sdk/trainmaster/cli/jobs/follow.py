"""Following a job until it ends: its log lines of all replicas, why it waits, and Ctrl-C."""

from __future__ import annotations

import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import date, datetime
from typing import TYPE_CHECKING, Any, Final

import typer

from trainmaster.cli.jobs.listing import runtime_of, waiting_text
from trainmaster.cli.jobs.show import exit_text
from trainmaster.cli.terminal import output
from trainmaster.cli.terminal.exits import ExitCode
from trainmaster.cli.terminal.output import only_colours, without_escapes
from trainmaster.errors import TrainmasterError
from trainmaster.wire.jobs import TERMINAL_STATES, JobDetail, LogLine

if TYPE_CHECKING:
    from trainmaster.client import Client, Job, StateNotice

# Distinguishable on dark and light backgrounds; red is reserved for errors.
_COLOURS: Final = (36, 32, 33, 35, 34, 96, 92, 93, 95, 94)
_POLL_S: Final = 1.0
# While the job runs: it may wait again, after a failure or a preemption.
_RUNNING_POLL_S: Final = 5.0
_WARNING: Final = "Warning: "  # in the sentence of a success
_WAITING: Final = ("queued", "starting", "paused")
# After a submission, until the planner has explained why the job waits.
_PLANNED_WITHIN_S: Final = 2.0
_PLANNED_POLL_S: Final = 0.1
# Lines buffered for a slow terminal; then backpressure stops the stream.
_READ_AHEAD: Final = 5_000


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


def exit_code_of_job(detail: JobDetail) -> int:
    """The exit code for an ended job."""
    if detail.state == "succeeded":
        return ExitCode.OK
    if detail.state == "cancelled":
        return ExitCode.INTERRUPTED
    code = detail.exit.exit_code if detail.exit else None
    return code if code is not None and 0 < code < 256 else ExitCode.FAILED


def tell_end(detail: JobDetail) -> None:
    """Print how a job ended, in one line on stderr."""
    from rich.text import Text

    console = output.notes()
    end = exit_text(detail.exit)
    if detail.state == "succeeded":
        end = "".join((end or "").partition(_WARNING)[1:])  # the line states the success already
    ran = runtime_of(detail, output.now())
    line = Text.assemble(
        output.state_text(detail.state, console),
        f"  {detail.name} ({detail.id})",
        f" after {ran}" if ran else "",
        f": {without_escapes(end)}" if end else "",
    )
    console.print(line, soft_wrap=True)


def note_unread_metrics(client: Client, detail: JobDetail) -> None:
    """One line on stderr if the ended job has no metrics, but its log has lines that look like some."""
    try:
        suggestions = client.suggest_metric_patterns(detail.id).suggestions
    except TrainmasterError:
        return  # the job has ended; its metrics are a hint
    if suggestions:
        output.note(
            f"No metrics were found, but its log has lines that look like some: `trainmaster metrics {detail.id}` "
            "shows patterns to read them.",
            "yellow",
        )


def why_ended(client: Client, job: str, number: int) -> str | None:
    """Why an attempt ended, as a sentence; ``None`` if the server does not answer."""
    try:
        end = client.get_attempt(job, number).end
    except TrainmasterError:
        return None
    return end.sentence if end is not None else None


def _waiting_line(detail: JobDetail) -> str:
    """``queued (position 2): needs 8 GPUs …``."""
    waits = detail.wait_reason
    reason = waiting_text(waits) if waits else ""
    if detail.state == "starting":
        reason = reason or "starting the replicas"
    has_position = detail.queue_position and not (waits and waits.is_infeasible)
    position = f" (position {detail.queue_position})" if has_position else ""
    return f"{detail.state}{position}: {reason}" if reason else f"{detail.state}{position}"


def _has_reason(detail: JobDetail) -> bool:
    """Whether the planner has explained why the job waits."""
    return detail.state in _WAITING and detail.wait_reason is not None and detail.wait_reason.code != "just_queued"


def note_if_never(client: Client, job: str) -> None:
    """One line on stderr if the job that was just submitted can never start on the present nodes."""
    deadline_s = time.monotonic() + _PLANNED_WITHIN_S
    pause = threading.Event()
    try:
        while True:
            detail = client.get_job(job)
            if detail.state != "queued" or _has_reason(detail) or time.monotonic() > deadline_s:
                break
            pause.wait(_PLANNED_POLL_S)
    except TrainmasterError:
        return  # the job is submitted; its state is a hint
    if _has_reason(detail) and detail.wait_reason is not None and detail.wait_reason.is_infeasible:
        output.note(f"{detail.name} {waiting_text(detail.wait_reason)} It waits until that changes.", "yellow")


@contextmanager
def wait_reasons(client: Client, job: str, tell: Callable[[str], None]) -> Iterator[None]:
    """Within the context, ``tell`` gets a line such as ``queued: needs 8 GPUs …`` when the reason of a wait changes."""
    is_over = threading.Event()

    def poll() -> None:
        shown, followed = "", job
        while not is_over.is_set():
            try:
                detail = client.get_job(followed)
            except Exception:  # noqa: BLE001 (the main thread gets the same error, or closed the client)
                return
            followed = detail.id  # a later job may get the same name
            text = _waiting_line(detail) if _has_reason(detail) else ""
            if text and text != shown and not is_over.is_set():
                tell(text)
            shown = text or shown
            if detail.state in TERMINAL_STATES:
                return
            is_over.wait(_POLL_S if detail.state in _WAITING else _RUNNING_POLL_S)

    threading.Thread(target=poll, name="wait reasons", daemon=True).start()
    try:
        yield
    finally:
        is_over.set()


@dataclass(frozen=True, slots=True)
class _Ended:
    """The stream's end, by itself or by an error."""

    error: BaseException | None


class JobFollower:
    """Shows a job's output to a user until it ends or the user detaches."""

    def __init__(self, client: Client, job: Job, *, with_times: bool = False) -> None:
        self._client = client
        self._job = job
        self._items: queue.Queue[LogLine | StateNotice | JobDetail | _Ended] = queue.Queue(_READ_AHEAD)
        self._printer = LinePrinter(with_times=with_times, why_ended=lambda number: why_ended(client, job.id, number))
        self._is_over = threading.Event()
        self._is_waiting = threading.Event()
        self._has_cancelled = False
        self._status: Any = None
        self._shown_reason = ""
        self._state = ""

    def run(self) -> int:
        """Follow the job to its end; returns the exit code."""
        self._is_waiting.set()
        # Daemon threads: detaching does not wait for the server.
        threading.Thread(target=self._read, name="log stream", daemon=True).start()
        threading.Thread(target=self._poll_wait_reason, name="wait reasons", daemon=True).start()
        try:
            while True:
                try:
                    item = self._items.get()
                    if isinstance(item, _Ended):
                        return self._end(item)
                    self._show(item)
                except KeyboardInterrupt:
                    self._clear_status()
                    if self._leaves():
                        return ExitCode.INTERRUPTED
        except SystemExit:  # SIGTERM or SIGHUP
            self._clear_status()
            with suppress(OSError):  # the terminal may be closed
                self._tell_detached()
            raise
        finally:
            self._clear_status()
            self._is_over.set()
            self._is_waiting.set()

    # --- the two threads --------------------------------------------------------------------------------------------

    def _read(self) -> None:
        error: BaseException | None = None
        try:
            for item in self._client.watch_job(self._job.id):
                self._items.put(item)
                if self._is_over.is_set():
                    return
        except Exception as raised:  # noqa: BLE001 (raised again in the main thread)
            error = raised
        self._items.put(_Ended(error))

    def _poll_wait_reason(self) -> None:
        """Show why the job waits, while it waits."""
        while not self._is_over.is_set():
            self._is_waiting.wait()
            if self._is_over.is_set():
                return
            try:
                detail = self._client.get_job(self._job.id)
            except TrainmasterError:
                pass  # the stream reports the error
            except Exception:  # noqa: BLE001 (the main thread closed the client, or will get the same error)
                return
            else:
                if self._is_waiting.is_set() and not self._is_over.is_set():
                    self._items.put(detail)
                if detail.state not in _WAITING:
                    self._is_waiting.clear()
            self._is_over.wait(_POLL_S)

    # --- output -----------------------------------------------------------------------------------------------------

    def _show(self, item: LogLine | StateNotice | JobDetail) -> None:
        if isinstance(item, LogLine):
            self._clear_status()
            self._printer.print(item)
        elif isinstance(item, JobDetail):
            self._show_waiting(item)
        elif item.state != self._state:
            self._state = item.state
            if item.state in _WAITING:
                self._is_waiting.set()

    def _show_waiting(self, detail: JobDetail) -> None:
        if detail.state not in _WAITING:
            self._clear_status()
            return
        text = _waiting_line(detail)
        console = output.notes()
        if console.is_terminal:
            if self._status is None:
                self._status = console.status(text)
                self._status.start()
            else:
                self._status.update(text)
        elif text != self._shown_reason and _has_reason(detail):
            output.note(text, "dim")  # once per reason; reasons that last less than a second would be noise
        self._shown_reason = text

    def _clear_status(self) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None

    def _end(self, ended: _Ended) -> int:
        self._clear_status()
        if ended.error is not None:
            output.note(f"The job {self._job.name} ({self._job.id}) continues. The stream failed:", "dim")
            raise ended.error
        detail = self._job.wait()
        if detail.attempt_count > 1:
            self._printer.begin_attempt(detail.attempt_count)  # an attempt without log lines
        tell_end(detail)
        note_unread_metrics(self._client, detail)
        return exit_code_of_job(detail)

    # --- Ctrl-C -----------------------------------------------------------------------------------------------------

    def _leaves(self) -> bool:
        """Whether the user (or program) detaches; otherwise the job is being cancelled and followed to its end."""
        if not output.is_interactive() or self._has_cancelled:
            self._tell_detached()
            return True
        try:
            answer = typer.prompt(
                f"\n{self._job.name} keeps running. [d]etach or [c]ancel the job?", default="d", err=True
            )
        except (KeyboardInterrupt, typer.Abort, EOFError):
            answer = "d"
        if not str(answer).strip().lower().startswith("c"):
            self._tell_detached()
            return True
        self._job.cancel(reason="Ctrl-C in trainmaster run")
        self._has_cancelled = True
        output.note("Cancelling; Ctrl-C again detaches.", "dim")
        return False

    def _tell_detached(self) -> None:
        output.note(
            f"\nDetached; {self._job.name} continues.\n"
            f"  follow it:  trainmaster logs -f {self._job.id}\n"
            f"  cancel it:  trainmaster cancel {self._job.id}"
        )
