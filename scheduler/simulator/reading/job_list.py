"""Job lists in CSV, from a platform's own history or a published trace.

``{file: jobs.csv, columns: {at: submit_time, duration: duration, gpus: num_gpu}, unit: ms}``. Known columns: ``name``,
``at``, ``duration``, ``gpus`` (of the whole job), ``replicas``, ``gpu_type``, ``cpu`` and ``memory`` (of a replica),
``priority``, ``max_run_time``, ``project``, ``user``. A job with more GPUs than the largest node becomes replicas
of whole nodes.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from trainmaster.spec.quantity import parse_bytes, parse_cpu_milli

from core.domain.sharing.resources import Gang, GangRole, ResourceRequest
from scheduler.planning import NodeSnapshot
from scheduler.simulator.errors import ScenarioError
from scheduler.simulator.reading.arrival import Arrival, from_zero

_UNITS: Final = {"s": 1.0, "ms": 0.001}
_KNOWN: Final = (
    "name", "at", "duration", "gpus", "replicas", "gpu_type", "cpu", "memory", "priority", "max_run_time", "project",
    "user",
)  # fmt: skip


def read_trace(given: Any, folder: Path, nodes: Sequence[NodeSnapshot]) -> list[Arrival]:
    """Arrivals in file order; the earliest at 0. Raises :class:`ScenarioError`."""
    if not isinstance(given, Mapping) or "file" not in given:
        raise ScenarioError("trace: is a mapping with `file`, and with `columns` where the names differ")
    path = folder / str(given["file"])
    columns = {name: name for name in _KNOWN} | dict(given.get("columns", {}))
    unit = _UNITS.get(str(given.get("unit", "s")))
    if unit is None:
        raise ScenarioError("trace.unit: is s or ms")
    most = max((count for node in nodes for count in node.allocatable.gpus.values()), default=0)
    limit = int(given.get("limit", 0))
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    except OSError as error:
        raise ScenarioError(f"trace.file: {path} cannot be read: {error.strerror}") from error
    arrivals: list[Arrival] = []
    for number, row in enumerate(rows[: limit or None]):
        fields = {name: row.get(columns[name]) or "" for name in _KNOWN}
        try:
            arrivals.append(_arrival(fields, number, unit, most))
        except ValueError as error:
            raise ScenarioError(f"{path.name}, line {number + 2}: {error}") from error
    return from_zero(arrivals)


def _arrival(fields: Mapping[str, str], number: int, unit: float, most: int) -> Arrival:
    if not fields["duration"]:
        raise ValueError("the column for `duration` is missing or empty; name it under trace.columns")
    gpus = int(float(fields["gpus"] or 0))
    replicas = int(fields["replicas"] or 1)
    if not fields["replicas"] and most and gpus > most:
        replicas = -(-gpus // most)
    each = -(-gpus // replicas)
    request = ResourceRequest(
        cpu_milli=parse_cpu_milli(fields["cpu"]) if fields["cpu"] else 1000,
        memory_bytes=parse_bytes(fields["memory"]) if fields["memory"] else 2**30,
        gpu_count=each,
        gpu_models=tuple(model for model in fields["gpu_type"].split("|") if model) if each else (),
    )
    gang = Gang((GangRole("worker", replicas, request),))
    return Arrival(
        name=fields["name"] or f"job-{number:06}",
        at_s=float(fields["at"] or 0) * unit,
        duration_s=float(fields["duration"]) * unit,
        gang=gang,
        shape=gang.shape(),
        priority=int(fields["priority"] or 50),
        project=fields["project"] or "default",
        user=fields["user"] or "user",
        max_run_time_s=float(fields["max_run_time"]) * unit if fields["max_run_time"] else None,
    )
