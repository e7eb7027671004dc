"""Exit codes, and messages of errors and wrong usage for users and programs."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum
from typing import Any, Final

from trainmaster.cli.terminal.output import local_time, notes, without_escapes
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
    """Exit codes of the command line. ``run``, ``submit --follow`` and ``wait`` exit with a failed job's exit code."""

    OK = 0
    FAILED = 1
    USAGE = 2  # also a spec or an argument that the server rejects
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

# The server's messages name API requests -> the equivalent commands.
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
# Fields in the server's messages -> the equivalent options.
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
def refused_as(subject: str) -> Iterator[None]:
    """Within the context, a rejected spec is that of ``subject``, not a job's."""
    try:
        yield
    except InvalidSpec as error:
        error.of = subject
        raise


def exit_code_of(error: TrainmasterError) -> ExitCode:
    return next((code for kind, code in _CODES if isinstance(error, kind)), ExitCode.FAILED)


def advice_of(error: TrainmasterError) -> str | None:
    """What to do, where the server's message cannot say it."""
    if isinstance(error, TokenExpired):
        return (
            "Ask a platform admin for a new token (`trainmaster token create NAME --user YOU`), then "
            "`trainmaster login URL`."
        )
    if isinstance(error, Unauthenticated):
        return "Log in with `trainmaster login URL`, or set TRAINMASTER_TOKEN."
    if isinstance(error, NotFound) and error.sentence.startswith("There is no project 'default' "):
        return "The default project is `default`; name yours with --project, or set TRAINMASTER_PROJECT."
    return None


def tell_error(error: TrainmasterError, *, as_json: bool) -> None:
    """Print an error to stderr: one red line, the invalid fields below it, and advice; or the problem as JSON."""
    if as_json:
        import json

        sys.stderr.write(json.dumps(error.to_problem()) + "\n")
        return
    from rich.text import Text

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
    if error.request_id and error.status == 500:  # other errors are complete
        screen.print(Text(f"Request {error.request_id}; see the server's log for more.", "dim"), soft_wrap=True)


def _headline(error: TrainmasterError) -> tuple[str, Sequence[FieldMistake]]:
    """The server's message, and the mistakes to list below it: those that it does not contain already.

    For a spec, a summary replaces the message, which contains the first mistake.
    """
    count = len(error.mistakes)
    if isinstance(error, InvalidSpec) and error.status is not None and count:
        return f"The {error.of} spec has {'a mistake' if count == 1 else f'{count} mistakes'}:", error.mistakes
    if error.status is None:  # an error of the client
        return error.sentence, error.further_mistakes
    further = [mistake._replace(path=_in_options(f"{mistake.path}: ")[:-2]) for mistake in error.further_mistakes]
    return in_commands(_in_options(error.sentence)), further


def _in_options(sentence: str) -> str:
    """The server's message with the option instead of the field at its beginning, and local times."""
    from datetime import datetime

    def option(match: re.Match[str]) -> str:
        is_setting = match[0].lower().startswith("settings.")
        return match[1] if is_setting else _OPTIONS.get(match[1].lower(), match[0])

    def local(match: re.Match[str]) -> str:
        return local_time(datetime.fromisoformat(match[0])) or match[0]

    return _UTC.sub(local, _FIELD.sub(option, sentence))


def in_commands(sentence: str) -> str:
    """The server's message with commands instead of API requests."""

    def command(match: re.Match[str]) -> str:
        known = _COMMANDS.get(match[1])
        return f"`trainmaster {known}`" if known else match[0]

    return _REQUEST.sub(command, _STUDY_REQUEST.sub(r"`trainmaster study show \1`", sentence))


def tell_bug(error: BaseException, *, as_json: bool) -> None:
    """Print an unexpected error without its traceback."""
    problem = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    tell_error(
        TrainmasterError(
            f"This is a bug in trainmaster's command line ({problem}); TRAINMASTER_DEBUG=1 shows the traceback."
        ),
        as_json=as_json,
    )


def is_debugging() -> bool:
    return os.environ.get("TRAINMASTER_DEBUG", "") not in ("", "0")


# --- wrong usage: Typer's own messages are boxes, and its checks speak of "input" -----------------------------------

