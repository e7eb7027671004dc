"""Reading ``KEY=VALUE`` arguments."""

from __future__ import annotations

import os
from collections.abc import Iterable

import typer


def pairs(assignments: Iterable[str], option: str, *, from_environment: bool = False) -> dict[str, str]:
    """The mapping of ``KEY=VALUE`` arguments.

    Args:
        from_environment: a bare ``KEY`` takes its value from the caller's environment.
    """
    found: dict[str, str] = {}
    for assignment in assignments:
        key, separator, value = assignment.partition("=")
        if not separator and from_environment and key in os.environ:
            value = os.environ[key]
        elif not separator or not key:
            more = ", and it is not set here" if from_environment and key else ""
            raise typer.BadParameter(f"{assignment!r} is not KEY=VALUE{more}", param_hint=option)
        found[key] = value
    return found
