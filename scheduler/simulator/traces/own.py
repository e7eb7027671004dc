"""The platform's own history: JSON lines, one finished job per line.

``{"id": "…", "name": "sweep-3", "project": "vision", "user": "ann", "priority": 50, "queued_at":
"2026-05-01T12:00:00Z", "ran_s": 5400, "code": "sha256…", "spec": {"workers": 2, "gpus": 4}}``

``ran_s``: time of holding resources, over all attempts. ``spec``: the request as in a job spec (name and command may
be omitted); or ``gang``, as written by :meth:`core.domain.sharing.resources.Gang.to_json`. Optional: ``id``,
``user``, ``project``, ``priority``, ``code``, ``max_run_time_s``, ``preemptible``, ``resumable`` (it had checkpoints).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from core.domain.sharing.resources import Gang
from scheduler.simulator.errors import ScenarioError, check_keys
from scheduler.simulator.reading.arrival import Arrival, gang_from
from scheduler.simulator.traces.rows import read_text

_KEYS: Final = frozenset(
    {
        "id", "name", "project", "user", "priority", "queued_at", "ran_s", "code", "spec", "gang", "max_run_time_s",
        "preemptible", "resumable",
    }
)  # fmt: skip
_NEEDED: Final = ("name", "queued_at", "ran_s")


@dataclass(frozen=True, slots=True)
class FinishedJob:
    """A finished job for a simulation. ``ran_s``: time of holding resources, over all attempts."""

    id: str
    name: str
    queued_at: datetime
    ran_s: float
    gang: Gang
    project: str = "default"
    user: str = "user"
    priority: int = 50
    code: str = ""
    max_run_time_s: float | None = None
    is_preemptible: bool = True
    is_resumable: bool = True


def arrivals(jobs: Iterable[FinishedJob]) -> list[Arrival]:
    """The jobs as simulated arrivals, in order of time; the earliest at 0."""
    ordered = sorted(jobs, key=lambda job: (job.queued_at, job.id))
    if not ordered:
        return []
    first = ordered[0].queued_at
    return [
        Arrival(
            name=job.id,
            at_s=(job.queued_at - first).total_seconds(),
            duration_s=job.ran_s,
            gang=job.gang,
            shape=job.gang.shape(),
            priority=job.priority,
            project=job.project,
            user=job.user,
            max_run_time_s=job.max_run_time_s,
            is_preemptible=job.is_preemptible,
            is_resumable=job.is_resumable,
            title=job.name,
            code=job.code,
        )
        for job in ordered
    ]


def read(path: Path) -> list[Arrival]:
    """Raises :class:`ScenarioError` with file, line and field."""
    return arrivals(parse(read_text(path).splitlines(), path.name))


def parse(lines: Sequence[str], file: str) -> list[FinishedJob]:
    """``file``: its name, for errors."""
    return [_job(line, number, f"{file}, line {number + 1}") for number, line in enumerate(lines) if line.strip()]


def _job(line: str, number: int, where: str) -> FinishedJob:
    try:
        fields = json.loads(line)
    except ValueError as error:
        raise ScenarioError(f"{where}: is not JSON: {error}") from error
    if not isinstance(fields, Mapping):
        raise ScenarioError(f"{where}: is a JSON object, one job")
    check_keys(fields, sorted(_KEYS), where)
    for key in _NEEDED:
        if key not in fields:
            raise ScenarioError(f"{where}: {key!r} is missing")
    limit = fields.get("max_run_time_s")
    return FinishedJob(
        id=str(fields.get("id", f"job-{number:06}")),
        name=str(fields["name"]),
        queued_at=_moment(fields["queued_at"], f"{where}: queued_at"),
        ran_s=_seconds(fields["ran_s"], f"{where}: ran_s"),
        gang=_gang(fields, where),
        project=str(fields.get("project", "default")),
        user=str(fields.get("user", "user")),
        priority=int(_seconds(fields.get("priority", 50), f"{where}: priority")),
        code=str(fields.get("code") or ""),
        max_run_time_s=None if limit is None else _seconds(limit, f"{where}: max_run_time_s"),
        is_preemptible=bool(fields.get("preemptible", True)),
        is_resumable=bool(fields.get("resumable", True)),
    )


def _gang(fields: Mapping[str, Any], where: str) -> Gang:
    if "gang" in fields:
        try:
            return Gang.from_json(fields["gang"])
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise ScenarioError(f"{where}: gang: is not what Gang.to_json writes") from error
    spec = fields.get("spec", {})
    if not isinstance(spec, Mapping):
        raise ScenarioError(f"{where}: spec: is a mapping such as {{workers: 2, gpus: 4}}")
    return gang_from(spec, f"{where}: spec")[0]


def _moment(given: Any, where: str) -> datetime:
    try:
        moment = datetime.fromisoformat(str(given))
    except ValueError as error:
        raise ScenarioError(f"{where}: {given!r} is not a time such as 2026-05-01T12:00:00Z") from error
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _seconds(given: Any, where: str) -> float:
    if isinstance(given, bool) or not isinstance(given, (int, float)) or given < 0:
        raise ScenarioError(f"{where}: {given!r} is not a number of at least 0")
    return float(given)
