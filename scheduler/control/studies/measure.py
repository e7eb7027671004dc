"""What trials reported of the study's metrics: curves while they run, the value that counts when they are over."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from sqlalchemy.orm import Session
from trainmaster.spec.model import role_order
from trainmaster.studies import Goal, Measurement, Metric, StudySpec

from core.db.repositories.metric_reads import Filter, Series, find_names, find_series, read_points

# Of one series; a trial that reports more is judged by the newest.
_MOST_POINTS: Final = 20_000
_MOST_SERIES: Final = 20_000
_NAMES_SHOWN: Final = 8
ROADS: Final = "the training library, MLflow, TensorBoard's event files, hypertune's file, and lines of the log like `loss=0.1 step=3`"


@dataclass(frozen=True, slots=True)
class Measured:
    """(step, value) of each metric in the order in which they came; values may be NaN."""

    points: Mapping[str, Sequence[tuple[int, float]]] = field(default_factory=dict)

    def final(self, spec: StudySpec) -> dict[str, float | None]:
        """The value of each metric that counts; ``None``: none that is a number.

        Of several metrics always the last ones: the best of each would come from different moments.
        """
        is_best = spec.measurement is Measurement.BEST and len(spec.metrics) == 1
        return {metric.name: self._final(metric, is_best=is_best) for metric in spec.metrics}

    def _final(self, metric: Metric, *, is_best: bool) -> float | None:
        values = [value for _, value in self.points.get(metric.name, ())]
        if is_best:
            finite = [value for value in values if math.isfinite(value)]
            choose = max if metric.goal is Goal.MAXIMIZE else min
            return choose(finite, default=None)
        return values[-1] if values and math.isfinite(values[-1]) else None


def measure(session: Session, job_ids: Sequence[str], names: Sequence[str]) -> dict[str, Measured]:
    """What each of these jobs reported under these names. Where several replicas did, the first one's word counts."""
    if not job_ids:
        return {}
    only = Filter(names=list(names), kind="scalar")
    found = find_series(session, list(job_ids), only, limit=_MOST_SERIES)
    first: dict[tuple[str, str, int], Series] = {}
    for series in found:
        key = (series.owner_id, series.name, series.attempt)
        known = first.get(key)
        if known is None or _weight(series) < _weight(known):
            first[key] = series
    points: dict[str, dict[str, list[tuple[int, float]]]] = {job_id: {} for job_id in job_ids}
    for (job_id, name, _), series in sorted(first.items(), key=lambda item: item[0]):
        read = read_points(session, series, max(0, series.count - _MOST_POINTS), _MOST_POINTS)
        points[job_id].setdefault(name, []).extend(zip(read.steps, read.values, strict=True))
    return {job_id: Measured(of_job) for job_id, of_job in points.items()}


def missing_words(session: Session, job_id: str, spec: StudySpec, result: Mapping[str, float | None]) -> str:
    """Why a trial has no result: which metric is missing, where it was looked for, and what came instead."""
    missing = next((name for name, value in result.items() if value is None), spec.metrics[0].name)
    came = find_names(session, job_id, Filter(without_prefix="system/", kind="scalar"), limit=_NAMES_SHOWN + 1)
    names = [row.name for row in came]
    if missing in names:
        return f"its last value of the metric {missing!r} is not a number"
    told = f"it never reported the metric {missing!r}; looked for it in {ROADS}"
    if not names:
        return f"{told}; it reported no metric at all"
    more = " and more" if len(names) > _NAMES_SHOWN else ""
    return f"{told}; it reported {', '.join(names[:_NAMES_SHOWN])}{more}"


def _weight(series: Series) -> tuple[tuple[int, str], int]:
    return role_order(series.role), series.index
