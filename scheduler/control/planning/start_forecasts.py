"""Start forecasts: the expected starts of all waiting jobs, written in the background for the queue's pages.

Forecasts are recorded, compared with the real starts, and calibrated by that; a job whose promise is not met gets an
event.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import structlog
from sqlalchemy import select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from core.db.engine import unit_of_work
from core.db.repositories import forecast_records
from core.db.repositories.forecast_records import RecordedWait
from core.db.repositories.planning import ForecastEntry, read_promises, write_start_forecasts
from core.db.tables import Job
from core.domain.sharing.recorded_forecasts import RecordedForecast
from scheduler.control.context import ControlContext
from scheduler.control.journal import Journal
from scheduler.control.planning.poison_jobs import PoisonJobFilter
from scheduler.control.planning.promises import Delay, PlannedState, Promise, check_promise
from scheduler.control.planning.snapshot import InputsFingerprint, SnapshotCache, fingerprint, load_snapshot
from scheduler.planning.forecast.calibration import MOST_SCORES, Calibration, record, resolved
from scheduler.planning.forecast.start_times import StartCode, StartForecast, forecast_starts
from scheduler.planning.planner import plan

log = structlog.get_logger(__name__)

# Forecasts age although nothing changes; and a queue that changes all the time is not forecast each time.
_AGAIN: Final = timedelta(minutes=1)
_AT_MOST: Final = timedelta(seconds=5)
_TRIES: Final = 3


@dataclass(frozen=True, slots=True)
class ForecastHistory:
    """What is recorded of earlier forecasts. ``waits``: not compared with a start yet; ``scored``: the newest that are,
    in the order of the starts.
    """

    waits: Sequence[RecordedWait]
    scored: Sequence[RecordedForecast]

    @classmethod
    def read(cls, session: Session) -> ForecastHistory:
        return cls(forecast_records.open_waits(session), forecast_records.newest_scores(session, MOST_SCORES))

    def resolved(self) -> list[tuple[RecordedWait, list[RecordedForecast]]]:
        """Waits that are over, each with its forecasts to be scored; none where the job was never placed."""
        over = [wait for wait in self.waits if wait.is_over]
        return [(wait, [] if wait.placed_at is None else resolved(wait.forecasts, wait.placed_at)) for wait in over]

    def of_waiting(self) -> dict[str, list[RecordedForecast]]:
        return {wait.job_id: wait.forecasts for wait in self.waits if not wait.is_over}

    def calibration(self, now: datetime) -> Calibration:
        new = [forecast for _, scored in self.resolved() for forecast in scored]
        new.sort(key=lambda forecast: (forecast.started_at or now, forecast.made_at))
        overdue = (
            forecast for made in self.of_waiting().values() for forecast in resolved(made, now) if now > forecast.late
        )
        return Calibration((*self.scored, *new, *overdue))


@dataclass(frozen=True, slots=True)
class _Forecasts:
    """What one run writes. ``recorded``: by job."""

    rows: Sequence[ForecastEntry]
    recorded: Mapping[str, RecordedForecast]
    delays: Sequence[Delay]


class StartForecastWriter:
    """Writes the expected starts of waiting jobs. One per process; two that write at the same time write the same."""

    def __init__(self, control: ControlContext) -> None:
        self._control = control
        self._cache = SnapshotCache()
        self._poison_filter = PoisonJobFilter()
        self._inputs: InputsFingerprint | None = None
        self._written_at: datetime | None = None
        self._planned: PlannedState | None = None  # of the last run

    def write(self) -> None:
        """Forecast and write, if anything has changed or the last forecast is old.

        Raises:
            Unavailable: the database is away.
        """
        control = self._control
        with unit_of_work(control.sessions, read_only=True, is_snapshot=True) as session:
            now = control.clock()
            if self._written_at is not None and now - self._written_at < _AT_MOST:
                return
            inputs = fingerprint(session)
            if inputs == self._inputs and self._written_at is not None and now - self._written_at < _AGAIN:
                return
            loaded = load_snapshot(session, self._cache, now, can_grow=control.can_change_worlds)
            history = ForecastHistory.read(session)
            promises = read_promises(session)
        try:
            found = self._poison_filter.plan(loaded.snapshot, loaded.generations, plan)
            planned = PlannedState(found.snapshot, found.plan)
            starts = forecast_starts(found.snapshot, found.plan).starts
            forecasts = self._forecasts(starts, planned, history, promises)
        except Exception:
            self._inputs, self._written_at = inputs, now  # it would fail again
            raise
        for _ in range(_TRIES):
            with suppress(IntegrityError), unit_of_work(control.sessions) as session:
                _write(session, forecasts, history, now)
                break
            # Another process writes the same at this moment, or a job was removed.
        else:
            log.info("start_forecasts.conflict")
        # A forecast costs seconds: it is not repeated at once, whichever process has written.
        self._inputs, self._written_at, self._planned = inputs, now, planned

    def _forecasts(
        self,
        starts: Sequence[StartForecast],
        planned: PlannedState,
        history: ForecastHistory,
        promises: Mapping[str, Mapping[str, object]],
    ) -> _Forecasts:
        now, calibration, of_waiting = (
            planned.snapshot.now,
            history.calibration(planned.snapshot.now),
            history.of_waiting(),
        )
        rows, recorded, delays = [], {}, []
        for start in starts:
            shown = calibration.apply(start, now).on_grid(now)
            new = record(start, shown, of_waiting.get(start.job_id, ()), now)
            if new is not None:
                recorded[str(start.job_id)] = new
            if shown.position is None or shown.code is StartCode.NOW:
                continue
            before = promises.get(start.job_id)
            promise, delay = check_promise(
                None if before is None else Promise.from_json(before), shown, planned, self._planned
            )
            delays += [] if delay is None else [delay]
            rows.append(_entry(shown, shown.position, promise))
        return _Forecasts(rows, recorded, delays)


def _entry(shown: StartForecast, position: int, promise: Promise) -> ForecastEntry:
    return ForecastEntry(
        shown.job_id,
        position,
        shown.earliest,
        shown.likely,
        shown.latest,
        shown.code.value,
        shown.sentence,
        shown.nodes,
        promise.to_json(),
    )


def _write(session: Session, forecasts: _Forecasts, history: ForecastHistory, now: datetime) -> None:
    write_start_forecasts(session, forecasts.rows, now)
    for wait, scored in history.resolved():
        forecast_records.close(session, wait, scored)
    forecast_records.record(session, forecasts.recorded)
    if not forecasts.delays:
        return
    ids = [delay.job_id for delay in forecasts.delays]
    projects = dict(session.execute(select(Job.id, Job.project_id).where(Job.id.in_(ids))).all())
    for delay in forecasts.delays:
        if delay.job_id in projects:
            data = {"cause": delay.cause, "promise": delay.promise.to_json()}
            journal = Journal(session, projects[delay.job_id], delay.job_id)
            journal.add("job.delayed", delay.sentence, at=now, data=data)
