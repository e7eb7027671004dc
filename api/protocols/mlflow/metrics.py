"""A run's metrics, stored with all others of its job: a replica's run has the replica's series.

The attempt's run shows the metrics of all replicas; of a name that several replicas have, the main replica's. A run
that a script created has series of its own there, as if it were another role of the job.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, Final

from sqlalchemy.orm import Session

from api.app.unit_of_work import UnitOfWork
from api.protocols.kit.json_values import json_double
from api.protocols.mlflow.runs import RunFacts
from api.protocols.mlflow.schemas import LoggedMetric
from core.db.repositories.metrics.reads import SeriesFilter, StoredSeries, find_series, read_points
from core.db.repositories.metrics.writes import StreamKey, add_metrics
from core.domain.errors import InvalidRequest
from core.domain.metrics import SYSTEM, Points

_SERIES_LIMIT: Final = 5_000  # of one run
_OWNERS: Final = 200  # looked up at once
HISTORY_LIMIT: Final = 25_000  # points of one answer


def log_metrics(work: UnitOfWork, run: RunFacts, metrics: Iterable[LoggedMetric]) -> None:
    """Add points. Raises ``InvalidRequest`` if a series cannot be stored; then none is."""
    columns: defaultdict[str, Points] = defaultdict(Points)
    for metric in metrics:
        points = columns[metric.key]
        points.steps.append(metric.step)
        points.times.append(metric.timestamp)
        points.values.append(metric.value)
    if not columns:
        return
    added = add_metrics(work.session, _key(run), columns, now=work.now, is_claim=True)
    if added.faults:
        raise InvalidRequest(f"{added.faults[0]}.", field="metrics")


def last_values(session: Session, runs: Sequence[RunFacts], names: Sequence[str] = ()) -> dict[str, dict[str, Any]]:
    """Run id -> name -> the metric's last value in MLflow's JSON. ``names``: only these; else all but the
    platform's.
    """
    values: dict[str, dict[str, Any]] = {run.id: {} for run in runs}
    runs_of_owner: defaultdict[str, list[RunFacts]] = defaultdict(list)
    for run in runs:
        runs_of_owner[_key(run).owner_id].append(run)
    owners = list(runs_of_owner)
    for start in range(0, len(owners), _OWNERS):
        part = owners[start : start + _OWNERS]
        # System metrics only by name: otherwise a run would show more than its script logged.
        only = SeriesFilter(names=names, kind="scalar", without_prefix="" if names else SYSTEM)
        for series in find_series(session, part, only, limit=_SERIES_LIMIT * len(part)):
            for run in runs_of_owner[series.owner_id]:
                own = values[run.id]
                if _shows(run, series) and (series.name not in own or _is_own(run, series)):
                    own[series.name] = _last(series)
    return values


def history(
    session: Session, run: RunFacts, name: str, *, start: int, limit: int
) -> tuple[list[dict[str, Any]], int | None]:
    """Points of a metric in order of arrival from index ``start``, and the index of the rest."""
    series = _series(session, run, name)
    if series is None:
        return [], None
    points = read_points(session, series, start, limit)
    rows = [
        {"key": name, "value": json_double(value), "timestamp": time, "step": step, "run_id": run.id}
        for step, time, value in zip(points.steps, points.times, points.values, strict=True)
    ]
    end = start + len(rows)
    return rows, end if rows and end < series.count else None


def _series(session: Session, run: RunFacts, name: str) -> StoredSeries | None:
    key = _key(run)
    only = SeriesFilter(attempt=key.attempt, names=[name], kind="scalar")
    candidates = [s for s in find_series(session, [key.owner_id], only, limit=_SERIES_LIMIT) if _shows(run, s)]
    return next((series for series in candidates if _is_own(run, series)), candidates[0] if candidates else None)


def _key(run: RunFacts) -> StreamKey:
    if run.is_made_by_script:
        return StreamKey(run.job_id, run.attempt_number, run.id, 0)
    role, _, index = run.replica.rpartition("-")
    return StreamKey(run.job_id, run.attempt_number, role, int(index))


def _shows(run: RunFacts, series: StoredSeries) -> bool:
    if series.attempt != run.attempt_number:
        return False
    return series.role in run.roles if run.is_main else _is_own(run, series)


def _is_own(run: RunFacts, series: StoredSeries) -> bool:
    key = _key(run)
    return (series.role, series.index) == (key.role, key.index)


def _last(series: StoredSeries) -> dict[str, Any]:
    value = math.nan if series.last_value is None else series.last_value
    return {
        "key": series.name,
        "value": json_double(value),
        "timestamp": series.last_time or 0,
        "step": series.last_step or 0,
    }