# Beginnings of Typer's messages -> their replacements.
_CHECKS: Final = (
    (re.compile(r"^Input should be greater than or equal to (\S+)$"), r"must be at least \1"),
    (re.compile(r"^Input should be less than or equal to (\S+)$"), r"must be at most \1"),
    (re.compile(r"^Input should be a valid integer.*$"), "must be a whole number"),
    (re.compile(r"^Input should be a valid number.*$"), "must be a number"),
    (re.compile(r"^Value error, (?:'.*' is not one of )(.*?)\.?$"), r"must be one of \1"),
    (re.compile(r"^Input should be "), "must be "),
)
# Typer does not export the classes of its own errors; these are their names.
_MISSING: Final = "MissingParameter"
_UNKNOWN: Final = re.compile(r"^No such command '([\w-]+)'")
# Command -> words for the same in shells, Docker, kubectl, Slurm and other platforms.
_SYNONYMS: Final = {
    "alias": "tag",
    "cancel": "abort kill qdel scancel stop terminate",
    "clone": "copy rerun restart resubmit retry",
    "cp": "copy download fetch get pull scp",
    "create": "add new run start submit",
    "delete": "del prune remove rm",
    "down": "halt quit shutdown stop",
    "events": "history",
    "explain": "reason why",
    "files": "output outputs artifacts",
    "image": "docker images",
    "list": "get jobs ls ps qstat status",
    "login": "auth configure",
    "logs": "attach cat log output tail",
    "metrics": "metric plot",
    "nodes": "cluster gpus machines node sinfo status",
    "queue": "squeue",
    "register": "add create push upload",
    "remove": "delete del rm",
    "resources": "stats top usage",
    "resume": "continue unpause unsuspend",
    "pause": "hold suspend",
    "run": "exec job launch srun start train",
    "show": "describe get info inspect stat status view",
    "stop": "abort cancel end kill terminate",
    "study": "experiment hpo hyperparameter sweep tune tuning",
    "submit": "apply create qsub sbatch",
    "undeploy": "remove rm stop",
    "up": "init serve server start",
    "version": "about",
    "watch": "follow logs wait",
    "whatif": "dry-run estimate plan",
}
_HELP: Final = "NoArgsIsHelpError"


def is_help_request(error: Exception) -> bool:
    """Whether it is the help of a command that was called without arguments."""
    return type(error).__name__ == _HELP


def usage_sentence(error: Any) -> str:
    """The error and the command's help, in one line."""
    ctx = getattr(error, "ctx", None)
    more = f" See `{ctx.command_path} --help`." if ctx is not None else ""
    problem = _usage_problem(error).rstrip(".")
    return f"{problem}{'' if problem.endswith('?') else '.'}{more}"


def _usage_problem(error: Any) -> str:
    name = _parameter_name(error)
    if name is None:
        return _with_synonyms(error, str(error.format_message()))
    if type(error).__name__ == _MISSING:
        return f"{name} is missing"
    value = _given_value(error)
    for pattern, words in _CHECKS:
        if pattern.match(error.message):
            return f"{name} {pattern.sub(words, error.message)}" + (f", not {value}" if value is not None else "")
    return f"{name}{' ' if error.message.startswith('must ') else ': '}{error.message}"


def _with_synonyms(error: Any, message: str) -> str:
    """For an unknown command that is another system's word: the commands of the group that do the same."""
    unknown = _UNKNOWN.match(message)
    commands = getattr(error.ctx.command, "commands", {}) if getattr(error, "ctx", None) else {}
    if unknown is None:
        return message
    same = [
        f"`{error.ctx.command_path} {name}` ({_purpose(command)})"
        for name, command in commands.items()
        if unknown[1].lower() in _SYNONYMS.get(name, "").split()
    ]
    return (
        f"{unknown[0]}. Did you mean {', '.join(same[:-1]) + ' or ' * bool(same[1:])}{same[-1]}?" if same else message
    )


def _purpose(command: Any) -> str:
    """The beginning of the command's help: ``cancel jobs``."""
    first = re.split(r"[.,:;]", command.help or "", maxsplit=1)[0]
    return first[:1].lower() + first[1:]


def _parameter_name(error: Any) -> str | None:
    """The invalid option or argument as written."""
    hint = getattr(error, "param_hint", None)
    if isinstance(hint, str):
        return hint
    param = getattr(error, "param", None)
    if param is None:
        return None
    # An option by its long name; an argument by its name in the help.
    longest: str = max(param.opts, key=len)
    return longest if longest.startswith("-") else str(param.metavar or longest.upper())


def _given_value(error: Any) -> str | None:
    """The given value, which only the check's error has."""
    cause = error.__cause__
    errors = cause.errors() if hasattr(cause, "errors") else []
    return str(errors[0]["input"]) if errors and isinstance(errors[0].get("input"), str) else None
