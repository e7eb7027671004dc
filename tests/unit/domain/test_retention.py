from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from core.domain.jobs.retention import RetentionCandidate, RetentionRule, checkpoints_to_delete

START = datetime(2026, 11, 21, tzinfo=UTC)


def made(step: int | None, loss: object = None, minutes: int = 0) -> RetentionCandidate:
    metrics = {} if loss is None else {"loss": loss}
    return RetentionCandidate(f"step-{step}", step, START + timedelta(minutes=minutes), metrics)


ALL = [made(400, 0.5), made(100, 0.9), made(200, 0.1), made(300, 0.7), made(500, 0.6)]


@pytest.mark.parametrize(
    ("rule", "gone"),
    [
        (RetentionRule(), []),
        (RetentionRule(last=2), [100, 200, 300]),
        (RetentionRule(last=9), []),
        (RetentionRule(every=200), [100, 300]),
        (RetentionRule(best=1, metric="loss"), [100, 300, 400]),
        (RetentionRule(best=2, metric="loss", mode="max"), [200, 400]),
        (RetentionRule(last=1, best=1, metric="loss", every=300), [100, 400]),
        (RetentionRule(best=1, metric="no such metric"), []),
    ],
)
def test_what_a_rule_lets_go_of(rule: RetentionRule, gone: list[int]) -> None:
    assert [one.step for one in checkpoints_to_delete(rule, ALL, ())] == gone


def test_the_protected_and_the_newest_stay() -> None:
    assert [one.step for one in checkpoints_to_delete(RetentionRule(every=1000), ALL, {"step-200"})] == [100, 300, 400]


def test_values_that_are_no_numbers_are_none_of_the_best() -> None:
    some = [made(1, float("nan")), made(2, "low"), made(3, True), made(4, 0.3), made(5, 0.9)]
    assert [one.step for one in checkpoints_to_delete(RetentionRule(best=1, metric="loss"), some, ())] == [1, 2, 3]


def test_without_steps_time_tells_which_is_the_newest() -> None:
    some = [RetentionCandidate("b", None, START, {}), RetentionCandidate("a", None, START + timedelta(minutes=1), {})]
    assert [one.path for one in checkpoints_to_delete(RetentionRule(last=1), some, ())] == ["b"]
