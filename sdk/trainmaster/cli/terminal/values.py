"""Parsers of ``KEY=VALUE`` arguments and points in time."""

from __future__ import annotations

import os
from collections.abc import Iterable
from datetime import datetime

import typer


def pairs(
    assignments: Iterable[str], option: str, *, from_environment: bool = False, is_once: bool = False
) -> dict[str, str]:
    """The mapping of ``KEY=VALUE`` arguments.

    Args:
        from_environment: a bare ``KEY`` takes its value from the caller's environment.
        is_once: two different values of a key are an error; otherwise the last value counts.
    """
    found: dict[str, str] = {}
    for assignment in assignments:
        key, separator, value = assignment.partition("=")
        if not separator and from_environment and key in os.environ:
            value = os.environ[key]
        elif not separator or not key:
            more = ", and the variable is not set here" if from_environment and key else ""
            raise typer.BadParameter(f"{assignment!r} is not KEY=VALUE{more}", param_hint=option)
        if is_once and found.get(key, value) != value:
            raise typer.BadParameter(f"{key} is given twice, as {found[key]} and as {value}", param_hint=option)
        found[key] = value
    return found


def moment(text: str | None, now: datetime, option: str) -> datetime | None:
    """A point in time from an ISO date (local without a zone), a time of day, or a duration before now (``10m``,
    ``-10m``).

    A time of day that is in the future today means yesterday's.
    """
    if text is None:
        return None
    from datetime import time, timedelta

    from trainmaster.spec.quantity import parse_duration_s

    try:
        return datetime.fromisoformat(text).astimezone()
    except ValueError:
        pass
    try:
        clock = time.fromisoformat(text) if ":" in text else None
    except ValueError:
        clock = None
    if clock is not None:
        at = datetime.combine(now.astimezone(clock.tzinfo).date(), clock).astimezone()
        return at if at <= now else at - timedelta(days=1)
    try:
        return now - timedelta(seconds=parse_duration_s(text.removeprefix("-")))
    except ValueError as error:
        raise typer.BadParameter(
            f"{text!r} is not a time: write 14:20 for today, 2026-11-21T14:20, or 2h for two hours ago",
            param_hint=option,
        ) from error
