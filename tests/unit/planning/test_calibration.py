"""Intervals of start forecasts hold what they say, on several kinds of load."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from random import Random

import pytest

from core.domain.ids import JobId, NodeId
from core.domain.sharing.recorded_forecasts import ForecastAccuracy, RecordedForecast
from core.domain.sharing.resources import Amounts, Gang, GangRole, ResourceRequest
from scheduler.planning import NodeSnapshot
from scheduler.planning.forecast.calibration import COVERAGE, Calibration, record, resolved
from scheduler.planning.forecast.start_times import StartCode, StartForecast
from scheduler.simulator.engine import Simulation
from scheduler.simulator.estimates import Knowledge
from scheduler.simulator.forecasts import WARM_UP, ForecastScorer
from scheduler.simulator.reading.arrival import Arrival
from scheduler.simulator.reading.scenario import DEFAULT_START, Scenario

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def forecast(early_s: float, likely_s: float, late_s: float | None) -> StartForecast:
    latest = None if late_s is None else at(late_s)
    return StartForecast(JobId("j"), 1, StartCode.EXPECTED, "", at(early_s), at(likely_s), latest)


def made(started_s: float, *, likely_s: float = 600, early: float = 300, late: float = 1200) -> RecordedForecast:
    return RecordedForecast(0, NOW, 300, likely_s, 1200, at(early), at(likely_s), at(late), at(started_s))


def bounds(calibration: Calibration, start: StartForecast) -> tuple[float, float]:
    found = calibration.apply(start, NOW)
    assert found.earliest is not None
    assert found.latest is not None
    assert found.likely == start.likely
    return (found.earliest - NOW).total_seconds(), (found.latest - NOW).total_seconds()


def test_without_a_history_the_interval_is_the_planner_s_own_range_somewhat_widened() -> None:
    early, late = bounds(Calibration(), forecast(300, 600, 1200))
    assert 30 < early < 300
    assert 1200 < late < 4500
    assert bounds(Calibration(), forecast(600, 600, 600))[0] < 600  # a range of nothing is never right
    assert bounds(Calibration(), forecast(600, 600, None))[1] > 2 * 600
    unknown = replace(forecast(0, 1, 2), code=StartCode.NOT_KNOWN, likely=None)
    assert Calibration().apply(unknown, NOW) == unknown


def test_the_interval_follows_the_errors_on_each_side() -> None:
    start = forecast(300, 600, 1200)
    exact = Calibration(made(600 + number % 7) for number in range(300))
    late = Calibration(made(600 + 60 * (number % 100)) for number in range(300))
    early = Calibration(made(600 - 5 * (number % 100)) for number in range(300))
    prior = bounds(Calibration(), start)
    assert prior[0] < bounds(exact, start)[0] <= 600 <= bounds(exact, start)[1] < prior[1]
    assert bounds(late, start)[1] > prior[1]
    assert bounds(late, start)[0] > prior[0]
    assert bounds(early, start)[0] < bounds(exact, start)[0]
    assert bounds(early, start)[1] < prior[1]


def test_a_forecast_that_the_planner_takes_for_vague_stays_wider() -> None:
    calibration = Calibration(made(400 + 10 * (number % 50)) for number in range(200))
    narrow, vague = (bounds(calibration, forecast(early, 600, late)) for early, late in ((580, 640), (100, 3000)))
    assert vague[0] < narrow[0]
    assert vague[1] > narrow[1]


def test_misses_of_the_shown_intervals_widen_the_next_ones() -> None:
    errors = [600 + 10 * (number % 50) for number in range(200)]
    hits = Calibration(made(started_s, late=5000) for started_s in errors)
    misses = Calibration(made(started_s, late=700) for started_s in errors)
    start = forecast(300, 600, 1200)
    assert bounds(misses, start)[1] > bounds(hits, start)[1]


def test_of_a_wait_its_first_forecast_and_the_one_of_its_first_half_are_scored() -> None:
    recorded: list[RecordedForecast] = []
    for seconds in (0, 30, 61, 70, 150, 260, 500, 505):
        start = replace(forecast(0, 0, 0), earliest=at(seconds), likely=at(seconds + 60), latest=at(seconds + 90))
        new = record(start, start, recorded, at(seconds))
        if new is not None:
            recorded.append(new)
    assert [(each.made_at - NOW).total_seconds() for each in recorded] == [0, 61, 150, 260, 500]
    scored = resolved(recorded, at(600))
    assert [(each.made_at - NOW).total_seconds() for each in scored] == [0, 260]
    assert [each.error_s for each in scored] == [540, 280]
    assert [each.is_inside for each in scored] == [False, False]
    assert resolved([], at(600)) == []
    assert record(replace(start, likely=None), start, [], NOW) is None
    found = ForecastAccuracy.of([made(700), made(600), made(60)])
    assert found.sentence == "Of the last 3 expected starts, 67 % fell into their interval; median error 100 s."
    assert ForecastAccuracy.of([]).sentence == "No expected start could be compared with a real one yet."


def arrivals(seed: int, *, load: float, is_bursty: bool = False, has_limits: bool = False) -> Iterator[Arrival]:
    """Jobs of six kinds, each with its own size, user and typical run time, on eight GPUs."""
    chance = Random(seed)
    kinds = [
        (f"user{chance.randrange(4)}", f"kind{number}", chance.choice([1, 1, 2, 4]), math.exp(chance.uniform(5, 8)))
        for number in range(6)
    ]
    spread = 0.6
    mean_gpu_s = sum(gpus * typical_s for _, _, gpus, typical_s in kinds) / len(kinds) * math.exp(spread**2 / 2)
    gap_s, at_s = mean_gpu_s / (8 * load), 0.0
    for number in range(260):
        if not is_bursty:
            at_s += chance.expovariate(1 / gap_s)
        elif number % 15 == 0:
            at_s += chance.expovariate(1 / (15 * gap_s))
        user, kind, gpus, typical_s = chance.choice(kinds)
        duration_s = typical_s * math.exp(chance.gauss(0, spread))
        gang = Gang((GangRole("worker", 1, ResourceRequest(1000, 2**30, gpus)),))
        limit = duration_s * chance.uniform(1.1, 4) if has_limits else None
        name = f"{kind}-{number}"
        yield Arrival(name, at_s, duration_s, gang, gang.shape(), 50, "p", user, limit, title=name)


@pytest.mark.parametrize(
    ("knowledge", "options"),
    [
        (Knowledge.HISTORY, {"load": 0.95}),
        (Knowledge.HISTORY, {"load": 0.8, "is_bursty": True}),
        (Knowledge.KNOWN, {"load": 1.0}),
        (Knowledge.UNKNOWN, {"load": 0.9, "has_limits": True}),
    ],
    ids=["history", "bursts", "known", "limits"],
)
def test_nine_in_ten_intervals_hold_on_every_kind_of_load(knowledge: Knowledge, options: dict[str, float]) -> None:
    whole = Amounts(64_000, 2**38, {"h100": 8})
    scorer = ForecastScorer(most=5, every=timedelta(minutes=10))
    nodes = (NodeSnapshot(NodeId("n"), {}, whole, whole),)
    jobs = tuple(arrivals(1, **options))
    scenario = Scenario("s", nodes, jobs, tick_s=10.0, start=DEFAULT_START, knowledge=knowledge)
    Simulation(scenario, on_plan=scorer, keeps_reasons=False).run()
    found = ForecastAccuracy.of(scorer.scored[WARM_UP:])
    assert found.forecasts > 100
    assert abs(found.inside / found.forecasts - COVERAGE) <= 0.05, found
