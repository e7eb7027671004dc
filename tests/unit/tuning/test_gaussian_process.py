"""Our own Gaussian process: its slopes are right, and its points are good ones, also in spaces that are no cubes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy.optimize import approx_fprime
from trainmaster.studies import Algorithm, Goal, Parameter, Space
from trainmaster.studies.constraints import parse_constraint
from trainmaster.studies.space import in_order

from scheduler.tuning import ObservedTrial, ProposalRequest
from scheduler.tuning.encoding import UnitCube
from scheduler.tuning.expected_improvement import _expected_improvement, _log_expected, improvement_points
from scheduler.tuning.gaussian_process import (
    GaussianProcess,
    fit_kernel,
    negative_log_likelihood,
    normalised,
    squared_differences,
)
from scheduler.tuning.propose import key_of

MIN = (Goal.MINIMIZE,)
REAL: dict[str, Any] = {"type": "float", "min": -5, "max": 5}
ALL: dict[str, dict[str, Any]] = {
    "lr": {"type": "float", "min": 1e-5, "max": 0.1, "scale": "log"},
    "decay": {"type": "float", "min": 0.5, "max": 0.999, "scale": "reverse-log"},
    "layers": {"type": "integer", "min": 1, "max": 8},
    "width": {"type": "integer", "min": 4, "max": 512, "scale": "log"},
    "batch": {"type": "discrete", "values": [64, 16, 32]},
    "kind": {"type": "categorical", "values": ["sgd", "adam", True, 1]},
    "momentum": {"type": "float", "min": 0, "max": 1, "when": {"kind": ["sgd"]}},
    "one": {"type": "float", "min": 3, "max": 3},
}


def space(*constraints: str, **parameters: dict[str, Any]) -> Space:
    ordered = in_order({name: Parameter.model_validate(one) for name, one in parameters.items()})
    return Space(ordered, tuple(parse_constraint(text) for text in constraints))


def spread(where: Space, count: int) -> list[dict[str, Any]]:
    chance = np.random.default_rng(0)
    return [where.from_unit(chance.random(len(where.parameters)).tolist()) for _ in range(count)]


def drawn(
    where: Space, finished: list[ObservedTrial], count: int, goals: tuple[Goal, ...] = MIN
) -> list[dict[str, Any]]:
    points = improvement_points(ProposalRequest(where, Algorithm.GP, goals, 7, len(finished), count, finished))
    return [next(points).parameters for _ in range(count)]


def test_a_place_and_its_point_are_each_others() -> None:
    where = space(**ALL)
    places = UnitCube(where)
    for point in spread(where, 200):
        (row,) = places.rows([point])
        again = places.point(row)
        assert again.keys() == point.keys()
        for name, value in point.items():
            assert type(again[name]) is type(value)
            assert again[name] == (pytest.approx(value, rel=1e-9) if isinstance(value, float) else value)


def test_the_slopes_of_likelihood_and_expectation_are_those_of_their_values() -> None:
    chance = np.random.default_rng(1)
    rows = chance.random((30, 3))
    rows[:, 2] = chance.integers(3, size=30)
    is_categorical = np.array([False, False, True])
    values = normalised(np.sin(5 * rows[:, 0]) + rows[:, 1] ** 2 + 0.3 * (rows[:, 2] == 1))
    squares = squared_differences(rows, rows, is_categorical)
    logs = np.array([-0.5, 0.3, 0.2, 0.1, -3.0])
    _, slope = negative_log_likelihood(logs, squares, values)
    assert slope == pytest.approx(
        approx_fprime(logs, lambda at: negative_log_likelihood(at, squares, values)[0], 1e-6), abs=1e-3
    )

    reported = _expected_improvement(
        GaussianProcess(fit_kernel(rows, values, is_categorical), rows, values), values, rows[:4] * 0.9, chance
    )
    for _ in range(4):
        row = np.array([*chance.random(2), 1.0])
        value, slope = reported.slope(row)
        assert value == pytest.approx(reported.at(row[None, :])[0])
        by_steps = approx_fprime(row, lambda at: reported.at(at[None, :])[0], 1e-7)
        assert slope[:2] == pytest.approx(by_steps[:2], rel=0.02, abs=0.5)


def test_what_is_expected_far_from_the_best_is_small_but_not_nothing() -> None:
    reach = np.array([-5e3, -101.0, -99.0, -3.0, 0.0, 2.0, 60.0])
    logs, ratios = _log_expected(reach)
    assert np.isfinite(logs).all()
    assert (np.diff(logs) > 0).all()
    assert (np.diff(ratios) < 0).all()
    density, below = math.exp(-4.5) / math.sqrt(2 * math.pi), 0.5 * math.erfc(3 / math.sqrt(2))
    assert logs[3] == pytest.approx(math.log(density - 3 * below), rel=1e-9)
    assert logs[-1] == pytest.approx(math.log(60))


def test_its_points_come_near_the_best_one() -> None:
    where = space(x=REAL, y=REAL, lr=ALL["lr"])

    def cost(point: dict[str, Any]) -> float:
        return float((point["x"] - 1) ** 2 + (point["y"] + 2) ** 2 + 3 * (math.log10(point["lr"]) + 3) ** 2)

    finished = [ObservedTrial(point, (cost(point),)) for point in spread(where, 8)]
    for _ in range(5):
        finished += [ObservedTrial(point, (cost(point),)) for point in drawn(where, finished, 4)]
    by_chance = min(cost(point) for point in spread(where, 1000))
    assert min(one.values[0] for one in finished) < by_chance


def test_points_side_by_side_differ_and_satisfy_constraints() -> None:
    where = space("layers * batch <= 128", **ALL)
    points = [point for point in spread(where, 60) if where.holds(point)][:20]
    finished = [ObservedTrial(point, (point["lr"] + point["layers"],)) for point in points]
    found = drawn(where, finished, 6, (Goal.MAXIMIZE,))
    assert all(where.fault(point) is None for point in found)
    assert len({key_of(point) for point in found}) == 6
    assert found == drawn(where, finished, 6, (Goal.MAXIMIZE,))


@pytest.mark.parametrize("values", [[1.0] * 12, [1e300 * (-1) ** n for n in range(12)], [10.0**n for n in range(12)]])
def test_results_that_say_little_or_much_are_no_obstacle(values: list[float]) -> None:
    where = space(x=REAL, kind=ALL["kind"])
    finished = [ObservedTrial(point, (value,)) for point, value in zip(spread(where, 12), values, strict=True)]
    assert all(where.fault(point) is None for point in drawn(where, finished, 2))


def test_only_words_to_choose_from() -> None:
    where = space(a={"type": "categorical", "values": ["x", "y", "z"]}, b={"type": "categorical", "values": [True, 1]})
    finished = [ObservedTrial(point, (float(point["a"] != "y"),)) for point in spread(where, 10)]
    assert drawn(where, finished, 1)[0]["a"] == "y"
