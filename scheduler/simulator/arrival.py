"""A job of a simulation, as it comes."""

from __future__ import annotations

from dataclasses import dataclass

from core.domain.resources import Gang


@dataclass(frozen=True, slots=True)
class Arrival:
    """A job that comes at ``at_s`` seconds and, once started, runs ``duration_s`` (never ends if infinite)."""

    name: str
    at_s: float
    duration_s: float
    gang: Gang
    shape: str
    priority: int = 50
    project: str = "default"
    user: str = "user"
    max_run_time_s: float | None = None
