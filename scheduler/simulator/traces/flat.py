"""Traces that are one CSV with a line per job: Muri, Tiresias, Philly, and others by naming their columns.

- Muri (Zhao et al., SIGCOMM 2022; also its derivatives of Philly): ``job_id, num_gpu, submit_time, duration`` in
  milliseconds.
- Tiresias (Gu et al., NSDI 2019): the same columns in seconds.
- Philly (Jeon et al., ATC 2019) in Pollux's form: ``timestamp, duration, num_gpus, cluster``; a time, seconds, and
  the
  virtual cluster, which becomes the project.

A job with at most as many GPUs as the largest node is one replica on one node; a larger one is replicas on whole
nodes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from scheduler.simulator.errors import ScenarioError
from scheduler.simulator.reading.arrival import Arrival, from_zero, whole_nodes
from scheduler.simulator.traces.rows import number, read_rows, whole


@dataclass(frozen=True, slots=True)
class Format:
    """Column names. ``project``: if empty, all jobs belong to one. ``unit_s``: unit of numeric times."""

    at: str
    duration: str
    gpus: str
    name: str = ""
    project: str = ""
    title: str = ""
    unit_s: float = 1.0
    is_dated: bool = False


MURI: Final = Format("submit_time", "duration", "num_gpu", name="job_id", title="model_name", unit_s=0.001)
TIRESIAS: Final = Format("submit_time", "duration", "num_gpu", name="job_id", title="model_name")
PHILLY: Final = Format("timestamp", "duration", "num_gpus", project="cluster", is_dated=True)


def read(path: Path, form: Format, *, node_gpus: int) -> list[Arrival]:
    """The jobs by arrival, the earliest at 0.

    Args:
        node_gpus: GPUs of the largest node.

    Raises:
        ScenarioError: with file, line and column.
    """
    needed = [column for column in (form.at, form.duration, form.gpus, form.name, form.project) if column]
    arrivals = [
        _arrival(row, form, f"{path.name}, line {line}", line, node_gpus) for line, row in read_rows(path, needed)
    ]
    return from_zero(sorted(arrivals, key=lambda arrival: arrival.at_s))


def _arrival(row: Mapping[str, str], form: Format, where: str, line: int, node_gpus: int) -> Arrival:
    gang = whole_nodes(whole(row, form.gpus, where), node_gpus)
    at_s = _moment_s(row, form.at, where) if form.is_dated else number(row, form.at, where) * form.unit_s
    return Arrival(
        name=f"job-{row[form.name]}" if form.name else f"job-{line - 2:06}",
        at_s=at_s,
        duration_s=number(row, form.duration, where) * form.unit_s,
        gang=gang,
        shape=gang.shape(),
        project=row[form.project] if form.project else "default",
        title=row.get(form.title, "") or "",
    )


def _moment_s(row: Mapping[str, str], column: str, where: str) -> float:
    try:
        moment = datetime.fromisoformat(row[column])
    except ValueError:
        raise ScenarioError(f"{where}: {column}: {row[column]!r} is not a time such as 2017-10-09 07:01:55") from None
    seconds = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    return seconds if math.isfinite(seconds) else 0.0
