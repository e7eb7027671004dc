"""A study's trials in columns for charts, and their learning curves."""

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

# The row of an ended trial may be committed later than its ``ended_at``.
_OVERLAP: Final = timedelta(seconds=30)
_REASON_CHARS: Final = 300  # characters; the trial itself has the full text
_RUNNING_LIMIT: Final = 50
_POINT_LIMIT: Final = 5_000


def trial_columns(session: Session, row: Study, since: datetime | None, now: datetime) -> TrialColumns:
    """All trials; with ``since``, the running ones and those that ended after it."""
    spec = StudySpec.model_validate(row.spec)
    query = select(
        Trial.number, Trial.state, Trial.parameters, Trial.result, Trial.reason, Trial.job_id, Trial.created_at,
        Trial.ended_at,
    ).where(Trial.study_id == row.id)  # fmt: skip
    if since is not None:
        query = query.where(or_(Trial.ended_at.is_(None), Trial.ended_at >= since - _OVERLAP))
    rows = session.execute(query.order_by(Trial.number)).all()
    return TrialColumns(
        number=[trial.number for trial in rows],
        state=[trial.state for trial in rows],
        job=[trial.job_id for trial in rows],
        reason=[trial.reason[:_REASON_CHARS] for trial in rows],
        created_at=[trial.created_at for trial in rows],
        ended_at=[trial.ended_at for trial in rows],
        parameters={name: [trial.parameters.get(name) for trial in rows] for name in spec.parameters},
        metrics={metric.name: [(trial.result or {}).get(metric.name) for trial in rows] for metric in spec.metrics},
        until=now,
    )


def study_curves(session: Session, row: Study, limit: int) -> StudyCurves:
    """Up to ``limit`` curves: of running trials, and of ended trials half the best and half the newest ones."""
    spec = StudySpec.model_validate(row.spec)
    metric = spec.metrics[0]
    with_curve = (Trial.study_id == row.id, Trial.curve.is_not(None))
    running = _running_curves(session, row.id, metric.name, min(limit, _RUNNING_LIMIT))
    total = session.execute(select(func.count()).where(*with_curve)).scalar_one() + len(running)
    room = max(0, limit - len(running))
    ranked = sorted(results(session, row.id, spec), key=lambda item: (metric.sign * item.values[0], item.number))
    chosen = {item.number for item in ranked[: room // 2]}
    newest = select(Trial.number).where(*with_curve, Trial.number.not_in(chosen)).order_by(Trial.number.desc())
    chosen |= set(session.scalars(newest.limit(room - len(chosen))))
    query = select(Trial.number, Trial.state, Trial.job_id, Trial.curve).where(*with_curve, Trial.number.in_(chosen))
    over = [
        TrialCurve(number=item.number, state=item.state, job=item.job_id, **_finite(item.curve))
        for item in session.execute(query)
    ]
    shown = sorted([*over, *running], key=lambda item: item.number)
    return StudyCurves(metric=metric.name, curves=[item for item in shown if item.steps], total=total)


def _running_curves(session: Session, study_id: str, metric: str, limit: int) -> list[TrialCurve]:
    """Curves of the newest running trials: the first replica's reports, over all attempts."""
    query = select(Trial.number, Trial.job_id).where(
        Trial.study_id == study_id, Trial.state == TrialState.RUNNING.value, Trial.job_id.is_not(None)
    )
    numbers = {item.job_id: item.number for item in session.execute(query.order_by(Trial.number.desc()).limit(limit))}
    if not numbers:
        return []
    first: dict[tuple[str, int], StoredSeries] = {}
    for series in find_series(
        session, list(numbers), SeriesFilter(names=[metric], kind="scalar"), limit=20 * _RUNNING_LIMIT
    ):
        known = first.get((series.owner_id, series.attempt))
        if known is None or _weight(series) < _weight(known):
            first[series.owner_id, series.attempt] = series
    points: dict[str, list[tuple[int, float]]] = {}
    for (job, _), series in sorted(first.items(), key=lambda item: item[0]):
        read = read_points(session, series, max(0, series.count - _POINT_LIMIT), _POINT_LIMIT)
        points.setdefault(job, []).extend(zip(read.steps, read.values, strict=True))
    found = []
    for job, reported in points.items():
        curve = thinned(make_curve(numbers[job], reported))
        found.append(
            TrialCurve(
                number=numbers[job], state="running", job=job, steps=list(curve.steps), values=list(curve.values)
            )
        )
    return [item for item in found if item.steps]


def _finite(curve: Any) -> dict[str, Any]:
    return {"steps": curve["steps"], "values": curve["values"]}


def _weight(series: StoredSeries) -> tuple[tuple[int, str], int]:
    return role_order(series.role), series.index
