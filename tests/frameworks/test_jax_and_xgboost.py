"""JAX's and XGBoost's own ways to meet, on CPUs."""

from __future__ import annotations

from typing import Any

import pytest

from tests.frameworks.conftest import SCRIPTS

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.xdist_group("frameworks"),
    pytest.mark.timeout(600),  # two waits of minutes, for a machine that does much else
]


def test_jax_initializes_without_an_argument(run: Any) -> None:
    job = run("jax", SCRIPTS, ["jax_sum.py"], workers=2)
    job.succeed()
    for index in (0, 1):
        assert f"process {index} of 2 sees [1.0, 2.0]" in job.log("worker", index)


def test_two_processes_of_one_replica_are_two_to_jax(run: Any) -> None:
    job = run("jax", SCRIPTS, ["jax_sum.py"], processes_per_replica=2)
    job.succeed()
    log = job.log("worker")
    assert all(f"process {index} of 2 sees [1.0, 2.0]" in log for index in (0, 1))


def test_xgboost_meets_at_the_tracker_of_rank_0_and_grows_one_model(run: Any) -> None:
    job = run("xgboost", SCRIPTS, ["boosting.py"], workers=2)
    job.succeed()
    assert job.job.read_file("model-0.json") == job.job.read_file("model-1.json")
