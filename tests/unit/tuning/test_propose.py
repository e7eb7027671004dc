"""Proposals: the same question has the same answer, nothing is tried twice, and results are learnt from."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from typing import Any

import pytest
from trainmaster.studies import Algorithm, Goal, Parameter, Space
from trainmaster.studies.constraints import parse_constraint
from trainmaster.studies.space import in_order

from scheduler.tuning import Observed, Proposal, Question, chosen_algorithm, propose
from scheduler.tuning.propose import gp_is_there, key_of, startup_trials
from scheduler.tuning.proposers import Proposers

MIN = (Goal.MINIMIZE,)


def space(*constraints: str, **parameters: dict[str, Any]) -> Space:
    ordered = in_order({name: Parameter.model_validate(one) for name, one in parameters.items()})
    return Space(ordered, tuple(parse_constraint(text) for text in constraints))


MIXED = space(
    "layers * batch <= 128",
    lr={"type": "float", "min": 1e-5, "max": 0.1, "scale": "log"},
    decay={"type": "float", "min": 0.5, "max": 0.999, "scale": "reverse-log"},
    layers={"type": "integer", "min": 1, "max": 8},
    batch={"type": "discrete", "values": [64, 16, 32]},
    kind={"type": "categorical", "values": ["sgd", "adam", True, 1]},
    momentum={"type": "float", "min": 0, "max": 1, "when": {"kind": ["sgd"]}},
)
PLAIN = space(x={"type": "float", "min": -5, "max": 5}, y={"type": "float", "min": -5, "max": 5})
ALGORITHMS = [Algorithm.TPE, Algorithm.QMC, Algorithm.RANDOM]


def cost(point: dict[str, Any]) -> tuple[float]:
    return ((point["x"] - 1) ** 2 + (point["y"] + 2) ** 2,)


def observed(points: Sequence[Proposal]) -> list[Observed]:
    return [Observed(one.parameters, cost(one.parameters), one.memo) for one in points]


def searched(algorithm: Algorithm, rounds: int, *, parallel: int = 4, where: Space = PLAIN) -> list[Observed]:
    finished: list[Observed] = []
    for number in range(rounds):
        question = Question(where, algorithm, MIN, 7, number * parallel, parallel, finished)
        finished = [*finished, *observed(propose(question))]
    return finished


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_same_question_has_the_same_answer_and_no_point_is_there_twice(algorithm: Algorithm) -> None:
    finished: list[Observed] = []
    seen: set[str] = set()
    pending: list[Proposal] = []
    for number in range(8):
        question = Question(MIXED, algorithm, MIN, 3, number * 3, 3, finished, pending)
        found = propose(question)
        assert found == propose(question)
        assert len(found) == 3
        assert all(MIXED.fault(one.parameters) is None for one in found)
        keys = {key_of(one.parameters) for one in found}
        assert len(keys) == 3
        assert not keys & seen
        seen |= keys
        finished = [*finished, *(Observed(one.parameters, (one.parameters["lr"],), one.memo) for one in pending)]
        pending = found


@pytest.mark.parametrize("algorithm", [Algorithm.TPE, Algorithm.CMA_ES])
def test_what_learns_is_better_than_chance(algorithm: Algorithm) -> None:
    by_chance = min(one.values for one in searched(Algorithm.RANDOM, 12))
    learnt = [one.values for one in searched(algorithm, 12)]
    assert min(learnt) < by_chance
    assert sum(v for (v,) in learnt[-12:]) < sum(v for (v,) in learnt[:12])


@pytest.mark.skipif(not gp_is_there(), reason="Optuna's GP needs torch")
def test_gp_learns_too_and_keeps_away_from_what_is_pending() -> None:
    finished = searched(Algorithm.QMC, 3)
    question = Question(PLAIN, Algorithm.GP, MIN, 7, 12, 2, finished)
    first = propose(question)
    assert len({key_of(one.parameters) for one in first}) == 2
    again = propose(replace(question, count=1, pending=first))
    assert key_of(again[0].parameters) not in {key_of(one.parameters) for one in first}


def test_points_of_the_user_come_first() -> None:
    given = ({"x": 1.0, "y": 1.0}, {"x": 2.0, "y": 2.0})
    question = Question(PLAIN, Algorithm.RANDOM, MIN, 1, 0, 3, initial=given)
    found = propose(question)
    assert [one.parameters for one in found[:2]] == list(given)
    assert found[0].memo == {"origin": "initial"}
    assert propose(replace(question, index=1, count=1))[0].parameters == given[1]
    assert propose(replace(question, index=2, count=1))[0].parameters not in given


@pytest.mark.parametrize("algorithm", [Algorithm.GRID, Algorithm.RANDOM, Algorithm.TPE, Algorithm.QMC])
def test_a_finite_space_is_tried_once_and_then_no_more(algorithm: Algorithm) -> None:
    small = space("a + b < 8", a={"type": "integer", "min": 1, "max": 4}, b={"type": "discrete", "values": [1, 2, 4]})
    points = list(small.grid())
    question = Question(small, algorithm, MIN, 5, 0, 100)
    found = [one.parameters for one in propose(question)]
    assert sorted(map(key_of, found)) == sorted(map(key_of, points))
    tried = [Observed(point, (1.0,)) for point in points[:5]]
    rest = replace(question, finished=tried, pending=[Proposal(points[5])], spoilt=points[6:8])
    assert sorted(key_of(one.parameters) for one in propose(rest)) == sorted(map(key_of, points[8:]))


def test_a_grid_comes_in_an_order_of_the_seed() -> None:
    small = space(a={"type": "integer", "min": 1, "max": 9})
    orders = {
        tuple(one.parameters["a"] for one in propose(Question(small, Algorithm.GRID, MIN, seed, 0, 9)))
        for seed in range(4)
    }
    assert len(orders) == 4


def test_cma_es_goes_on_from_what_its_trials_keep() -> None:
    finished = searched(Algorithm.CMA_ES, 4)
    assert any(one.memo for one in finished)
    bare = [replace(one, memo={}) for one in finished]
    question = Question(PLAIN, Algorithm.CMA_ES, MIN, 7, 16, 1, finished)
    assert propose(question) == propose(question)
    assert propose(question) != propose(replace(question, finished=bare))


def test_auto_is_gp_where_it_is_good_and_there() -> None:
    def chosen(where: Space, trials: int | None, goals: Sequence[Goal] = MIN, *, has_gp: bool = True) -> Algorithm:
        return chosen_algorithm(where, Algorithm.AUTO, goals, trials, has_gp=has_gp)

    assert chosen(PLAIN, 100) is Algorithm.GP
    assert chosen(PLAIN, 100, has_gp=False) is Algorithm.TPE
    assert chosen(PLAIN, 1000) is Algorithm.TPE
    assert chosen(PLAIN, None) is Algorithm.TPE
    assert chosen(MIXED, 100) is Algorithm.TPE
    assert chosen(PLAIN, 100, (Goal.MINIMIZE, Goal.MAXIMIZE)) is Algorithm.TPE
    assert chosen_algorithm(PLAIN, Algorithm.QMC, MIN, 100) is Algorithm.QMC


def test_several_metrics_are_learnt_from_together() -> None:
    goals = (Goal.MINIMIZE, Goal.MAXIMIZE)
    finished = [Observed(one.parameters, (one.values[0], -one.values[0])) for one in searched(Algorithm.QMC, 5)]
    assert len(finished) >= startup_trials(PLAIN)
    assert len(propose(Question(PLAIN, Algorithm.TPE, goals, 1, 20, 2, finished))) == 2


def test_where_gps_process_dies_the_points_are_tpes_and_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    class Dead:
        def submit(self, *_: object) -> Any:
            raise BrokenProcessPool

        def shutdown(self, **_: object) -> None:
            pass

    proposers = Proposers()
    monkeypatch.setattr(proposers, "_pool", Dead())
    question = Question(PLAIN, Algorithm.GP, MIN, 7, 12, 2, searched(Algorithm.QMC, 3))
    found = proposers(question)
    assert [one.memo for one in found] == [{"instead_of": "gp"}] * 2
    assert [one.parameters for one in found] == [
        one.parameters for one in propose(replace(question, algorithm=Algorithm.TPE))
    ]
