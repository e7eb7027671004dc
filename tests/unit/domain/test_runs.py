from __future__ import annotations

import pytest

from core.domain.contracts.mlflow import main_role, replica_of_run, run_id_of


@pytest.mark.parametrize(
    ("roles", "main"),
    [
        (("chief", "worker", "ps"), "chief"),
        (("worker", "ps", "evaluator"), "worker"),
        (("ps", "actor", "learner"), "actor"),
        (("ps",), "ps"),
    ],
)
def test_the_main_replica_is_the_one_that_decides(roles: tuple[str, ...], main: str) -> None:
    assert main_role(roles) == main
    assert run_id_of("att-1", roles, main, 0) == "att-1"


def test_every_other_replica_has_a_run_of_its_own_that_tells_whose_it_is() -> None:
    roles = ("worker", "my-role-2")
    runs = {run_id_of("att-1", roles, role, index): f"{role}-{index}" for role in roles for index in range(3)}
    assert len(runs) == 6
    assert {run: replica_of_run(run, "att-1", roles) for run in runs} == runs


@pytest.mark.parametrize(
    "run",
    [
        "att-2",
        "att-10",
        "att-1-",
        "att-1-boss-0",
        "att-1-worker",
        "att-1-worker-01",
        "att-1-worker-x",
        "att-1-worker--1",
    ],
)
def test_what_is_no_run_of_the_attempt_is_nobodys(run: str) -> None:
    assert replica_of_run(run, "att-1", ("worker",)) is None
