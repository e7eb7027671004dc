"""Retention policies of projects: for how long data of ended jobs are kept, by kind. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

from trainmaster.spec.errors import FieldError
from trainmaster.spec.quantity import format_duration, parse_duration_s

from core.domain.errors import InvalidRequest, combined_error

SHORTEST_S: Final = 3600.0


class DataKind(StrEnum):
    """``jobs``: everything of the job, its own output and its row included. ``outputs``: its own output but the logs.
    ``code``: its archive, once no other job or study uses it. In the order in which they are deleted.
    """

    OUTPUTS = "outputs"
    LOGS = "logs"
    METRICS = "metrics"
    EVENTS = "events"
    CODE = "code"
    JOBS = "jobs"


RetentionPolicy = dict[DataKind, float]  # seconds after the job's end; without an entry: for ever


def parse_retention(stored: Mapping[str, Any] | None) -> RetentionPolicy:
    """The stored policy; kinds of another version have no effect."""
    known = {kind.value: kind for kind in DataKind}
    return {known[name]: float(age) for name, age in (stored or {}).items() if name in known}


def changed_retention(policy: RetentionPolicy, changes: Mapping[str, Any]) -> RetentionPolicy:
    """``policy`` with the durations of ``changes``, such as ``30d``; ``None``: for ever.

    Raises:
        InvalidRequest: an unknown kind, no duration, or one below an hour; all mistakes at once.
    """
    after, wrong = dict(policy), list[InvalidRequest]()
    for name, value in changes.items():
        field = f"keep.{name}"
        try:
            kind = DataKind(name)
        except ValueError:
            known = ", ".join(DataKind)
            wrong.append(InvalidRequest(f"{field}: there are only {known}.", field=field))
            continue
        if value is None:
            after.pop(kind, None)
            continue
        try:
            age_s = parse_duration_s(value)
        except FieldError as mistake:
            wrong.append(InvalidRequest(f"{field}: {mistake}.", field=field))
            continue
        if age_s < SHORTEST_S:
            wrong.append(InvalidRequest(f"{field}: keep them for an hour (1h) or longer.", field=field))
            continue
        after[kind] = age_s
    if wrong:
        raise combined_error(wrong, "parts of the policy")
    return after


def age_text(age_s: float) -> str:
    """Such as ``30d``."""
    return str(format_duration(age_s))
