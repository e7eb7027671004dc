"""Proposals: the same question has the same answer, nothing is tried twice, and results are learnt from."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, Future
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from itertools import count, islice
from typing import Any

import pytest
from trainmaster.studies import Algorithm, Goal, Parameter, Space
from trainmaster.studies.constraints import parse_constraint
from trainmaster.studies.space import in_order

from scheduler.tuning import (
    ObservedTrial,
    Proposal,
    ProposalRequest,
    choose_algorithm,
    chosen_algorithm,
    expected_improvement,
    propose,
)
from scheduler.tuning.propose import has_gaussian_process, key_of, shuffled
from scheduler.tuning.proposers import Proposers
from scheduler.tuning.request import startup_trials

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


def observed(points: Sequence[Proposal]) -> list[ObservedTrial]:
    return [ObservedTrial(one.parameters, cost(one.parameters), one.memo) for one in points]


def searched(algorithm: Algorithm, rounds: int, *, parallel: int = 4, where: Space = PLAIN) -> list[ObservedTrial]:
    finished: list[ObservedTrial] = []
    for number in range(rounds):
        question = ProposalRequest(where, algorithm, MIN, 7, number * parallel, parallel, finished)
        finished = [*finished, *observed(propose(question))]
    return finished


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_same_question_has_the_same_answer_and_no_point_is_there_twice(algorithm: Algorithm) -> None:
    finished: list[ObservedTrial] = []
    seen: set[str] = set()
    pending: list[Proposal] = []
    for number in range(8):
        question = ProposalRequest(MIXED, algorithm, MIN, 3, number * 3, 3, finished, pending)
        found = propose(question)
        assert found == propose(question)
        assert len(found) == 3
        assert all(MIXED.fault(one.parameters) is None for one in found)
        keys = {key_of(one.parameters) for one in found}
        assert len(keys) == 3
        assert not keys & seen
        seen |= keys
        finished = [*finished, *(ObservedTrial(one.parameters, (one.parameters["lr"],), one.memo) for one in pending)]
        pending = found


@pytest.mark.parametrize("algorithm", [Algorithm.TPE, Algorithm.CMA_ES])
def test_what_learns_is_better_than_chance(algorithm: Algorithm) -> None:
    by_chance = min(one.values for one in searched(Algorithm.RANDOM, 12))
    learnt = [one.values for one in searched(algorithm, 12)]
    assert min(learnt) < by_chance
    assert sum(v for (v,) in learnt[-12:]) < sum(v for (v,) in learnt[:12])


@pytest.mark.parametrize(
    "with_torch",
    [False, pytest.param(True, marks=pytest.mark.skipif(not has_gaussian_process(), reason="needs torch"))],
)
def test_gp_learns_too_and_keeps_away_from_what_is_pending(monkeypatch: pytest.MonkeyPatch, with_torch: bool) -> None:
    # The package's function of this name hides the module.
    monkeypatch.setattr(sys.modules["scheduler.tuning.propose"], "has_gaussian_process", lambda: with_torch)
    finished = searched(Algorithm.QMC, 3)
    question = ProposalRequest(PLAIN, Algorithm.GP, MIN, 7, 12, 2, finished)
    first = propose(question)
    assert len({key_of(one.parameters) for one in first}) == 2
    again = propose(replace(question, count=1, pending=first))
    assert key_of(again[0].parameters) not in {key_of(one.parameters) for one in first}


def test_points_of_the_user_come_first() -> None:
    given = ({"x": 1.0, "y": 1.0}, {"x": 2.0, "y": 2.0})
    question = ProposalRequest(PLAIN, Algorithm.RANDOM, MIN, 1, 0, 3, initial=given)
    found = propose(question)
    assert [one.parameters for one in found[:2]] == list(given)
    assert found[0].memo == {"origin": "initial"}
    assert propose(replace(question, index=1, count=1))[0].parameters == given[1]
    assert propose(replace(question, index=2, count=1))[0].parameters not in given


@pytest.mark.parametrize("algorithm", [Algorithm.GRID, Algorithm.RANDOM, Algorithm.TPE, Algorithm.QMC])
def test_a_finite_space_is_tried_once_and_then_no_more(algorithm: Algorithm) -> None:
    small = space("a + b < 8", a={"type": "integer", "min": 1, "max": 4}, b={"type": "discrete", "values": [1, 2, 4]})
    points = list(small.grid())
    question = ProposalRequest(small, algorithm, MIN, 5, 0, 100)
    found = [one.parameters for one in propose(question)]
    assert sorted(map(key_of, found)) == sorted(map(key_of, points))
    tried = [ObservedTrial(point, (1.0,)) for point in points[:5]]
    rest = replace(question, finished=tried, pending=[Proposal(points[5])], failed_points=points[6:8])
    assert sorted(key_of(one.parameters) for one in propose(rest)) == sorted(map(key_of, points[8:]))


def test_a_grid_comes_in_an_order_of_the_seed() -> None:
    small = space(a={"type": "integer", "min": 1, "max": 9})
    orders = {
        tuple(one.parameters["a"] for one in propose(ProposalRequest(small, Algorithm.GRID, MIN, seed, 0, 9)))
        for seed in range(4)
    }
    assert len(orders) == 4


def test_cma_es_goes_on_from_what_its_trials_keep() -> None:
    finished = searched(Algorithm.CMA_ES, 4)
    assert any(one.memo for one in finished)
    bare = [replace(one, memo={}) for one in finished]
    question = ProposalRequest(PLAIN, Algorithm.CMA_ES, MIN, 7, 16, 1, finished)
    assert propose(question) == propose(question)
    assert propose(question) != propose(replace(question, finished=bare))


def test_auto_takes_turns_where_a_process_helps_and_is_tpe_elsewhere() -> None:
    def chosen(where: Space, trials: int | None, goals: Sequence[Goal] = MIN) -> Algorithm:
        return chosen_algorithm(where, Algorithm.AUTO, goals, trials)

    assert chosen(PLAIN, 100) is Algorithm.AUTO
    assert chosen(PLAIN, 1000) is Algorithm.TPE
    assert chosen(PLAIN, None) is Algorithm.TPE
    assert chosen(MIXED, 100) is Algorithm.TPE
    assert chosen(PLAIN, 100, (Goal.MINIMIZE, Goal.MAXIMIZE)) is Algorithm.TPE
    assert chosen_algorithm(PLAIN, Algorithm.QMC, MIN, 100) is Algorithm.QMC


def test_what_auto_is_comes_with_the_reason() -> None:
    def reason(where: Space, trials: int | None, goals: Sequence[Goal] = MIN) -> str:
        return choose_algorithm(where, Algorithm.AUTO, goals, trials).reason

    assert reason(PLAIN, 100).startswith("TPE and GP in turns, since the study has one metric")
    assert reason(PLAIN, 1000, (Goal.MINIMIZE, Goal.MAXIMIZE)) == (
        "TPE, since the study has 2 metrics and its budget has more than 250 trials."
    )
    assert reason(PLAIN, None) == "TPE, since its budget has no number of trials."
    assert choose_algorithm(PLAIN, Algorithm.QMC, MIN, 100).reason == ""


def test_in_turns_each_knows_of_the_others_points_and_both_draw_about_half(monkeypatch: pytest.MonkeyPatch) -> None:
    # What each source is told of the other's points, and who drew which.
    reported: list[tuple[str, list[str]]] = []

    def source(name: str) -> Any:
        def points(_: ProposalRequest, others: Sequence[Proposal]) -> Iterator[Proposal]:
            for number in count():
                reported.append((name, [one.parameters["who"] for one in others]))
                yield Proposal({"who": name, "number": number})

        return points

    monkeypatch.setattr(expected_improvement, "sample_points", source("tpe"))
    monkeypatch.setattr(expected_improvement, "improvement_points", source("process"))

    def names(index: int, length: int) -> list[str]:
        found = expected_improvement.interleave(ProposalRequest(PLAIN, Algorithm.AUTO, MIN, 7, index))
        return [one.parameters["who"] for one in islice(found, length)]

    whole = names(0, 400)
    assert 190 <= whole.count("tpe") <= 210
    for name, others in reported:
        assert name not in others
    assert [len(others) for _, others in reported] == [
        sum(one != name for one in whole[:place]) for place, name in enumerate(whole)
    ]
    for start in range(30):  # in each round of 8, whatever was drawn before
        assert 3 <= names(start, 8).count("tpe") <= 5
    for stride in range(1, 17):  # and where of each few points one is used
        assert 0.3 <= [names(stride * turn, 1) for turn in range(100)].count(["tpe"]) / 100 <= 0.7


def test_what_is_drawn_in_turns_is_the_same_again_and_keeps_away_from_what_is_pending() -> None:
    finished = searched(Algorithm.QMC, 3)
    question = ProposalRequest(PLAIN, Algorithm.AUTO, MIN, 7, 12, 4, finished)
    first = propose(question)
    assert first == propose(question)
    again = propose(replace(question, index=16, pending=first))
    assert len({key_of(one.parameters) for one in first + again}) == 8


def test_several_metrics_are_learnt_from_together() -> None:
    goals = (Goal.MINIMIZE, Goal.MAXIMIZE)
    finished = [ObservedTrial(one.parameters, (one.values[0], -one.values[0])) for one in searched(Algorithm.QMC, 5)]
    assert len(finished) >= startup_trials(PLAIN)
    assert len(propose(ProposalRequest(PLAIN, Algorithm.TPE, goals, 1, 20, 2, finished))) == 2


class Failing(Executor):
    def __init__(self, error: Exception) -> None:
        self.error = error

    def submit(self, *_: Any, **__: Any) -> Any:
        raise self.error


@pytest.mark.parametrize("error", [ImportError("no torch"), ValueError("not positive definite"), TimeoutError()])
def test_where_gp_fails_in_any_way_the_points_are_tpes(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    proposers = Proposers(make_pool=lambda: Failing(error))
    monkeypatch.setattr("scheduler.tuning.proposers.gp_may_draw", lambda _: True)
    question = ProposalRequest(PLAIN, Algorithm.GP, MIN, 7, 12, 2, searched(Algorithm.QMC, 3))
    assert [one.memo for one in proposers(question)] == [{"instead_of": "gp"}] * 2


def test_without_torch_no_process_is_begun_for_gp_over_several_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    proposers = Proposers(make_pool=lambda: pytest.fail("a process was begun"))
    monkeypatch.setattr("scheduler.tuning.proposers.gp_may_draw", lambda _: False)
    finished = [replace(one, values=(*one.values, 0.0)) for one in searched(Algorithm.QMC, 3)]
    question = ProposalRequest(PLAIN, Algorithm.GP, MIN * 2, 7, 12, 2, finished)
    assert [one.memo for one in proposers(question)] == [{"instead_of": "gp"}] * 2


def test_where_gps_process_dies_the_points_are_tpes_and_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    proposers = Proposers(make_pool=lambda: Failing(BrokenProcessPool()))
    monkeypatch.setattr("scheduler.tuning.proposers.gp_may_draw", lambda _: True)
    question = ProposalRequest(PLAIN, Algorithm.GP, MIN, 7, 12, 2, searched(Algorithm.QMC, 3))
    found = proposers(question)
    assert [one.memo for one in found] == [{"instead_of": "gp"}] * 2
    assert [one.parameters for one in found] == [
        one.parameters for one in propose(replace(question, algorithm=Algorithm.TPE))
    ]


def test_what_an_algorithm_needs_is_loaded_before_its_first_point_is_requested() -> None:
    """In a Python of its own: here all of it is loaded."""
    script = (
        "import sys, threading\n"
        "from trainmaster.studies import Algorithm\n"
        "from scheduler.tuning.proposers import Proposers\n"
        "for algorithm, loads_ahead in (('tpe', False), ('random', True), ('tpe', True), ('tpe', True)):\n"
        "    Proposers(loads_ahead=loads_ahead).expect(Algorithm(algorithm))\n"
        "    for thread in threading.enumerate():\n"
        "        if thread.name == 'tuning-load': thread.join()\n"
        "    print('optuna' in sys.modules)\n"
    )
    reported = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120)
    assert reported.stdout.split() == ["False", "False", "True", "True"]


def test_what_is_drawn_in_a_process_is_loaded_there_once() -> None:
    requested: list[object] = []

    class Pool(Executor):
        def submit(self, *arguments: Any, **_: Any) -> Any:
            requested.extend(arguments[1:])
            done: Future[None] = Future()
            done.set_exception(BrokenProcessPool())  # which the first draw will meet, too
            return done

    proposers = Proposers(loads_ahead=True, make_pool=Pool)
    for _ in range(3):
        proposers.expect(Algorithm.AUTO)
    for thread in threading.enumerate():
        if thread.name == "tuning-load":
            thread.join(10)
    assert requested == [Algorithm.AUTO]


def test_what_is_loaded_ahead_begins_no_process_once_all_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[object] = []

    class Pool(Failing):
        def __init__(self) -> None:
            super().__init__(BrokenProcessPool())
            begun.append(self)

    monkeypatch.setattr("scheduler.tuning.proposers.gp_may_draw", lambda _: True)
    may_go_on, threads = threading.Event(), list[threading.Thread]()

    class Late(Proposers):
        def _load(self, algorithm: Algorithm) -> None:
            threads.append(threading.current_thread())
            assert may_go_on.wait(30)
            super()._load(algorithm)

    proposers = Late(loads_ahead=True, make_pool=Pool)
    question = ProposalRequest(PLAIN, Algorithm.GP, MIN, 7, 12, 2, searched(Algorithm.QMC, 3))
    for _ in range(2):  # one that breaks is begun anew
        assert [one.memo for one in proposers(question)] == [{"instead_of": "gp"}] * 2
    assert len(begun) == 2
    proposers.expect(Algorithm.AUTO)
    proposers.close()
    may_go_on.set()
    for thread in threading.enumerate():
        if thread.name == "tuning-load":
            thread.join(30)
    assert [thread.daemon for thread in threads] == [True]
    proposers.expect(Algorithm.GP)
    assert [one.memo for one in proposers(question)] == [{"instead_of": "gp"}] * 2
    assert (len(begun), len(threads)) == (2, 1)


def test_a_sampler_that_fails_here_and_now_does_not_end_the_study(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> Any:
        raise ValueError("`nan` is invalid value.")

    monkeypatch.setattr("scheduler.tuning.engine.sample_points", fails)
    question = ProposalRequest(PLAIN, Algorithm.TPE, MIN, 7, 12, 2, searched(Algorithm.QMC, 3))
    found = Proposers()(question)
    assert [one.memo for one in found] == [{"instead_of": "tpe"}] * 2
    assert len({key_of(one.parameters) for one in found}) == 2


def test_gp_makes_no_list_of_a_billion_whole_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["scheduler.tuning.propose"], "has_gaussian_process", lambda: True)
    monkeypatch.setattr("scheduler.tuning.engine.sample_points", lambda *_: pytest.fail("Optuna was asked"))
    wide = space(x={"type": "integer", "min": 0, "max": 10**9})
    known = [ObservedTrial({"x": number * 10**8}, (float(number),)) for number in range(9)]
    (found,) = propose(ProposalRequest(wide, Algorithm.GP, MIN, 1, 9, 1, known))
    assert 0 <= found.parameters["x"] <= 10**9


def test_numbers_are_shuffled_one_place_at_a_time() -> None:
    for size in (1, 2, 10, 1000):
        assert sorted(shuffled(place, size, 5) for place in range(size)) == list(range(size))
    assert [shuffled(place, 1000, 5) for place in range(20)] != [shuffled(place, 1000, 6) for place in range(20)]
    with pytest.raises(ValueError, match="no place 3"):
        shuffled(3, 3, 0)


def test_of_a_large_grid_only_the_places_that_are_requested_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    large = space(**{f"p{number}": {"type": "integer", "min": 1, "max": 10} for number in range(6)})
    looked: list[int] = []
    point_at = Space.grid_point

    def counted(self: Space, place: int) -> Any:
        looked.append(place)
        return point_at(self, place)

    monkeypatch.setattr(Space, "grid_point", counted)
    first = propose(ProposalRequest(large, Algorithm.GRID, MIN, 1, 0, 25))
    done = [ObservedTrial(one.parameters, (1.0,), one.memo) for one in first[:20]]
    pending = first[20:]
    then = propose(ProposalRequest(large, Algorithm.GRID, MIN, 1, 25, 25, finished=done, pending=pending))
    assert len(looked) == 50
    assert len({key_of(one.parameters) for one in first + then}) == 50


def test_a_point_of_the_grid_that_was_drawn_and_never_tried_comes_at_last() -> None:
    small = space(a={"type": "integer", "min": 1, "max": 3}, b={"type": "categorical", "values": ["x", "y"]})
    all_six = propose(ProposalRequest(small, Algorithm.GRID, MIN, 1, 0, 10))
    tried = [ObservedTrial(one.parameters, (1.0,), one.memo) for one in (*all_six[:2], *all_six[3:])]
    (last,) = propose(ProposalRequest(small, Algorithm.GRID, MIN, 1, 5, 10, finished=tried))
    assert last.parameters == all_six[2].parameters
