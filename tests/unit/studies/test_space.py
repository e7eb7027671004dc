"""Points of a space: in their ranges, on their scales, with what is active and nothing else."""

from __future__ import annotations

import math
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from trainmaster.studies import Parameter, Space
from trainmaster.studies.constraints import parse_constraint
from trainmaster.studies.space import grid_values, in_order, spread, takes, value_at

SCALES = st.sampled_from(["linear", "log", "reverse-log"])


def parameter(**fields: Any) -> Parameter:
    return Parameter.model_validate(fields)


@settings(deadline=None)
@given(
    st.floats(1e-300, 1e300), st.floats(1e-300, 1e300), SCALES, st.floats(0, 1, exclude_max=True), st.integers(1, 50)
)
def test_a_value_is_in_the_range(low: float, high: float, scale: str, place: float, steps: int) -> None:
    one = parameter(type="float", min=min(low, high), max=max(low, high), scale=scale, steps=steps)
    assert takes(one, value_at(one, place))
    assert all(takes(one, value) for value in grid_values(one))


@settings(deadline=None)
@given(st.integers(1, 2**50), st.integers(1, 2**50), SCALES, st.floats(0, 1, exclude_max=True))
def test_a_whole_number_stays_whole(low: int, high: int, scale: str, place: float) -> None:
    one = parameter(type="integer", min=min(low, high), max=max(low, high), scale=scale)
    value = value_at(one, place)
    assert type(value) is int
    assert takes(one, value)


def test_scales_look_closer_where_they_say() -> None:
    log = parameter(type="float", min=0.001, max=1, scale="log")
    mirrored = parameter(type="float", min=0.001, max=1, scale="reverse-log")
    assert math.isclose(value_at(log, 0.5), math.sqrt(0.001))
    assert math.isclose(value_at(mirrored, 0.5), 1.001 - math.sqrt(0.001))
    whole = [
        value_at(parameter(type="integer", min=1, max=100, scale="reverse-log"), place / 100) for place in range(100)
    ]
    assert sum(value > 50 for value in whole) > 75
    assert (whole[0], whole[-1], whole) == (1, 100, sorted(whole))


def test_each_whole_number_has_its_share() -> None:
    dice = parameter(type="integer", min=1, max=6)
    seen = [value_at(dice, place / 600) for place in range(600)]
    assert {number: seen.count(number) for number in range(1, 7)} == dict.fromkeys(range(1, 7), 100)


SPACE = Space(
    in_order(
        {
            "momentum": parameter(type="float", min=0, max=1, when={"optimizer": ["sgd"]}),
            "optimizer": parameter(type="categorical", values=["sgd", "adam"]),
            "nesterov": parameter(type="categorical", values=[True, False], when={"momentum": 0.5}),
            "batch": parameter(type="discrete", values=[16, 32]),
        }
    ),
    (parse_constraint("momentum * batch <= 20"),),
)


@given(st.lists(st.floats(0, 1, exclude_max=True), min_size=4, max_size=4))
def test_a_point_has_what_is_active_and_nothing_else(unit: list[float]) -> None:
    point = SPACE.from_unit(unit)
    assert ("momentum" in point) == (point["optimizer"] == "sgd")
    assert {"optimizer", "batch"} <= point.keys()
    fault = SPACE.fault(point)
    assert fault is None or fault[1].startswith("violates the constraint")


def test_a_grid_has_each_point_that_holds_once() -> None:
    space = Space(
        {"a": parameter(type="integer", min=1, max=3), "b": parameter(type="discrete", values=[1, 2])},
        (parse_constraint("a * b < 6"),),
    )
    assert [(point["a"], point["b"]) for point in space.grid()] == [(1, 1), (1, 2), (2, 1), (2, 2), (3, 1)]
    assert space.size == 6


def test_true_is_not_one() -> None:
    assert not takes(parameter(type="categorical", values=[1, 2]), True)
    assert takes(parameter(type="categorical", values=[1, True]), True)


def test_the_even_sequence_fills_the_cube() -> None:
    cells = {(int(4 * x), int(4 * y)) for x, y in (spread(2, number) for number in range(40))}
    assert len(cells) == 16
