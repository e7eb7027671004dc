"""TensorFlow's strategies as users write them: unmodified scripts, real processes, real deaths."""

from __future__ import annotations

from typing import Any

import pytest

from tests.frameworks.conftest import EXAMPLES, SCRIPTS

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.xdist_group("frameworks"),
    pytest.mark.timeout(600),  # two waits of minutes, for a machine that does much else
]

EXAMPLE = EXAMPLES / "tensorflow"
ACCURACY = 0.9
STEPS_PER_EPOCH = 22  # of the example
BOTH = pytest.mark.parametrize("environment", ["tf215", "tf"])


@BOTH
def test_mirrored_and_central_storage_train_on_two_devices(run: Any, environment: str) -> None:
    job = run(environment, SCRIPTS, ["mirrored.py", "mirrored", "central"])
    job.succeed()
    assert "mirrored trained on 2 devices" in job.log("worker")
    assert "central trained on 2 devices" in job.log("worker")


@BOTH
def test_multi_worker_mirrored_fits_and_goes_on_after_a_worker_was_killed(
    run: Any, kill: Any, digits: str, eventually: Any, environment: str
) -> None:
    job = run(
        environment,
        EXAMPLE,
        ["multi_worker.py", "--epoch-seconds", "1"],
        workers=2,
        input=digits,
        max_restarts=1,
    )
    eventually(lambda: job.steps() >= 2 * STEPS_PER_EPOCH, within_s=150, what="two epochs")
    kill(job, "worker", 1, script="multi_worker.py")

    result = job.result()

    assert result["world"] == 2
    assert result["accuracy"] >= ACCURACY
    assert result["first_epoch"] >= 1, job.story()  # by BackupAndRestore
    first, second = sorted(job.job.attempts(), key=lambda attempt: attempt.number)
    # The killed one is blamed, and not its peer, which dies of it seconds later.
    assert first.end.role == "worker", first.end
    assert first.end.index == 1, first.end
    assert second.end.kind == "success"


@BOTH
def test_multi_worker_mirrored_trains_with_a_loop_of_its_own(run: Any, environment: str) -> None:
    job = run(environment, SCRIPTS, ["mirrored_loop.py"], workers=2)
    job.succeed()
    # Each worker saw other data, and all hold the same model.
    assert job.job.read_file("kernel-0.json") == job.job.read_file("kernel-1.json")


@BOTH
def test_parameter_servers_with_keras_and_an_evaluator_end_with_their_chief(
    run: Any, digits: str, environment: str
) -> None:
    job = run(environment, EXAMPLE, ["parameter_server.py"], chief=1, workers=2, ps=1, evaluator=1, input=digits)
    assert job.result()["accuracy"] >= ACCURACY
    assert "evaluated ckpt-" in job.log("evaluator")
    # Nobody but the chief ends by itself.
    assert job.states() == {
        "chief-0": "succeeded",
        "worker-0": "stopped",
        "worker-1": "stopped",
        "ps-0": "stopped",
        "evaluator-0": "stopped",
    }


@BOTH
def test_a_killed_worker_of_the_coordinator_comes_back_alone(
    run: Any, kill: Any, digits: str, eventually: Any, environment: str
) -> None:
    job = run(
        environment,
        EXAMPLE,
        ["parameter_server.py", "--loop", "coordinator", "--epoch-seconds", "0.5"],
        roles={"chief": 1, "worker": {"replicas": 2, "restart": "replica"}, "ps": 2},
        input=digits,
        max_restarts=1,
    )
    eventually(lambda: job.steps() >= STEPS_PER_EPOCH, within_s=150, what="an epoch")
    kill(job, "worker", 1, script="parameter_server.py")

    assert job.result()["accuracy"] >= ACCURACY
    assert job.generations() == {"chief-0": 1, "worker-0": 1, "worker-1": 2, "ps-0": 1, "ps-1": 1}


