"""Speed curves of elastic jobs for the planner: measured by the job itself, else by the user's last job of its name."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Final

from sqlalchemy.orm import Session

from core.db.repositories.job_speeds import MeasuredJob, measured_jobs
from core.domain.ids import JobId
from core.domain.jobs.name_patterns import pattern_of
from core.domain.jobs.speed_curve import UNMEASURED, SpeedCurve, SpeedPoint

_READ_AGAIN: Final = timedelta(seconds=15)
_LONG_AGO: Final = datetime.min.replace(tzinfo=UTC)
_Owner = tuple[str, str, str]  # project, user, name without its run-specific parts


@dataclass(slots=True)
class Speeds:
    """What one process has read. For one thread."""

    _jobs: Mapping[str, MeasuredJob] = field(default_factory=dict)
    _by_name: Mapping[_Owner, list[MeasuredJob]] = field(default_factory=dict)  # the newest last
    _curves: dict[tuple[str, _Owner], SpeedCurve] = field(default_factory=dict)
    _read_at: datetime = _LONG_AGO

    def refresh(self, session: Session, now: datetime) -> None:
        """Read the measurements, unless they were read lately."""
        if now - self._read_at < _READ_AGAIN:
            return
        self._read_at = now
        jobs = measured_jobs(session)
        self._jobs = {job.job_id: job for job in jobs}
        by_name: defaultdict[_Owner, list[MeasuredJob]] = defaultdict(list)
        for job in jobs:
            by_name[job.project, job.user, pattern_of(job.name)].append(job)
        self._by_name = by_name
        self._curves = {}

    def of(self, job_id: JobId, project: str, user: str, name: str) -> SpeedCurve:
        """The job's curve. An earlier job stands in for sizes at which this one did not run."""
        if not self._jobs:
            return UNMEASURED
        owner = (project, user, pattern_of(name))
        curve = self._curves.get((job_id, owner))
        if curve is None:
            own = self._jobs.get(job_id)
            last = next((job for job in reversed(self._by_name.get(owner, ())) if job is not own), None)
            curve = SpeedCurve.measured(own.points if own else (), last.points if last else ())
            curve = self._curves[job_id, owner] = SpeedCurve(tuple(map(_rounded, curve.points)))
        return curve


def _rounded(point: SpeedPoint) -> SpeedPoint:
    """Rounded, so that the planner's input is not another one with each report."""
    return replace(point, work_per_s=float(f"{point.work_per_s:.3g}"), measured_s=10.0 * round(point.measured_s / 10))
