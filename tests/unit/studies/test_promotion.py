"""Who goes on from whose checkpoint: halving's promotions, a population's exploits, and changed parameters."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from trainmaster.spec import SpecError
from trainmaster.studies import Fidelity, Goal, Population, Space, parse_study

from core.domain.studies.curves import Trace
from core.domain.studies.trial_schedulers import RungResult, due_promotions, pbt_replacements
from scheduler.control.studies.promotion import perturbed

STUDY: dict[str, Any] = {
    "name": "search",
    "template": {"command": "train"},
    "parameters": {"lr": {"type": "float", "min": 0.001, "max": 1, "scale": "log"}},
    "metric": "loss",
    "goal": "minimize",
    "budget": {"trials": 20, "parallel": 4},
}


def mistakes(**changes: Any) -> dict[str, str]:
    with pytest.raises(SpecError) as caught:
        parse_study({**STUDY, **changes})
    return {mistake.path: mistake.message for mistake in caught.value.mistakes}


def test_rungs_grow_up_to_the_largest_size() -> None:
    assert Fidelity(parameter="epochs", min=2, max=50, reduction=4).rungs == (2, 8, 32, 50)
    assert Fidelity(parameter="epochs", min=1, max=9).rungs == (1, 3, 9)


def test_one_in_three_of_each_rung_goes_on_once_the_highest_first() -> None:
    halving = Fidelity(parameter="epochs", min=1, max=9)
    costs = [5.0, 1.0, 4.0, 2.0, 3.0, 6.0]
    first = [RungResult(number, 0, cost) for number, cost in enumerate(costs, 1)]
    assert [one.number for one in due_promotions(halving, first[:2], set())] == []
    assert [one.number for one in due_promotions(halving, first, set())] == [2, 4]
    assert [one.number for one in due_promotions(halving, first, {2})] == [4]
    second = [RungResult(7, 1, 0.9), RungResult(8, 1, 0.8), RungResult(9, 1, 1.1)]
    assert [one.number for one in due_promotions(halving, [*first, *second], {2})] == [8, 4]
    top = [RungResult(number, 2, 0.1 * number) for number in range(10, 16)]
    assert due_promotions(halving, top, set()) == []


def trace(number: int, points: list[tuple[int, float]], goal: Goal = Goal.MINIMIZE) -> Trace:
    made = Trace(number, goal)
    made.add(points)
    return made


def curves(*last: float, step: int = 10, goal: Goal = Goal.MINIMIZE) -> list[Trace]:
    return [
        trace(number, [(at, value + step - at) for at in range(1, step + 1)], goal)
        for number, value in enumerate(last, 1)
    ]


def test_the_worst_quarter_gives_way_to_the_best_at_each_interval() -> None:
    population = Population(interval=5)
    [found] = pbt_replacements(population, curves(4.0, 1.0, 3.0, 2.0), [])
    assert (found.number, found.step, found.parents) == (1, 10, (2,))
    assert found.sentence == "it was 4 of 4 at step 10"
    [found] = pbt_replacements(population, curves(4.0, 1.0, 3.0, 2.0, goal=Goal.MAXIMIZE), [])
    assert (found.number, found.parents) == (2, (1,))


def test_between_two_intervals_the_last_one_counts_and_nobody_is_judged_before_the_first() -> None:
    population = Population(interval=5)
    assert pbt_replacements(population, curves(4.0, 1.0, 3.0, 2.0, step=4), []) == []
    # Who fell behind since step 5 is looked at when all are at step 10.
    late = [trace(n, [(at, float(n) if at <= 5 else -float(n)) for at in range(1, 8)]) for n in range(1, 5)]
    [found] = pbt_replacements(population, late, [])
    assert (found.number, found.step) == (4, 5)


def test_an_heir_has_an_interval_before_it_is_looked_at() -> None:
    population = Population(interval=5)
    others = curves(1.0, 2.0, 3.0)
    heir = trace(9, [(at, 100.0) for at in range(8, 11)])
    assert pbt_replacements(population, [*others, heir], []) == []
    heir = trace(9, [(at, 100.0) for at in range(6, 11)])
    assert [one.number for one in pbt_replacements(population, [*others, heir], [])] == [9]


def test_of_equal_ones_nobody_gives_way() -> None:
    assert pbt_replacements(Population(interval=5), curves(1.0, 1.0, 1.0, 1.0), []) == []


def test_those_that_are_over_are_compared_with_and_inherited_from() -> None:
    running, over = curves(4.0, 3.0, 2.0, 1.0)[:3], curves(4.0, 3.0, 2.0, 1.0)[3:]
    [found] = pbt_replacements(Population(interval=5), running, over)
    assert (found.number, found.parents) == (1, (4,))


def test_of_who_has_trained_to_the_end_nothing_is_left_to_go_on_from() -> None:
    running, over = curves(4.0, 3.0, 2.0, 1.0)[:3], curves(4.0, 3.0, 2.0, 1.0)[3:]
    over[0].is_over = True
    assert pbt_replacements(Population(interval=5), running, over) == []
    more = [*running, *(trace(number, [(at, 5.0) for at in range(1, 11)]) for number in range(5, 9))]
    found = pbt_replacements(Population(interval=5), more, over)
    assert {one.parents for one in found} == {(3,)}


def test_one_far_behind_holds_up_nobody_but_who_comes_soon_is_waited_for() -> None:
    population, three = Population(interval=5), curves(4.0, 1.0, 3.0)
    # In place of one that failed, say: when it has come as far, the others have long ended.
    [found] = pbt_replacements(population, [*three, trace(9, [(1, 9.0), (2, 9.0)])], [])
    assert (found.number, found.parents, found.sentence) == (1, (2,), "it was 3 of 3 at step 10")
    assert pbt_replacements(population, [*three, trace(9, [(at, 0.5) for at in range(1, 9)])], []) == []
    # Who is far behind and gives way itself is none of them any more.
    last = trace(9, [(at, 9.0) for at in range(1, 6)])
    assert [one.number for one in pbt_replacements(population, [*three, last], [])] == [9]
    # Two that are left of many are not both the worst.
    slow = [trace(number, [(1, 9.0)]) for number in range(3, 9)]
    assert [one.number for one in pbt_replacements(population, [*curves(2.0, 1.0), *slow], [])] == [1]


SPACE = Space.of(
    parse_study(
        {
            **STUDY,
            "parameters": {
                "lr": {"type": "float", "min": 0.001, "max": 1, "scale": "log"},
                "layers": {"type": "integer", "min": 1, "max": 8},
                "batch": {"type": "discrete", "values": [64, 16, 32]},
                "keep": {"type": "float", "min": 0.1, "max": 0.999, "scale": "reverse-log"},
                "opt": {"type": "categorical", "values": ["sgd", "adam"]},
                "momentum": {"type": "float", "min": 0, "max": 0.99, "when": {"opt": "sgd"}},
            },
            "constraints": ["layers * batch <= 256"],
        }
    )
)


def test_changed_parameters_are_neighbours_inside_the_space() -> None:
    point = {"lr": 0.1, "layers": 4, "batch": 32, "keep": 0.9, "opt": "sgd", "momentum": 0.0}
    population = Population(interval=1, resample=0)
    seen = [perturbed(SPACE, point, population, Random(seed)) for seed in range(200)]
    assert all(SPACE.fault(one) is None for one in seen)
    assert {round(one["lr"], 6) for one in seen} == {0.12, 0.083333}
    assert {one["layers"] for one in seen} == {3, 5}
    assert {one["batch"] for one in seen} == {16, 64}
    assert {one["opt"] for one in seen} == {"sgd"}
    assert all(one != point for one in seen)


def test_drawn_anew_a_condition_brings_and_takes_parameters() -> None:
    point = {"lr": 0.1, "layers": 4, "batch": 32, "keep": 0.9, "opt": "sgd", "momentum": 0.5}
    seen = [perturbed(SPACE, point, Population(interval=1, resample=1), Random(seed)) for seed in range(100)]
    assert all(SPACE.fault(one) is None for one in seen)
    assert {one["opt"] for one in seen} == {"sgd", "adam"}
    assert all(("momentum" in one) == (one["opt"] == "sgd") for one in seen)


def test_where_no_change_is_allowed_the_parents_values_are_retained() -> None:
    space = Space.of(parse_study({**STUDY, "parameters": {"n": {"type": "integer", "min": 3, "max": 3}}}))
    assert perturbed(space, {"n": 3}, Population(interval=1), Random(1)) == {"n": 3}


@pytest.mark.parametrize(
    ("changes", "path", "words"),
    [
        ({"fidelity": {"parameter": "lr", "min": 1, "max": 9}}, "fidelity.parameter", "is also a searched parameter"),
        ({"fidelity": {"parameter": "a b", "min": 1, "max": 9}}, "fidelity.parameter", "is not a parameter name"),
        ({"fidelity": {"parameter": "epochs", "min": 9, "max": 9}}, "fidelity", "there are no rungs"),
        ({"fidelity": {"parameter": "epochs", "min": 0, "max": 9}}, "fidelity.min", "at least 1"),
        ({"fidelity": {"parameter": "epochs", "min": 1}}, "fidelity.max", "is missing"),
        ({"template": None, "population": {"interval": 2}}, "population", "has no template"),
        ({"population": {"interval": 2, "quantile": 0.1}}, "population.quantile", "the worst 10 % of 4 trials is none"),
        ({"population": {"interval": 2, "quantile": 0.6}}, "population.quantile", "0.5"),
        ({"population": {"interval": 2}, "stopping": "median"}, "stopping", "cannot be combined with population"),
        (
            {"population": {"interval": 2}, "fidelity": {"parameter": "e", "min": 1, "max": 3}},
            "population",
            "omit one of the two",
        ),
        (
            {
                "population": {"interval": 2},
                "metric": None,
                "goal": None,
                "metrics": {"a": "minimize", "b": "maximize"},
            },
            "population",
            "one metric",
        ),
    ],
)
def test_what_is_wrong_is_reported_by_its_field(changes: dict[str, Any], path: str, words: str) -> None:
    reported = mistakes(**changes)
    assert path in reported, reported
    with pytest.raises(SpecError) as caught:
        parse_study({**STUDY, **changes})
    assert words in " ".join(f"{one.message} {one.hint or ''}" for one in caught.value.mistakes if one.path == path)
