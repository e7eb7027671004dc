"""What trials came to, when a study is over, and how studies move."""

from __future__ import annotations

import itertools
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trainmaster.spec import parse_spec
from trainmaster.studies import Budget, Goal, parse_study

from core.domain.errors import IllegalTransition
from core.domain.studies.budget import HOPELESS_AFTER, BudgetUsage, commonest, evaluate_budget
from core.domain.studies.results import TrialResult, best, best_so_far, equal_words, pareto, regret, values_of
from core.domain.studies.states import STUDY_MOVES, StudyEvent, StudyState, TrialState, advance_study
from core.domain.studies.trials import trial_spec

T = TrialState
BOTH = (Goal.MINIMIZE, Goal.MAXIMIZE)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=30))
def test_the_front_is_what_nobody_betters(values: Any) -> None:
    results = [TrialResult(number, tuple(map(float, pair))) for number, pair in enumerate(values, start=1)]
    front = {one.number for one in pareto(results, BOTH)}
    for one in results:
        a, b = one.values
        is_beaten = any(c <= a and d >= b and (c, d) != (a, b) for c, d in (other.values for other in results))
        assert (one.number in front) != is_beaten


@given(st.lists(st.floats(-10, 10), min_size=1, max_size=20), st.sampled_from(BOTH))
def test_the_best_so_far_only_grows_and_ends_at_the_best(values: list[float], goal: Goal) -> None:
    results = [TrialResult(number, (value,)) for number, value in enumerate(values, start=1)]
    curve = best_so_far(results, goal)
    winner = best(results, (goal,))
    assert winner is not None
    assert curve[-1] == (winner.number, winner.values[0])
    shown = [value for _, value in regret(results, goal)]
    assert shown == sorted(shown, reverse=True)
    assert shown[-1] == 0


def test_a_missing_metric_or_one_that_is_no_number_is_no_result() -> None:
    assert values_of({"a": 1.0, "b": 2.0}, ["b", "a"]) == (2.0, 1.0)
    assert values_of({"a": 1.0}, ["a", "b"]) is None
    assert values_of({"a": float("nan")}, ["a"]) is None
    assert values_of(None, ["a"]) is None


def spent(**counts: int) -> BudgetUsage:
    return BudgetUsage({T(name): count for name, count in counts.items()})


def test_room_is_what_the_budget_and_the_places_leave() -> None:
    budget = Budget(trials=10, parallel=4)
    assert evaluate_budget(budget, spent()).room == 4
    assert evaluate_budget(budget, spent(running=3, succeeded=2)).room == 1
    assert evaluate_budget(budget, spent(running=1, succeeded=8)).room == 1
    assert evaluate_budget(budget, spent(running=2, succeeded=8)).end is None
    assert evaluate_budget(budget, spent(succeeded=9, failed=1)).end is StudyEvent.SUCCEED
    assert evaluate_budget(budget, spent(failed=4, cancelled=6)).end is StudyEvent.FAIL


def test_time_and_gpu_hours_end_what_runs_too() -> None:
    late = BudgetUsage({T.RUNNING: 2, T.SUCCEEDED: 1}, timedelta(hours=2))
    assert evaluate_budget(Budget(max_time=3600), late) == evaluate_budget(Budget(max_time=3600.0), late)
    assert evaluate_budget(Budget(max_time=3600), late).is_cutting
    hungry = BudgetUsage({T.RUNNING: 2}, gpu_s=7200)
    assert evaluate_budget(Budget(gpu_hours=2), hungry).end is StudyEvent.FAIL
    assert "no trial had ended with a result" in evaluate_budget(Budget(gpu_hours=2), hungry).reason
    assert evaluate_budget(Budget(gpu_hours=2.1, parallel=3), hungry).room == 1


def test_too_many_failures_end_it_with_what_most_of_them_stated() -> None:
    reported = BudgetUsage({T.FAILED: HOPELESS_AFTER}, errors=["no module torch", "out of memory", "no module torch"])
    ended = evaluate_budget(Budget(trials=100), reported)
    assert ended.end is StudyEvent.FAIL
    assert "2 of 3 said: no module torch" in ended.reason
    assert evaluate_budget(Budget(trials=100), spent(failed=50, succeeded=1)).end is None
    assert evaluate_budget(Budget(trials=100, failed_trials=2), spent(failed=3, succeeded=9)).end is StudyEvent.FAIL
    assert evaluate_budget(Budget(trials=100, failed_trials=9), spent(failed=9)).end is None
    assert commonest(["a"]) == "it said: a"


