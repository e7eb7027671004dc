"""A study's trials as charts want them: in columns, and what each reported on its way."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import func, or_, select
from sqlalchemy.orm import Session
from trainmaster.spec.enums import role_order
from trainmaster.studies import StudySpec
from trainmaster.wire.studies import StudyCurves, TrialColumns, TrialCurve

from api.studies.views import results
from core.db.repositories.metrics.reads import SeriesFilter, StoredSeries, find_series, read_points
from core.db.tables import Study, Trial
from core.domain.studies.curves import make_curve, thinned
from core.domain.studies.states import TrialState

# Whoever ends a trial may write that a moment after the time that it writes.
_OVERLAP: Final = timedelta(seconds=30)
_REASON: Final = 300  # characters; the whole one is at the trial
_RUNNING: Final = 50
_POINTS: Final = 5_000


def trial_columns(session: Session, row: Study, since: datetime | None, now: datetime) -> TrialColumns:
    """All trials or, of those that are over, those that ended after ``since``."""
    spec = StudySpec.model_validate(row.spec)
    query = select(
        Trial.number, Trial.state, Trial.parameters, Trial.result, Trial.reason, Trial.job_id, Trial.created_at,
        Trial.ended_at,
    ).where(Trial.study_id == row.id)  # fmt: skip
    if since is not None:
        query = query.where(or_(Trial.ended_at.is_(None), Trial.ended_at >= since - _OVERLAP))
    rows = session.execute(query.order_by(Trial.number)).all()
    return TrialColumns(
        number=[one.number for one in rows],
        state=[one.state for one in rows],
        job=[one.job_id for one in rows],
        reason=[one.reason[:_REASON] for one in rows],
        created_at=[one.created_at for one in rows],
        ended_at=[one.ended_at for one in rows],
        parameters={name: [one.parameters.get(name) for one in rows] for name in spec.parameters},
        metrics={metric.name: [(one.result or {}).get(metric.name) for one in rows] for metric in spec.metrics},
        until=now,
    )


def study_curves(session: Session, row: Study, limit: int) -> StudyCurves:
    """Up to ``limit`` curves: those of trials that run, and of those that are over half the best and half the newest."""
    spec = StudySpec.model_validate(row.spec)
    metric = spec.metrics[0]
    has_one = (Trial.study_id == row.id, Trial.curve.is_not(None))
    running = _running_curves(session, row.id, metric.name, min(limit, _RUNNING))
    total = session.execute(select(func.count()).where(*has_one)).scalar_one() + len(running)
    room = max(0, limit - len(running))
    ranked = sorted(results(session, row.id, spec), key=lambda one: (metric.sign * one.values[0], one.number))
    chosen = {one.number for one in ranked[: room // 2]}
    newest = select(Trial.number).where(*has_one, Trial.number.not_in(chosen)).order_by(Trial.number.desc())
    chosen |= set(session.scalars(newest.limit(room - len(chosen))))
    query = select(Trial.number, Trial.state, Trial.job_id, Trial.curve).where(*has_one, Trial.number.in_(chosen))
    over = [
        TrialCurve(number=one.number, state=one.state, job=one.job_id, **_finite(one.curve))
        for one in session.execute(query)
    ]
    shown = sorted([*over, *running], key=lambda one: one.number)
    return StudyCurves(metric=metric.name, curves=[one for one in shown if one.steps], total=total)


def _running_curves(session: Session, study_id: str, metric: str, limit: int) -> list[TrialCurve]:
    """Of the newest trials that run and have reported: the first replica's word, of all attempts."""
    query = select(Trial.number, Trial.job_id).where(
        Trial.study_id == study_id, Trial.state == TrialState.RUNNING.value, Trial.job_id.is_not(None)
    )
    numbers = {one.job_id: one.number for one in session.execute(query.order_by(Trial.number.desc()).limit(limit))}
    if not numbers:
        return []
    first: dict[tuple[str, int], StoredSeries] = {}
    for series in find_series(session, list(numbers), SeriesFilter(names=[metric], kind="scalar"), limit=20 * _RUNNING):
        known = first.get((series.owner_id, series.attempt))
        if known is None or _weight(series) < _weight(known):
            first[series.owner_id, series.attempt] = series
    points: dict[str, list[tuple[int, float]]] = {}
    for (job, _), series in sorted(first.items(), key=lambda item: item[0]):
        read = read_points(session, series, max(0, series.count - _POINTS), _POINTS)
        points.setdefault(job, []).extend(zip(read.steps, read.values, strict=True))
    found = []
    for job, told in points.items():
        curve = thinned(make_curve(numbers[job], told))
        found.append(
            TrialCurve(
                number=numbers[job], state="running", job=job, steps=list(curve.steps), values=list(curve.values)
            )
        )
    return [one for one in found if one.steps]


def _finite(curve: Any) -> dict[str, Any]:
    return {"steps": curve["steps"], "values": curve["values"]}


def _weight(series: StoredSeries) -> tuple[tuple[int, str], int]:
    return role_order(series.role), series.index