def test_a_killed_ps_starts_the_gang_again_from_the_chiefs_backup(
    run: Any, kill: Any, digits: str, eventually: Any
) -> None:
    arguments = ["parameter_server.py", "--epoch-seconds", "0.5"]
    job = run("tf", EXAMPLE, arguments, chief=1, workers=1, ps=1, input=digits, max_restarts=1)
    eventually(lambda: job.steps() >= 2 * STEPS_PER_EPOCH, within_s=150, what="two epochs")
    kill(job, "ps", 0, script="parameter_server.py")

    assert job.result()["accuracy"] >= ACCURACY
    assert job.job.detail().attempt_count == 2
    second = job.log("chief", attempt=2)
    assert "epoch 1/8" not in second
    assert "epoch 8/8" in second


def test_estimators_under_uais_contract_have_a_master_and_a_ps_beside_each_worker(run: Any) -> None:
    job = run("tf215", SCRIPTS, ["estimator.py"], contract="uai", roles={"worker": 2, "ps": None})
    job.succeed()
    assert "master 0 is done" in job.log("worker", 0)
    assert "worker 0 is done" in job.log("worker", 1)
    assert job.states() == {"worker-0": "succeeded", "worker-1": "succeeded", "ps-0": "stopped", "ps-1": "stopped"}


def test_estimators_train_with_chief_worker_ps_and_evaluator(run: Any) -> None:
    job = run(
        "tf215",
        SCRIPTS,
        ["estimator.py"],
        chief=1,
        workers=1,
        ps=1,
        evaluator=1,
        grace={"stop": 5, "exit": 30, "evaluator": 60},
    )
    job.succeed()
    # The evaluator got the time to look at the last checkpoint, and ended by itself.
    assert job.states() == {
        "chief-0": "succeeded",
        "worker-0": "succeeded",
        "ps-0": "stopped",
        "evaluator-0": "succeeded",
    }
    assert "evaluator 0 is done" in job.log("evaluator")


def test_estimators_under_todays_tensorflow_are_informed_of_the_last_one_that_has_them(run: Any) -> None:
    exit_ = run("tf", SCRIPTS, ["estimator.py"], chief=1, ps=1).fail()
    assert "install tensorflow 2.15" in exit_.sentence


@BOTH
def test_a_script_with_hosts_as_flags_gets_them_by_placeholder(run: Any, environment: str) -> None:
    flags = [
        "--ps_hosts={ps_hosts}",
        "--worker_hosts={worker_hosts}",
        "--job_name={job_name}",
        "--task_index={task_index}",
    ]
    # The chief is the script's worker 0. Without one a worker that comes late would wait for it for ever.
    job = run(environment, SCRIPTS, ["cluster_spec.py", *flags], chief=1, workers=1, ps=1)
    job.succeed()
    assert "worker 0 of 2 ends with loss" in job.log("chief")
    assert job.states()["ps-0"] == "stopped"


def test_a_failed_chief_ends_the_evaluator_and_all_who_would_wait_for_it(run: Any) -> None:
    job = run("tf", SCRIPTS, ["waits_for_chief.py"], chief=1, workers=1, ps=1, evaluator=1)
    exit_ = job.fail()
    assert exit_.role == "chief"
    assert "the data is not what it should be" in exit_.sentence
    assert job.states() == {
        "chief-0": "failed",
        "worker-0": "stopped",
        "ps-0": "stopped",
        "evaluator-0": "stopped",
    }


def test_keras_3_that_cannot_fit_over_workers_says_what_to_do(run: Any, digits: str) -> None:
    job = run(
        "tf", EXAMPLE, ["multi_worker.py"], workers=2, input=digits, max_restarts=3, env={"TF_USE_LEGACY_KERAS": "0"}
    )
    assert "set env.TF_USE_LEGACY_KERAS to 1" in job.fail().sentence
    assert job.job.detail().attempt_count == 1  # a restart could not mend it