@pytest.mark.parametrize(
    ("results", "is_reported"),
    [
        ([(x, 0.5) for x in range(4)], True),
        ([(x, 0.5) for x in range(3)], False),
        ([(0, 0.5)] * 9, False),
        ([*((x, 0.5) for x in range(9)), (9, 0.25)], False),
        ([], False),
    ],
)
def test_equal_results_of_different_points_are_reported(results: list[tuple[int, float]], *, is_reported: bool) -> None:
    words = equal_words([({"x": x}, (1.0, value)) for x, value in results])
    assert ("whether the script reads its parameters" in words) is is_reported


@pytest.mark.parametrize(("state", "event"), [*itertools.product(StudyState, StudyEvent)])
def test_moves_are_those_of_the_table(state: StudyState, event: StudyEvent) -> None:
    if (state, event) in STUDY_MOVES:
        assert advance_study(state, event) is STUDY_MOVES[state, event]
    else:
        with pytest.raises(IllegalTransition, match="The study cannot be"):
            advance_study(state, event)


def test_a_trials_job_has_its_point_as_arguments_and_a_folder_of_its_own() -> None:
    study = parse_study(
        {
            "name": "a" * 63, "parameters": {"x": {"type": "float", "min": 0, "max": 1}},
            "template": {
                "command": "train", "args": ["--epochs", 3], "output": "output/team/runs", "labels": {"study": "mine"},
                "roles": {"worker": 2, "ps": {"args": ["--serve"]}},
            },
            "metric": "m", "goal": "minimize", "budget": {"trials": 1},
        }
    )  # fmt: skip
    spec = trial_spec(study, 12, {"x": 0.5, "deep": True, "kind": "a b"})
    words = ("--x=0.5", "--deep=true", "--kind=a b")
    assert spec.name == "a" * 60 + "-12"
    assert spec.args == ("--epochs", "3", *words)
    assert spec.roles["ps"].args == ("--serve", *words)
    assert spec.roles["worker"].args is None
    assert spec.output == "output/team/runs/12"
    assert spec.labels == {"study": "mine", "trial": "12"}
    plain = trial_spec(study.model_copy(update={"arguments": False}), 1, {"x": 0.5})
    assert plain.args == ("--epochs", "3")


def test_a_study_that_was_extended_after_it_gave_up_may_fail_anew() -> None:
    budget = Budget(trials=50, parallel=4)
    counts = {T.FAILED: HOPELESS_AFTER}
    assert evaluate_budget(budget, BudgetUsage(counts, errors=["a"])).end is StudyEvent.FAIL
    ignored_failures = evaluate_budget(budget, BudgetUsage(counts, errors=["a"], ignored_failures=HOPELESS_AFTER))
    assert (ignored_failures.end, ignored_failures.room) == (None, 4)
    again = evaluate_budget(
        budget, BudgetUsage({T.FAILED: 2 * HOPELESS_AFTER}, errors=["a"], ignored_failures=HOPELESS_AFTER)
    )
    assert again.end is StudyEvent.FAIL
    assert again.reason.startswith("the 5 trials since it was extended all failed")
    errors = ["no disk"] * HOPELESS_AFTER + ["no module torch"] * 3 + ["no disk"] * 2
    mended = BudgetUsage({T.FAILED: 2 * HOPELESS_AFTER}, errors=errors, ignored_failures=HOPELESS_AFTER)
    assert evaluate_budget(budget, mended).reason.endswith("; 3 of 5 said: no module torch")


def test_a_trials_name_is_valid_however_long_the_studys_is() -> None:
    name = "A" + "b" * 58 + "._-9"
    study = parse_study(
        {
            "name": name, "parameters": {"x": {"type": "float", "min": 0, "max": 1}},
            "template": {"command": "train"}, "metric": "m", "goal": "minimize", "budget": {"trials": 1},
        }
    )  # fmt: skip
    spec = trial_spec(study, 123, {"x": 0.5})
    assert (spec.name, spec.labels["study"]) == (f"A{'b' * 58}-123", name)
    assert parse_spec(spec.model_dump(mode="json")).name == spec.name


def test_errors_that_differ_in_the_trials_own_numbers_are_one() -> None:
    errors = [f"ValueError: lr={value} is too large" for value in ("0.5", "1e-3", "-2", "7")] + ["out of memory"]
    assert commonest(errors) == "4 of 5 said: ValueError: lr=0.5 is too large"
