"""What trials whose jobs are over reported of the study's metrics, and why a metric is missing.

Curves of running trials are read by ``follow.py``.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from sqlalchemy import func, select
from sqlalchemy.orm import Session
from trainmaster.spec.enums import role_order
from trainmaster.studies import Goal, Measurement, Metric, StudySpec

from core.db.repositories.metrics.reads import SeriesFilter, StoredSeries, find_names, find_series, read_points
from core.db.tables import Attempt, Job, Replica
from core.domain.studies.metric_sources import KEY, MetricSources

# Of one series; a trial that reports more is judged by the newest.
_MAX_POINTS: Final = 20_000
_MAX_SERIES: Final = 20_000
_NAMES_SHOWN: Final = 8
_PATTERNS_SHOWN: Final = 3
_PATTERN_CHARS: Final = 80
_SYSTEM: Final = "system/"
_FILES: Final = (
    "reports of the training library and MLflow, TensorBoard's event files in its output and working folder, "
    "hypertune's file"
)


@dataclass(frozen=True, slots=True)
class ReportedMetrics:
    """(step, value) of each metric by its name, in the order of arrival; values may be NaN."""

    points: Mapping[str, Sequence[tuple[int, float]]] = field(default_factory=dict)

    def final(self, spec: StudySpec) -> dict[str, float | None]:
        """The value of each metric that counts; ``None``: no finite number was reported.

        Of several metrics always the last values: the best of each would come from different moments.
        """
        is_best = spec.measurement is Measurement.BEST and len(spec.metrics) == 1
        return {metric.name: self._final(metric, is_best=is_best) for metric in spec.metrics}

    def fault(self, name: str) -> str:
        """What is wrong with the last value of ``name``; empty: it is finite, or there is none."""
        last = next((value for _, value in reversed(self.points.get(name, ()))), 0.0)
        if math.isfinite(last):
            return ""
        return f"its last value of the metric {name!r} is {'not a number' if math.isnan(last) else 'infinite'}"

    def divergence(self, name: str) -> str:
        """A sentence where ``name`` was finite once and is not at the end; else empty."""
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


def read_metrics(session: Session, job_ids: Sequence[str], names: Sequence[str]) -> dict[str, ReportedMetrics]:
    """What each of these jobs reported of these metrics. Where several replicas did, the first replica's values
    count.
    """
    if not job_ids:
        return {}
    points: dict[str, dict[str, list[tuple[int, float]]]] = {job_id: {} for job_id in job_ids}
    for (job_id, name, _), series in authoritative_series(session, job_ids, names).items():
        read = read_points(session, series, max(0, series.count - _MAX_POINTS), _MAX_POINTS)
        points[job_id].setdefault(name, []).extend(zip(read.steps, read.values, strict=True))
    return {job_id: ReportedMetrics(of_job) for job_id, of_job in points.items()}


def authoritative_series(
    session: Session, job_ids: Sequence[str], names: Sequence[str]
) -> dict[tuple[str, str, int], StoredSeries]:
    """The series that counts of each job, name and attempt, sorted by these: that of the first replica."""
    only = SeriesFilter(names=list(names), kind="scalar")
    first: dict[tuple[str, str, int], StoredSeries] = {}
    for series in find_series(session, list(job_ids), only, limit=_MAX_SERIES):
        key = (series.owner_id, series.name, series.attempt)
        known = first.get(key)
        if known is None or _rank(series) < _rank(known):
            first[key] = series
    return dict(sorted(first.items(), key=lambda item: item[0]))


def _rank(series: StoredSeries) -> tuple[tuple[int, str], int]:
    return role_order(series.role), series.index


def fully_reported(session: Session, job_ids: Collection[str]) -> set[str]:
    """The jobs of whose last attempt every replica has listed what its metric sources brought.

    A replica does so after all its reports: none of them is still on its way.
    """
    query = select(Attempt.job_id, Replica.progress).join(Job, Job.id == Attempt.job_id)
    query = query.join(Replica, Replica.attempt_id == Attempt.id)
    query = query.where(Attempt.job_id.in_(job_ids), Attempt.number == Job.attempt_count)
    complete: dict[str, bool] = {}
    for job_id, progress in session.execute(query):
        complete[job_id] = complete.get(job_id, True) and KEY in (progress or {})
    return {job_id for job_id, is_complete in complete.items() if is_complete}


def missing_metric_reason(
    session: Session, job_id: str, spec: StudySpec, result: Mapping[str, float | None], reported: ReportedMetrics
) -> str:
    """Which metric is missing, which metric sources were read, and what came instead.

    A replica that comes to its end lists what each source brought; otherwise only the sources that were read are known.
    """
    missing = next((name for name, value in result.items() if value is None), spec.metrics[0].name)
    stored_rows = find_names(
        session, job_id, SeriesFilter(without_prefix=_SYSTEM, kind="scalar"), limit=_NAMES_SHOWN + 1
    )
    names = [row.name for row in stored_rows]
    if missing in names:
        return reported.fault(missing) or f"its last value of the metric {missing!r} is not a number"
    job = session.get(Job, job_id)
    patterns = [] if job is None else list(job.spec.get("metric_patterns") or ())
    sources = _metric_sources(session, job_id)
    if sources.is_known:
        found = sources.words(names[:_NAMES_SHOWN], more=len(names) > _NAMES_SHOWN)
        return (
            f"it never reported the metric {missing!r}. What came: {found}. Read were {_log_lines(missing, patterns)}"
        )
    sentence = f"it never reported the metric {missing!r}"
    if names:
        sentence += f"; it reported {', '.join(names[:_NAMES_SHOWN])}{' and more' if len(names) > _NAMES_SHOWN else ''}"
    else:
        sentence += "; it reported no metric at all"
        if not find_names(session, job_id, SeriesFilter(prefix=_SYSTEM), limit=1):
            # The collector that looks for the metrics also samples each replica's resources, first after some seconds.
            sentence += (
                ", nor how much of its node it used: it was over within seconds, or no process could look inside it"
            )
    return f"{sentence}. Looked for it in {_FILES}, and {_log_lines(missing, patterns)}"


def _metric_sources(session: Session, job_id: str) -> MetricSources:
    """As the replicas of the last attempt listed them at their end."""
    last = select(func.max(Attempt.number)).where(Attempt.job_id == job_id).scalar_subquery()
    query = select(Replica.progress).join(Attempt, Attempt.id == Replica.attempt_id)
    query = query.where(Attempt.job_id == job_id, Attempt.number == last)
    return MetricSources.of(
        [progress or {} for progress in session.scalars(query.order_by(Replica.role, Replica.index))]
    )


def _log_lines(missing: str, patterns: Sequence[str]) -> str:
    """How lines of the log were read: the job's own patterns replace the built-in ones."""
    if not patterns:
        return (
            f"lines of the log that name a step or an epoch, like `{missing}=0.1 step=3`. For lines like `{missing}=0.1"
            f'` alone write `metric_patterns: ["{missing}={{{missing}}}"]` in the template'
        )
    shown = ", ".join(f"`{pattern[:_PATTERN_CHARS]}`" for pattern in patterns[:_PATTERNS_SHOWN])
    more = f" and {len(patterns) - _PATTERNS_SHOWN} more" if len(patterns) > _PATTERNS_SHOWN else ""
    absent = "" if any(f"{{{missing}}}" in pattern for pattern in patterns) else f", of which none has {{{missing}}}"
    return f"lines of the log that match metric_patterns: {shown}{more}{absent}"
