"""Start forecasts as they were made, compared with the real starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import median


@dataclass(frozen=True, slots=True)
class RecordedForecast:
    """A forecast as it was made, to be compared with the real start.

    ``step``: 0 for the first of its wait, larger for later ones. ``early_s``, ``likely_s`` and ``late_s``: of the
    planner's projections, in seconds from ``made_at``; ``late_s`` is ``None`` without an upper bound. ``early``,
    ``likely`` and ``late``: as shown. ``started_at``: ``None`` until the job starts.
    """

    step: int
    made_at: datetime
    early_s: float
    likely_s: float
    late_s: float | None
    early: datetime
    likely: datetime
    late: datetime
    started_at: datetime | None = None

    @property
    def is_inside(self) -> bool:
        """Whether the shown interval contained the real start."""
        return self.started_at is not None and self.early <= self.started_at <= self.late

    @property
    def error_s(self) -> float:
        """Distance of the real start from the shown one, in seconds."""
        return abs(((self.started_at or self.likely) - self.likely).total_seconds())


@dataclass(frozen=True, slots=True)
class ForecastAccuracy:
    """How good forecasts were. ``inside``: number of intervals that contained the real start."""

    forecasts: int
    inside: int
    median_error_s: float

    @classmethod
    def of(cls, scored: Sequence[RecordedForecast]) -> ForecastAccuracy:
        errors_s = [forecast.error_s for forecast in scored]
        return cls(len(scored), sum(forecast.is_inside for forecast in scored), median(errors_s) if errors_s else 0.0)

    @property
    def sentence(self) -> str:
        """``Of the last 200 expected starts, 91 % fell into their interval; median error 4 min.``"""
        if not self.forecasts:
            return "No expected start could be compared with a real one yet."
        share = f"{self.inside / self.forecasts:.0%}".replace("%", " %")
        count = f"Of the last {self.forecasts} expected starts" if self.forecasts > 1 else "Of the last expected start"
        return f"{count}, {share} fell into their interval; median error {_duration(self.median_error_s)}."


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
