from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from core.domain.jobs.retention import Candidate, Rule, doomed

START = datetime(2026, 11, 21, tzinfo=UTC)


def made(step: int | None, loss: object = None, minutes: int = 0) -> Candidate:
    metrics = {} if loss is None else {"loss": loss}
    return Candidate(f"step-{step}", step, START + timedelta(minutes=minutes), metrics)


ALL = [made(400, 0.5), made(100, 0.9), made(200, 0.1), made(300, 0.7), made(500, 0.6)]


@pytest.mark.parametrize(
    ("rule", "gone"),
    [
        (Rule(), []),
        (Rule(last=2), [100, 200, 300]),
        (Rule(last=9), []),
        (Rule(every=200), [100, 300]),
        (Rule(best=1, metric="loss"), [100, 300, 400]),
        (Rule(best=2, metric="loss", mode="max"), [200, 400]),
        (Rule(last=1, best=1, metric="loss", every=300), [100, 400]),
        (Rule(best=1, metric="no such metric"), []),
    ],
)
def test_what_a_rule_lets_go_of(rule: Rule, gone: list[int]) -> None:
    assert [one.step for one in doomed(rule, ALL, ())] == gone


def test_the_protected_and_the_newest_stay() -> None:
    assert [one.step for one in doomed(Rule(every=1000), ALL, {"step-200"})] == [100, 300, 400]


def test_values_that_are_no_numbers_are_none_of_the_best() -> None:
    some = [made(1, float("nan")), made(2, "low"), made(3, True), made(4, 0.3), made(5, 0.9)]
    assert [one.step for one in doomed(Rule(best=1, metric="loss"), some, ())] == [1, 2, 3]


def test_without_steps_time_tells_which_is_the_newest() -> None:
    some = [Candidate("b", None, START, {}), Candidate("a", None, START + timedelta(minutes=1), {})]
    assert [one.path for one in doomed(Rule(last=1), some, ())] == ["b"]
