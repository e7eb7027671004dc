"""Horovod's API for TensorFlow, where no torch is: by the platform's key-value store and plain sockets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.frameworks.conftest import ROOT, SCRIPTS

LIBRARY = str(ROOT / "worker_images" / "train")
pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("frameworks"), pytest.mark.timeout(600)]


@pytest.mark.parametrize("environment", ["tf215", "tf"])
def test_a_horovod_script_for_tensorflow_trains_on_two_workers(run: Any, environment: str) -> None:
    job = run(environment, SCRIPTS, ["horovod_tensorflow.py"], workers=2, env={"PYTHONPATH": LIBRARY})

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
        "grouped gathered": [[0, 1], [1.0, 2.0, 1.0, 3.0]],
        "adasum": [[1.0, 1.0], [2.0, 4.0]],
        "refused": [
            "Adasum adds gradients: it needs floating point tensors.",
            "root_rank=2 is not among the ranks [0, 1] of the process set.",
            (
                "hvd.broadcast_global_variables is not supported: it is TensorFlow 1's; "
                "call hvd.broadcast_variables(variables, root_rank) once all are created."
            ),
        ],
    }
    assert (first["sets"]["scattered"], second["sets"]["scattered"]) == ([[3.0], [3.0]], [[3.0]])
    assert (first["sets"]["set"], second["sets"]["set"]) == ([False, -1, 1], [True, 0, 1])
    assert second["sets"]["in set"] == [5.0]
    assert first["sets"]["not in set"] == "rank 0 is not in process set 1."
    # By hand: three steps of the mean gradient of both ranks, from rank 0's weights.
    assert first["tape"] == second["tape"] == [[1.299], [0.414]]
    assert first["fit"] == second["fit"]
    loss = first["fit"]["loss"]
    assert loss[-1] < loss[0]
    assert first["fit"]["rate"] == pytest.approx(0.04)
    assert first["joined"]
    assert second["joined"]


@pytest.mark.parametrize("environment", ["tf215", "tf"])
def test_keras_example_trains_with_several_passes_a_step_and_goes_on_from_its_checkpoint(
    run: Any, environment: str
) -> None:
    first, second = example(run, environment, "keras")
    assert first["loss"] == second["loss"]  # averaged, at the end of each epoch
    assert first["loss"][-1] < first["loss"][0]
    assert first["rate"] == second["rate"] == pytest.approx(0.01)  # warmed up to 0.02, then halved
    assert first["steps"] == second["steps"] == 3 * 8 // 2
    assert first["kept"]
    assert second["kept"]
    assert first["again"] == second["again"] != first["weights"]


@pytest.mark.parametrize("environment", ["tf215", "tf"])
def test_tape_example_trains_and_broadcasts_within_its_graph(run: Any, environment: str) -> None:
    first, second = example(run, environment, "tape")
    assert first["weights"] == second["weights"]
    assert sum(first["loss"][-5:]) < sum(first["loss"][:5])


def example(run: Any, environment: str, which: str) -> Any:
    """What both ranks told; their weights are the same."""
    job = run(environment, SCRIPTS, ["horovod_examples.py", which], workers=2, env={"PYTHONPATH": LIBRARY})
    first, second = job.result()["ranks"]
    assert first["weights"] == second["weights"]
    return first, second


@pytest.mark.parametrize("environment", ["tf215", "tf"])
def test_elastic_keras_example_goes_on_without_a_killed_worker_and_takes_in_another(
    run: Any, kill: Any, platform: Any, eventually: Any, environment: str
) -> None:
    script = "horovod_elastic_keras.py"
    spec = {"workers": {"min": 1, "max": 2}, "max_restarts": 5, "env": {"PYTHONPATH": LIBRARY}}
    started = run(environment, SCRIPTS, [script], **spec)
    eventually(lambda: started.job.detail().state == "running", within_s=120, what="a start")
    output = Path(platform.home / "output" / started.job.detail().output.partition("/")[2])

    def epochs(index: str, size: str) -> list[tuple[int, int, str]]:
        """Of one worker in worlds of a size: number, rank, pid."""
        lines = (output / "epochs").read_text().splitlines() if (output / "epochs").exists() else []
        words = [line.split() for line in lines if len(line.split()) == 5]
        return [(int(w[0]), int(w[2]), w[4]) for w in words if (w[1], w[3]) == (index, size)]

    eventually(lambda: len(epochs("1", "2")) > 20, within_s=180, what="some epochs of two")
    before = epochs("0", "2")[-1]
    kill(started, "worker", 0, script=script)
    # Where TensorFlow is imported already another one joins before the one that is left has ended an epoch.
    joined = eventually(
        lambda: [epoch for epoch in epochs("0", "2") if epoch[2] != before[2]], within_s=180, what="one that joined"
    )
    (output / "done").touch()
    started.succeed()
    assert len({epoch[2] for size in ("1", "2") for epoch in epochs("1", size)}) == 1  # it keeps its process
    assert joined[0][0] >= before[0] - 1 > 10  # and gives its state to whoever joins
