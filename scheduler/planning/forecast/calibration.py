"""Scores of start forecasts, and intervals that are calibrated by them.

A forecast's interval is to contain the real start in nine of ten cases. How wide it has to be for that follows from
the platform's own newest forecasts (split conformal prediction, Vovk et al., with scores that are normalised by the
planner's own range, as in Lei et al., "Distribution-Free Predictive Inference for Regression", 2018):

- The *score* of a forecast is its error in the logarithm of the wait, divided by the distance from the likely to the
  early or the late start of the planner's projections. So a forecast that the planner itself takes for vague stays
  wider than others.
- The bounds are quantiles of the newest scores, of each side on its own, as jobs are late more often than early. Their
  levels follow the misses (adaptive conformal inference, Gibbs and Candès, 2021): the load of a cluster drifts, and
  forecasts of one afternoon are not independent.
- A few scores are always added as a prior, as if the planner's own range contained seven in ten starts. Without any
  history the interval is that range, widened to twice its size.
- The likely start stays as it is: it comes from one projection in which no node holds too much, and starts that are
  shifted each by its own amount would overlap.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from math import ceil, exp, log, log2
from statistics import NormalDist
from typing import Final

from core.domain.sharing.recorded_forecasts import RecordedForecast
from scheduler.planning.forecast.start_times import StartCode, StartForecast

COVERAGE: Final = 0.9
MOST_SCORES: Final = 500  # the newest; older ones are of another load
_TAIL: Final = (1 - COVERAGE) / 2  # on each side
_PRIOR: Final = tuple(NormalDist().inv_cdf((number + 0.5) / 20) for number in range(20))
_SLACK_S: Final = 60.0  # a wait of seconds is as good as one of a minute
_LEAST_WIDTH: Final = 0.3  # in the logarithm; a range of nothing is never right
_OPEN_WIDTH: Final = log(4)  # of a forecast without an upper bound
_RATE: Final = 0.03  # of the adaptation
_LEAST_TAIL, _LARGEST_TAIL = 0.002, 0.3
_FARTHEST: Final = log(1000)  # a bound is at most so many times as far as the likely start
# A wait's forecasts are recorded when it begins, and whenever its age has doubled since a minute.
_FIRST_AGE_S: Final = 60.0


def score_of(forecast: RecordedForecast) -> float:
    """The normalised error of a forecast whose job has started; negative if that was earlier."""
    started_at = forecast.started_at or forecast.likely
    started_s = max(0.0, (started_at - forecast.made_at).total_seconds())
    error = log((started_s + _SLACK_S) / (forecast.likely_s + _SLACK_S))
    below, above = _widths(forecast.early_s, forecast.likely_s, forecast.late_s)
    return error / (above if error >= 0 else below)


def _widths(early_s: float, likely_s: float, late_s: float | None) -> tuple[float, float]:
    """Distances from the likely to the early and the late start, in the logarithm of the wait."""
    likely = log(likely_s + _SLACK_S)
    above = _OPEN_WIDTH if late_s is None else log(max(late_s, likely_s) + _SLACK_S) - likely
    return _LEAST_WIDTH + likely - log(min(early_s, likely_s) + _SLACK_S), _LEAST_WIDTH + above


class Calibration:
    """Bounds for forecasts, from forecasts of jobs that have started since, or that are late already.

    Args:
        past: with ``started_at``, in its order. A job that still waits although its interval is over counts as started
        now.
    """

    def __init__(self, past: Iterable[RecordedForecast] = ()) -> None:
        newest = list(past)[-MOST_SCORES:]
        below = above = _TAIL
        for forecast in newest:
            started_at = forecast.started_at or forecast.likely
            below += _RATE * (_TAIL - (started_at < forecast.early))
            above += _RATE * (_TAIL - (started_at > forecast.late))
            below, above = (min(_LARGEST_TAIL, max(_LEAST_TAIL, tail)) for tail in (below, above))
        scores = sorted((*_PRIOR, *(score_of(forecast) for forecast in newest)))
        # The likely start is always inside.
        self._low = min(0.0, -_quantile([-score for score in reversed(scores)], 1 - below))
        self._high = max(0.0, _quantile(scores, 1 - above))

    def apply(self, start: StartForecast, now: datetime) -> StartForecast:
        """``start`` with a calibrated interval."""
        if start.code is not StartCode.EXPECTED or start.likely is None or start.earliest is None:
            return start
        early_s, likely_s, late_s = seconds_of(start, now)
        below, above = _widths(early_s, likely_s, late_s)
        earliest = (likely_s + _SLACK_S) * exp(self._low * below) - _SLACK_S
        latest = (likely_s + _SLACK_S) * exp(min(_FARTHEST, self._high * above)) - _SLACK_S
        try:
            late = now + timedelta(seconds=max(likely_s, latest))
        except OverflowError:
            late = None
        return replace(start, earliest=now + timedelta(seconds=min(likely_s, max(0.0, earliest))), latest=late)


def _quantile(ordered: Sequence[float], level: float) -> float:
    """With the correction for the size of the sample."""
    return ordered[min(len(ordered), ceil((len(ordered) + 1) * level)) - 1]


def seconds_of(start: StartForecast, now: datetime) -> tuple[float, float, float | None]:
    """Early, likely and late start of an expected one, in seconds from ``now``."""
    early, likely, late = (
        None if at is None else max(0.0, (at - now).total_seconds())
        for at in (start.earliest, start.likely, start.latest)
    )
    likely = likely or 0.0
    return likely if early is None else early, likely, late


def record(
    start: StartForecast, shown: StartForecast, made: Sequence[RecordedForecast], now: datetime
) -> RecordedForecast | None:
    """What to record of ``start``, which is shown as ``shown``; ``None``: nothing now.

    Args:
        made: what is recorded of the same wait.
    """
    is_expected = start.code is StartCode.EXPECTED and start.likely is not None
    if not is_expected or shown.earliest is None or shown.likely is None or shown.latest is None:
        return None
    step = 0
    if made:
        age_s = (now - min(forecast.made_at for forecast in made)).total_seconds()
        step = 0 if age_s < _FIRST_AGE_S else 1 + int(log2(age_s / _FIRST_AGE_S))
        if step <= max(forecast.step for forecast in made):
            return None
    return RecordedForecast(step, now, *seconds_of(start, now), shown.earliest, shown.likely, shown.latest)


def resolved(made: Sequence[RecordedForecast], started_at: datetime) -> list[RecordedForecast]:
    """Of one wait's forecasts the two that are scored: the first, and the last from the first half of the wait."""
    if not made:
        return []
    first, *others = sorted(made, key=lambda forecast: forecast.made_at)
    half = first.made_at + (started_at - first.made_at) / 2
    of_half = [forecast for forecast in others if forecast.made_at <= half]
    return [replace(forecast, started_at=started_at) for forecast in (first, *of_half[-1:])]
