"""Exit codes, and errors as people and programs read them."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum
from typing import Final

from trainmaster.cli.terminal.escapes import without_escapes
from trainmaster.errors import (
    Conflict,
    FieldMistake,
    Forbidden,
    InvalidRequest,
    InvalidSpec,
    NotConfigured,
    NotFound,
    ServerUnreachable,
    TokenExpired,
    TrainmasterError,
    Unauthenticated,
    UnfitFolder,
    WaitTimedOut,
)


class ExitCode(IntEnum):
    """What the command line tells the shell. ``run``, ``submit --follow`` and ``wait`` give a failed job's own code."""

    OK = 0
    FAILED = 1
    USAGE = 2  # also a spec or an argument that the server refuses
    UNREACHABLE = 3
    UNAUTHORISED = 4
    NOT_FOUND = 5
    CONFLICT = 6
    TIMED_OUT = 124  # as timeout(1)
    INTERRUPTED = 130  # as shells report SIGINT; also a cancelled job
    BROKEN_PIPE = 141  # as shells report SIGPIPE


class WrongUse(TrainmasterError):
    """The command line was used wrongly."""

    code = "wrong_use"


_CODES: tuple[tuple[type[TrainmasterError], ExitCode], ...] = (
    (ServerUnreachable, ExitCode.UNREACHABLE),
    (NotConfigured, ExitCode.UNREACHABLE),
    (Unauthenticated, ExitCode.UNAUTHORISED),
    (Forbidden, ExitCode.UNAUTHORISED),
    (NotFound, ExitCode.NOT_FOUND),
    (Conflict, ExitCode.CONFLICT),
    (InvalidRequest, ExitCode.USAGE),
    (WrongUse, ExitCode.USAGE),
    (UnfitFolder, ExitCode.USAGE),
    (WaitTimedOut, ExitCode.TIMED_OUT),
)

# The server speaks of its API; here the same is a command.
_COMMANDS: Final = {
    "jobs": "list",
    "nodes": "nodes",
    "projects": "projects",
    "studies": "study list",
    "tokens": "token list",
    "users": "users",
    "volumes": "volumes",
}
_REQUEST: Final = re.compile(r"`GET /api/v1/(\w+)`")
_STUDY_REQUEST: Final = re.compile(r"`GET /api/v1/studies/([^/`]+)`")
# And what is a field there is an option here.
_OPTIONS: Final = {
    "begins_at": "--from",
    "count": "--count",
    "days": "--days",
    "ends_at": "--until",
    "like": "--like",
    "more_nodes": "--more-nodes",
    "node_selector": "--select",
    "without": "--without",
}
_FIELD: Final = re.compile(r"^(?:cluster\.|settings\.)?(\w+)(?=: )", re.IGNORECASE)
_UTC: Final = re.compile(r"\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?\+00:00")


@contextmanager
def refused_as(what: str) -> Iterator[None]:
    """A spec that is refused meanwhile is that of ``what``, no job's."""
    try:
        yield
    except InvalidSpec as error:
        error.of = what
        raise


def exit_code_of(error: TrainmasterError) -> ExitCode:
    return next((code for kind, code in _CODES if isinstance(error, kind)), ExitCode.FAILED)


def advice_of(error: TrainmasterError) -> str | None:
    """What to do, where the server's sentence cannot know it."""
    if isinstance(error, TokenExpired):
        return "Ask a platform admin for a new one (`trainmaster token create NAME --user YOU`), then `trainmaster login URL`."
    if isinstance(error, Unauthenticated):
        return "Log in with `trainmaster login URL`, or set TRAINMASTER_TOKEN."
    if isinstance(error, NotFound) and error.sentence.startswith("There is no project 'default' "):
        return "Where no project is named, `default` is meant; name yours with --project, or once for all with TRAINMASTER_PROJECT."
    return None


def tell_error(error: TrainmasterError, *, as_json: bool) -> None:
    """One line in red, what is at fault below it, and what to do; or the problem as JSON. On stderr."""
    if as_json:
        import json

        sys.stderr.write(json.dumps(error.to_problem()) + "\n")
        return
    from rich.text import Text

    from trainmaster.cli.terminal.output import notes

    screen = notes()
    headline, mistakes = _headline(error)
    screen.print(Text.assemble(("Error: ", "bold red"), (without_escapes(headline), "red")), soft_wrap=True)
    width = max((len(mistake.path) for mistake in mistakes), default=0)
    for mistake in mistakes:
        path, message = without_escapes(mistake.path), without_escapes(mistake.message)
        screen.print(Text.assemble("  ", (path.ljust(min(width, 40)), "bold"), "  ", message), soft_wrap=True)
        if mistake.hint:
            hint = without_escapes(mistake.hint)
            screen.print(Text(f"  {' ' * min(width, 40)}  → {hint}", "dim"), soft_wrap=True)
    if advice := advice_of(error):
        screen.print(Text(advice), soft_wrap=True)
    if error.request_id and error.status == 500:  # what is above is told in full
        screen.print(Text(f"Request {error.request_id}; the server's log tells more.", "dim"), soft_wrap=True)


def _headline(error: TrainmasterError) -> tuple[str, Sequence[FieldMistake]]:
    """The server's sentence, and the mistakes to list below it: those that it does not name already.

    Of a spec it names the first, which the list does better.
    """
    count = len(error.mistakes)
    if isinstance(error, InvalidSpec) and error.status is not None and count:
        return f"The {error.of} spec has {'a mistake' if count == 1 else f'{count} mistakes'}:", error.mistakes
    if error.status is None:  # our own words
        return error.sentence, error.further_mistakes
    further = [mistake._replace(path=_in_options(f"{mistake.path}: ")[:-2]) for mistake in error.further_mistakes]
    return in_commands(_in_options(error.sentence)), further


def _in_options(sentence: str) -> str:
    """The server's sentence with the option in place of the field that it begins with, and times where the reader is."""
    from datetime import datetime

    from trainmaster.cli.terminal.output import local_time

    def option(found: re.Match[str]) -> str:
        is_setting = found[0].lower().startswith("settings.")
        return found[1] if is_setting else _OPTIONS.get(found[1].lower(), found[0])

    def local(found: re.Match[str]) -> str:
        return local_time(datetime.fromisoformat(found[0])) or found[0]

    return _UTC.sub(local, _FIELD.sub(option, sentence))


def in_commands(sentence: str) -> str:
    """The server's sentence with commands in place of requests."""

    def command(found: re.Match[str]) -> str:
        known = _COMMANDS.get(found[1])
        return f"`trainmaster {known}`" if known else found[0]

    return _REQUEST.sub(command, _STUDY_REQUEST.sub(r"`trainmaster study show \1`", sentence))


def tell_bug(error: BaseException, *, as_json: bool) -> None:
    """An error that nobody foresaw, without its traceback."""
    told = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    tell_error(
        TrainmasterError(f"This is a bug in trainmaster's command line ({told}); TRAINMASTER_DEBUG=1 shows where."),
        as_json=as_json,
    )


def is_debugging() -> bool:
    return os.environ.get("TRAINMASTER_DEBUG", "") not in ("", "0")
