"""Recorded start forecasts: written while jobs wait, compared with the real starts, deleted when there are many."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from sqlalchemy import and_, delete, select
from sqlalchemy.orm import Session

from core.db.engine import insert_into
from core.db.tables import Attempt, ForecastRecord, Job
from core.domain.jobs.states import JobState
from core.domain.sharing.recorded_forecasts import ForecastAccuracy, RecordedForecast

SHOWN: Final = 200  # forecasts on which the shown accuracy is based
STORED: Final = 2000
_FIELDS: Final = ("step", "made_at", "early_s", "likely_s", "late_s", "early", "likely", "late", "started_at")
_COLUMNS: Final = tuple(getattr(ForecastRecord, name) for name in _FIELDS)


@dataclass(slots=True)
class RecordedWait:
    """The recorded forecasts of one wait, which ends with ``attempt``. ``placed_at``: ``None`` until then.

    ``is_over``: the job does not wait any more.
    """

    job_id: str
    attempt: int
    placed_at: datetime | None
    is_over: bool
    forecasts: list[RecordedForecast] = field(default_factory=list)


def open_waits(session: Session) -> list[RecordedWait]:
    """Waits whose forecasts are not compared with a start yet."""
    rows = session.execute(
        select(
            ForecastRecord.job_id, ForecastRecord.attempt, Attempt.created_at.label("placed_at"), Job.state,
            Job.attempt_count, *_COLUMNS,
        )
        .join(Job, Job.id == ForecastRecord.job_id)
        .join(
            Attempt,
            and_(Attempt.job_id == ForecastRecord.job_id, Attempt.number == ForecastRecord.attempt),
            isouter=True,
        )
        .where(ForecastRecord.started_at.is_(None))
        .order_by(ForecastRecord.job_id, ForecastRecord.attempt, ForecastRecord.step)
    )  # fmt: skip
    waits: dict[tuple[str, int], RecordedWait] = {}
    for row in rows:
        is_over = row.state != JobState.QUEUED.value or row.attempt_count >= row.attempt
        key = (row.job_id, row.attempt)
        wait = waits.setdefault(key, RecordedWait(*key, row.placed_at, is_over))
        wait.forecasts.append(_forecast(row))
    return list(waits.values())


def newest_scores(session: Session, most: int) -> list[RecordedForecast]:
    """Forecasts of jobs that have started, in the order of their starts."""
    rows = session.execute(
        select(*_COLUMNS)
        .where(ForecastRecord.started_at.is_not(None))
        .order_by(ForecastRecord.started_at.desc(), ForecastRecord.job_id, ForecastRecord.step)
        .limit(most)
    ).all()
    return [_forecast(row) for row in reversed(rows)]


def accuracy(session: Session) -> ForecastAccuracy:
    return ForecastAccuracy.of(newest_scores(session, SHOWN))


def record(session: Session, forecasts: Mapping[str, RecordedForecast]) -> None:
    """Add forecasts of waiting jobs, by job. What another process has recorded already stays."""
    rows = session.execute(
        select(Job.id, Job.attempt_count).where(Job.id.in_(forecasts), Job.state == JobState.QUEUED.value)
    )
    values = [_values(row.id, row.attempt_count + 1, forecasts[row.id]) for row in rows]
    if values:
        session.execute(insert_into(session, ForecastRecord).values(values).on_conflict_do_nothing())


def close(session: Session, wait: RecordedWait, scored: Iterable[RecordedForecast]) -> None:
    """Replace a wait's forecasts by those that are ``scored``."""
    session.execute(
        delete(ForecastRecord).where(ForecastRecord.job_id == wait.job_id, ForecastRecord.attempt == wait.attempt)
    )
    values = [_values(wait.job_id, wait.attempt, forecast) for forecast in scored]
    if values:
        session.execute(insert_into(session, ForecastRecord).values(values).on_conflict_do_nothing())


def prune(session: Session) -> None:
    """Delete all but the newest scores."""
    oldest = session.execute(
        select(ForecastRecord.started_at)
        .where(ForecastRecord.started_at.is_not(None))
        .order_by(ForecastRecord.started_at.desc())
        .offset(STORED)
        .limit(1)
    ).scalar_one_or_none()
    if oldest is not None:
        session.execute(delete(ForecastRecord).where(ForecastRecord.started_at <= oldest))


def _values(job_id: str, attempt: int, forecast: RecordedForecast) -> dict[str, Any]:
    return {"job_id": job_id, "attempt": attempt, **{name: getattr(forecast, name) for name in _FIELDS}}


def _forecast(row: Any) -> RecordedForecast:
    return RecordedForecast(**{name: getattr(row, name) for name in _FIELDS})
