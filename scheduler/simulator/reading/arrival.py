"""Simulated jobs, as they arrive, and gangs of jobs that are given as a job spec or by their number of GPUs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from trainmaster.spec import SpecError, parse_spec

from core.domain.sharing.resources import Gang, GangRole, ResourceRequest, gang_of
from scheduler.simulator.errors import ScenarioError
from scheduler.simulator.work_rate import SpeedProfile


@dataclass(frozen=True, slots=True)
class Arrival:
    """A job that arrives at ``at_s`` seconds and runs ``duration_s`` once started (infinite: never ends): with its
    maximum of replicas, without interruption and without restart costs.

    ``title``: the name that its user gave it, by which history knows it; ``name`` is unique. ``is_resumable``: it has
    checkpoints; otherwise a preempted job starts over.
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
    is_resumable: bool = True
    title: str = ""
    code: str = ""  # what it runs, if known; equal for jobs that run the same code
    profile: SpeedProfile | None = None  # of an elastic job; ``None``: its speed is proportional to its replicas


def gang_from(job: Mapping[str, Any], where: str) -> tuple[Gang, Any]:
    """The gang of a job written as a spec; the name and command that a simulation does not need are filled in."""
    try:
        spec = parse_spec({"name": "simulated", "command": "true", **job})
    except SpecError as error:
        raise ScenarioError(f"{where}: {'; '.join(str(mistake) for mistake in error.mistakes)}") from error
    return gang_of(spec), spec


def from_zero(arrivals: Iterable[Arrival]) -> list[Arrival]:
    """``arrivals`` in the same order, the earliest at 0."""
    arrivals = list(arrivals)
    first_s = min((arrival.at_s for arrival in arrivals), default=0.0)
    return [replace(arrival, at_s=arrival.at_s - first_s) for arrival in arrivals]


def whole_nodes(gpus: int, most: int) -> Gang:
    """``gpus`` on one node, or on as many whole nodes of ``most`` GPUs as necessary."""
    replicas = max(1, -(-gpus // most)) if most else 1
    return Gang((GangRole("worker", replicas, ResourceRequest(1000, 2**30, -(-gpus // replicas))),))


def single_gpus(gpus: int) -> Gang:
    """Workers of one GPU each, anywhere, on few nodes if possible."""
    return Gang((GangRole("worker", gpus, ResourceRequest(1000, 2**30, 1)),))
