"""What trials reported of the study's metrics, whole: the value that counts when they are over. While they run: ``follow.py``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from sqlalchemy.orm import Session
from trainmaster.spec.enums import role_order
from trainmaster.studies import Goal, Measurement, Metric, StudySpec

from core.db.repositories.metrics.reads import Filter, Series, find_series, read_points

# Of one series; a trial that reports more is judged by the newest.
_MOST_POINTS: Final = 20_000
_MOST_SERIES: Final = 20_000


@dataclass(frozen=True, slots=True)
class MeasuredMetrics:
    """(step, value) of each metric in the order in which they came; values may be NaN."""

    points: Mapping[str, Sequence[tuple[int, float]]] = field(default_factory=dict)

    def final(self, spec: StudySpec) -> dict[str, float | None]:
        """The value of each metric that counts; ``None``: none that is a number.

        Of several metrics always the last ones: the best of each would come from different moments.
        """
        is_best = spec.measurement is Measurement.BEST and len(spec.metrics) == 1
        return {metric.name: self._final(metric, is_best=is_best) for metric in spec.metrics}

    def fault(self, name: str) -> str:
        """What is wrong with the last value of ``name``, in words; empty: it is a finite number, or there is none."""
        last = next((value for _, value in reversed(self.points.get(name, ()))), 0.0)
        if math.isfinite(last):
            return ""
        return f"its last value of the metric {name!r} is {'not a number' if math.isnan(last) else 'infinite'}"

    def divergence(self, name: str) -> str:
        """A sentence where ``name`` was a number once and is none at the end; else empty."""
        fault = self.fault(name)
        finite = next((step for step, value in reversed(self.points.get(name, ())) if math.isfinite(value)), None)
        if not fault or finite is None:
            return ""
        return f"{fault[:1].upper()}{fault[1:]}: it diverged after step {finite}."

    def _final(self, metric: Metric, *, is_best: bool) -> float | None:
        values = [value for _, value in self.points.get(metric.name, ())]
        if is_best:
            finite = [value for value in values if math.isfinite(value)]
            choose = max if metric.goal is Goal.MAXIMIZE else min
            return choose(finite, default=None)
        return values[-1] if values and math.isfinite(values[-1]) else None


def measure_metrics(session: Session, job_ids: Sequence[str], names: Sequence[str]) -> dict[str, MeasuredMetrics]:
    """What each of these jobs reported under these names. Where several replicas did, the first one's word counts."""
    if not job_ids:
        return {}
    points: dict[str, dict[str, list[tuple[int, float]]]] = {job_id: {} for job_id in job_ids}
    for (job_id, name, _), series in authoritative_series(session, job_ids, names).items():
        read = read_points(session, series, max(0, series.count - _MOST_POINTS), _MOST_POINTS)
        points[job_id].setdefault(name, []).extend(zip(read.steps, read.values, strict=True))
    return {job_id: MeasuredMetrics(of_job) for job_id, of_job in points.items()}


def authoritative_series(
    session: Session, job_ids: Sequence[str], names: Sequence[str]
) -> dict[tuple[str, str, int], Series]:
    """The one series that counts of each job, name and attempt: its first replica's. In the order of these."""
    only = Filter(names=list(names), kind="scalar")
    first: dict[tuple[str, str, int], Series] = {}
    for series in find_series(session, list(job_ids), only, limit=_MOST_SERIES):
        key = (series.owner_id, series.name, series.attempt)
        known = first.get(key)
        if known is None or _weight(series) < _weight(known):
            first[key] = series
    return dict(sorted(first.items(), key=lambda item: item[0]))


def _weight(series: Series) -> tuple[tuple[int, str], int]:
    return role_order(series.role), series.index
