"""A job of a simulation, as it comes."""

from __future__ import annotations

from dataclasses import dataclass

from core.domain.sharing.resources import Gang


@dataclass(frozen=True, slots=True)
class Arrival:
    """A job that comes at ``at_s`` seconds and runs ``duration_s`` once started (never ends if infinite): with all the
    replicas that it may have, without a break and without counting what restarts cost.

    ``title``: the name that its user gave it, by which history knows it; ``name`` is unique.
    """

    name: str
    at_s: float
    duration_s: float
    gang: Gang
    shape: str
    priority: int = 50
    project: str = "default"
    user: str = "user"
    max_run_time_s: float | None = None
    is_preemptible: bool = True
    title: str = ""
    code: str = ""  # what it runs, if history tells; equal for jobs that run the same
