"""Gangs of jobs that are given as a job spec or by their number of GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainmaster.spec import SpecError, parse_spec

from core.domain.sharing.resources import Gang, GangRole, ResourceRequest, gang_of
from scheduler.simulator.errors import ScenarioError


def gang_from(job: Mapping[str, Any], where: str) -> tuple[Gang, Any]:
    """The gang of a job written as a spec; the name and command that a simulation does not need are filled in."""
    try:
        spec = parse_spec({"name": "simulated", "command": "true", **job})
    except SpecError as error:
        raise ScenarioError(f"{where}: {'; '.join(str(mistake) for mistake in error.mistakes)}") from error
    return gang_of(spec), spec


def whole_nodes(gpus: int, most: int, *, cpu_milli: int = 1000, memory_bytes: int = 2**30) -> Gang:
    """``gpus`` on one node, or on as many whole nodes of ``most`` GPUs as necessary."""
    replicas = max(1, -(-gpus // most)) if most else 1
    return Gang((GangRole("worker", replicas, ResourceRequest(cpu_milli, memory_bytes, -(-gpus // replicas))),))


def single_gpus(gpus: int) -> Gang:
    """Workers of one GPU each, anywhere, on few nodes if possible."""
    return Gang((GangRole("worker", gpus, ResourceRequest(1000, 2**30, 1)),))
