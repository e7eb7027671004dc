"""Start forecasts: the expected starts of all waiting jobs, written in the background for the queue's pages."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime, timedelta
from typing import Final

import structlog
from sqlalchemy.exc import IntegrityError

from core.db.engine import unit_of_work
from core.db.repositories.planning import ForecastEntry, write_start_forecasts
from scheduler.control.context import ControlContext
from scheduler.control.planning.poison_jobs import PoisonJobFilter
from scheduler.control.planning.snapshot import InputsFingerprint, SnapshotCache, fingerprint, load_snapshot
from scheduler.planning.forecast.start_times import QueueForecast, StartCode, forecast_starts
from scheduler.planning.planner import plan

log = structlog.get_logger(__name__)

# Forecasts age although nothing changes; and a queue that changes all the time is not forecast each time.
_AGAIN: Final = timedelta(minutes=1)
_AT_MOST: Final = timedelta(seconds=5)
_TRIES: Final = 3


class StartForecastWriter:
    """Writes the expected starts of waiting jobs. One per process; two that write at the same time write the same."""

    def __init__(self, control: ControlContext) -> None:
        self._control = control
        self._cache = SnapshotCache()
        self._poison_filter = PoisonJobFilter()
        self._inputs: InputsFingerprint | None = None
        self._written_at: datetime | None = None

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
        try:
            planned = self._poison_filter.plan(loaded.snapshot, loaded.generations, plan)
            rows = start_forecast_rows(forecast_starts(planned.snapshot, planned.plan), now)
        except Exception:
            self._inputs, self._written_at = inputs, now  # it would fail again
            raise
        for _ in range(_TRIES):
            with suppress(IntegrityError), unit_of_work(control.sessions) as session:
                write_start_forecasts(session, rows, now)
                break
            # Another process writes the same at this moment, or a job was removed.
        else:
            log.info("start_forecasts.conflict")
        # A forecast costs seconds: it is not repeated at once, whichever process has written.
        self._inputs, self._written_at = inputs, now


def start_forecast_rows(forecasts: QueueForecast, now: datetime) -> list[ForecastEntry]:
    """The forecasts of jobs that do not start with this plan."""
    return [
        ForecastEntry(
            forecast.job_id,
            forecast.position,
            forecast.earliest,
            forecast.likely,
            forecast.latest,
            forecast.code.value,
            forecast.sentence,
            forecast.nodes,
        )
        for forecast in (start.on_grid(now) for start in forecasts.starts)
        if forecast.position is not None and forecast.code is not StartCode.NOW
    ]
