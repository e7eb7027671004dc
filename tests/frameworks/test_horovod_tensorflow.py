"""Horovod's API for TensorFlow, where no torch is: by the platform's key-value store and plain sockets."""

from __future__ import annotations

from typing import Any

import pytest

from tests.frameworks.conftest import ROOT, SCRIPTS

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("frameworks"), pytest.mark.timeout(600)]


@pytest.mark.parametrize("environment", ["tf215", "tf"])
def test_a_horovod_script_for_tensorflow_trains_on_two_workers(run: Any, environment: str) -> None:
    library = str(ROOT / "worker_images" / "train")
    job = run(environment, SCRIPTS, ["horovod_tensorflow.py"], workers=2, env={"PYTHONPATH": library})

    first, second = job.result()["ranks"]

    alltoall = first["operations"].pop("alltoall"), second["operations"].pop("alltoall")
    assert alltoall == ([[0, 10], [1, 1]], [[1, 2, 11, 12], [2, 2]])
    assert first["operations"] == second["operations"]
    assert first["operations"] == {
        "sum": [3.0, 6.0],
        "average": 1.5,
        "max": [1],
        "half": [2.25],
        "bfloat16": [1.5],
        "grouped": [[0.5, 0.5], 4.0],
        "gathered": [[0, 0], [1, 1], [1, 1]],
        "broadcast": [1],
        "object": {"from": 1},
        "slices": [[0.5, 0.5], [1.0, 1.0], [0.0, 0.0]],
    }
    # By hand: three steps of the mean gradient of both ranks, from rank 0's weights.
    assert first["tape"] == second["tape"] == [[1.299], [0.414]]
    assert first["fit"] == second["fit"]
    loss = first["fit"]["loss"]
    assert loss[-1] < loss[0]
    assert first["fit"]["rate"] == pytest.approx(0.04)
    assert first["joined"]
    assert second["joined"]
