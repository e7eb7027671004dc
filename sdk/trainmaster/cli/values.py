"""Reading ``KEY=VALUE`` arguments and points in time."""

from __future__ import annotations

import os
from collections.abc import Iterable
from datetime import datetime

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


def moment(text: str | None, now: datetime, option: str) -> datetime | None:
    """A point in time from an ISO date (local without a zone) or a span before now."""
    if text is None:
        return None
    from datetime import timedelta

    from trainmaster.spec.quantity import parse_duration_s

    try:
        return datetime.fromisoformat(text).astimezone()
    except ValueError:
        pass
    try:
        return now - timedelta(seconds=parse_duration_s(text))
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is neither a date nor a span like 2h or 3d", param_hint=option) from error
