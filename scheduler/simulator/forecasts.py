"""Start forecasts in a simulation, made, calibrated and scored by the code of production."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Final

from core.domain.ids import JobId
from core.domain.sharing.recorded_forecasts import RecordedForecast
from scheduler.planning.forecast.calibration import MOST_SCORES, Calibration, record, resolved
from scheduler.planning.forecast.start_times import forecast_starts
from scheduler.planning.model import Plan, Snapshot

WARM_UP: Final = 60  # forecasts that are not counted in figures: the calibration begins without a history
_EVERY: Final = timedelta(minutes=1)
_MOST: Final = 50  # jobs; production forecasts more, but a simulation does so thousands of times


class ForecastScorer:
    """Hook for :class:`scheduler.simulator.engine.Simulation`: forecasts the queue once a minute of virtual time.

    Attributes:
        scored: forecasts of jobs that have started, in the order of their starts.
    """

    def __init__(self, most: int = _MOST, every: timedelta = _EVERY) -> None:
        self.scored: list[RecordedForecast] = []
        self._most = most
        self._every = every
        self._made: dict[JobId, list[RecordedForecast]] = {}
        self._at: datetime | None = None

    def __call__(self, snapshot: Snapshot, made: Plan) -> None:
        now = snapshot.now
        for start in made.starts:
            self.scored += resolved(self._made.pop(start.job_id, []), now)
        if not made.waits or (self._at is not None and now - self._at < self._every):
            return
        self._at = now
        calibration = Calibration((*self.scored[-MOST_SCORES:], *self._overdue(now)))
        for forecast in forecast_starts(snapshot, made, most=self._most).starts:
            forecasts = self._made.setdefault(forecast.job_id, [])
            new = record(forecast, calibration.apply(forecast, now).on_grid(now), forecasts, now)
            if new is not None:
                forecasts.append(new)

    def _overdue(self, now: datetime) -> Iterator[RecordedForecast]:
        for forecasts in self._made.values():
            yield from (late for late in resolved(forecasts, now) if now > late.late)
