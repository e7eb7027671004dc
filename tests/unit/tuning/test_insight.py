"""What trials say of a study: which parameters matter, and what more of them would bring."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest
from trainmaster.studies import Goal, Parameter, ParameterType, Space

from scheduler.tuning.engine import importance
from scheduler.tuning.prediction import predict
from scheduler.tuning.request import ObservedTrial

UNIT = Parameter(type=ParameterType.FLOAT, min=0, max=1)
SPACE = Space({"x": UNIT, "y": UNIT})


def trials(count: int, seed: int = 1) -> list[ObservedTrial]:
    random = Random(seed)
    points = [{"x": random.random(), "y": random.random()} for _ in range(count)]
    return [ObservedTrial(point, (point["x"], -point["y"])) for point in points]


def test_the_parameter_that_decides_is_the_important_one_of_each_metric() -> None:
    goals = (Goal.MINIMIZE, Goal.MINIMIZE)
    for metric, name in ((0, "x"), (1, "y")):
        first, second = importance(SPACE, goals, trials(100), metric).parameters
        assert (first.name, first.trials) == (name, 100)
        assert (first.importance or 0) > 0.7
        assert (first.importance or 0) + (second.importance or 0) == pytest.approx(1)
    both = importance(SPACE, goals, trials(100), None)
    assert min(one.importance or 0 for one in both.parameters) > 0.05


def test_a_parameter_that_few_trials_have_is_not_known() -> None:
    space = Space({"x": UNIT, "y": UNIT, "z": UNIT})
    some = [replace(one, parameters={**one.parameters, "z": 0.5 + n / 100}) for n, one in enumerate(trials(9))]
    found = importance(space, (Goal.MINIMIZE, Goal.MINIMIZE), [*some, *trials(50, seed=2)], 0)
    assert [(one.name, one.trials) for one in found.parameters] == [("x", 59), ("y", 59), ("z", 9)]
    assert found.parameters[2].importance is None
    assert sum(one.importance or 0 for one in found.parameters) == pytest.approx(1)


def test_it_is_not_known_of_few_or_equal_results() -> None:
    equal = [ObservedTrial(one.parameters, (1.0,)) for one in trials(50)]
    assert "10 are needed" in importance(SPACE, (Goal.MINIMIZE,), trials(9), 0).reason
    assert "the same" in importance(SPACE, (Goal.MINIMIZE,), equal, None).reason
    assert "17 are needed" in predict([float(number) for number in range(16, 0, -1)], 10, 1).reason
    assert predict([float(number) for number in range(17, 0, -1)], 10, 1).checked == 2
    assert "the same" in predict([0.5] * 50, 10, 1).reason
    assert "first results are all the same" in predict([0.5] * 19 + [0.4], 10, 1).reason


def test_a_prediction_is_the_same_twice_grows_with_the_trials_and_is_never_worse_than_now() -> None:
    random = Random(3)
    costs = [random.gauss(0, 1) for _ in range(80)]
    found = predict(costs, 100, 7)
    assert found == predict(costs, 100, 7)
    assert found.points[-1].more == 100
    for before, after in pairwise(found.points):
        assert after.low <= before.low
        assert after.likely <= before.likely
    assert all(one.low <= one.likely <= one.high <= min(costs) for one in found.points)
    assert 0 < (found.chance or 0) < 1
    assert found.held >= found.checked / 2


def test_the_interval_of_80_percent_holds_about_as_often() -> None:
    random = Random(5)
    held = reported = 0
    for seed in range(24):
        costs = [random.gauss(0, 1) for _ in range(80)]
        found = predict(costs[:40], 40, seed)
        if found.points:
            reported += 1
            held += found.points[-1].low <= min(costs) <= found.points[-1].high
    assert reported >= 18
    assert held >= 0.65 * reported


def test_no_forecast_is_given_where_backtests_fail() -> None:
    """Each trial far better than all before: no tail of the old ones tells of that."""
    found = predict([-float(number) for number in range(60)], 10, 1)
    assert "something else came" in found.reason
    assert not found.points
