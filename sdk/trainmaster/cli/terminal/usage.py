"""Wrong use of the command line, in our own sentences: Typer's are boxes, and its checks speak of "input"."""

from __future__ import annotations

import re
from typing import Any, Final

# How the checks of values begin, and what we say instead; the rest is theirs.
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
    """Whether it is the help of a command that was called without anything."""
    return type(error).__name__ == _HELP


def sentence_of(error: Any) -> str:
    """What is wrong, and which help tells more, in one line."""
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
    """The option or argument at fault, as it is written."""
    hint = getattr(error, "param_hint", None)
    if isinstance(hint, str):
        return hint
    param = getattr(error, "param", None)
    if param is None:
        return None
    # An option by its long name; an argument by what stands for it in the help.
    longest: str = max(param.opts, key=len)
    return longest if longest.startswith("-") else str(param.metavar or longest.upper())


def _value_of(error: Any) -> str | None:
    """What was given; only the check's own error knows it."""
    cause = error.__cause__
    told = cause.errors() if hasattr(cause, "errors") else []
    return str(told[0]["input"]) if told and isinstance(told[0].get("input"), str) else None
