"""A simulated job, as it arrives."""

from __future__ import annotations

from dataclasses import dataclass

from core.domain.sharing.resources import Gang


@dataclass(frozen=True, slots=True)
class Arrival:
    """A job that arrives at ``at_s`` seconds and runs ``duration_s`` once started (infinite: never ends): with its
    maximum of replicas, without interruption and without restart costs.

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
    code: str = ""  # what it runs, if known; equal for jobs that run the same code
