"""Messages for usage errors; Typer's own are boxes, and its checks speak of "input"."""

from __future__ import annotations

import re
from typing import Any, Final

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
_HELP: Final = "NoArgsIsHelpError"


def is_help(error: Exception) -> bool:
    """Whether it is the help of a command that was called without arguments."""
    return type(error).__name__ == _HELP


def sentence_of(error: Any) -> str:
    """The error and the command's help, in one line."""
    ctx = getattr(error, "ctx", None)
    more = f" See `{ctx.command_path} --help`." if ctx is not None else ""
    what = _what(error).rstrip(".")
    return f"{what}{'' if what.endswith('?') else '.'}{more}"


def _what(error: Any) -> str:
    name = _name_of(error)
    if name is None:
        return str(error.format_message())
    if type(error).__name__ == _MISSING:
        return f"{name} is missing"
    value = _value_of(error)
    for pattern, words in _CHECKS:
        if pattern.match(error.message):
            return f"{name} {pattern.sub(words, error.message)}" + (f", not {value}" if value is not None else "")
    return f"{name}{' ' if error.message.startswith('must ') else ': '}{error.message}"


def _name_of(error: Any) -> str | None:
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


def _value_of(error: Any) -> str | None:
    """The given value, which only the check's error has."""
    cause = error.__cause__
    errors = cause.errors() if hasattr(cause, "errors") else []
    return str(errors[0]["input"]) if errors and isinstance(errors[0].get("input"), str) else None
