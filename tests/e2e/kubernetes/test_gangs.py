"""Real gangs of real pods: trained, broken, adopted, cancelled; and nothing of them left in the cluster."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e import elastic_steps, outage_story
from tests.e2e.kubernetes.conftest import run_command
from tests.e2e.stories import story_of

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.kubernetes,
    pytest.mark.xdist_group("kubernetes"),
    pytest.mark.timeout(420),
]

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "examples"
ACCURACY = 0.95
SLEEPER = ["python3", "-u", "-c", "import time; print('asleep', flush=True); time.sleep(3600)"]

# Every replica serves its own name on its own port and asks each of the others for theirs, all by TF_CONFIG's words.
GREETINGS = """
import json, os, socket, threading, time
config = json.loads(os.environ["TF_CONFIG"])
me = "%s-%d" % (config["task"]["type"], config["task"]["index"])
peers = {"%s-%d" % (role, n): a for role, all_ in config["cluster"].items() for n, a in enumerate(all_)}
server = socket.create_server(("", int(peers[me].rpartition(":")[2])))
asked = 0
def serve():
    global asked
    while True:
        connection, _ = server.accept()
        connection.sendall(me.encode()); connection.close(); asked += 1
threading.Thread(target=serve, daemon=True).start()
for name, address in sorted(peers.items()):
    host, _, port = address.rpartition(":")
    end = time.time() + 60
    while True:
        try:
            with socket.create_connection((host, int(port)), 5) as connection:
                said = connection.recv(100).decode()
            break
        except OSError:
            if time.time() > end: raise
            time.sleep(0.2)
    assert said == name, (said, name)
    print("reached", name, "at", address, flush=True)
end = time.time() + 60
while asked < len(peers) and time.time() < end: time.sleep(0.05)
assert asked >= len(peers), asked
"""


@pytest.fixture
def submit(platform: Any) -> Any:
    """``submit(example, **changes) -> Job``; its GPUs are counted but not there, so one process is enough for them."""

    def submit(example: str, **changes: Any) -> Any:
        spec = yaml.safe_load((EXAMPLES / example / "job.yaml").read_text())
        return platform.client.submit({**spec, "processes_per_replica": 1, **changes}, code=EXAMPLES / example)

    return submit


@pytest.fixture
def run(platform: Any) -> Any:
    """``run(command, **spec) -> Job``"""

    def run(command: Any, **spec: Any) -> Any:
        return platform.client.submit({"name": "probe", "command": command, **spec})

    return run


@pytest.fixture(autouse=True)
def _whole_cluster(cluster: Any, two_nodes: list[str]) -> None:
    cluster.ensure_ready(two_nodes)


def finished(job: Any, within_s: float = 240) -> dict[str, Any]:
    """The job's result, once it has succeeded."""
    detail = job.wait(timeout_s=within_s)
    assert detail.state == "succeeded", f"{detail.exit}\n{story_of(job)}"
    found: dict[str, Any] = json.loads(job.read_file("result.json"))
    return found


def placed_on(job: Any) -> dict[str, str]:
    """Node of each replica of the newest attempt."""
    attempt = max(job.attempts(), key=lambda one: one.number)
    return {f"{replica.role}-{replica.index}": replica.node for replica in attempt.replicas}


def nothing_left(cluster: Any, job: Any, eventually: Any) -> None:
    eventually(
        lambda: not cluster.leftovers(job.id), within_s=60, what=f"nothing of it left: {cluster.leftovers(job.id)}"
    )


def test_allreduce_over_two_nodes_trains_to_its_accuracy(submit: Any, cluster: Any, eventually: Any) -> None:
    job = submit("allreduce", gpus=3)  # two do not fit on one node

    result = finished(job)

    assert result["accuracy"] >= ACCURACY
    assert len(set(placed_on(job).values())) == 2
    assert len(list(job.checkpoints())) >= 3
    assert {source.name for source in job.log_sources()} >= {"worker-0", "worker-1"}
    assert job.detail().attempt_count == 1, story_of(job)
    nothing_left(cluster, job, eventually)


def test_a_parameter_server_with_two_workers_over_two_nodes(submit: Any, cluster: Any, eventually: Any) -> None:
    roles = {"ps": 1, "worker": {"replicas": 2, "restart": "replica", "resources": {"gpus": 3}}}
    job = submit("parameter_server", roles=roles)

    result = finished(job)

    assert result["accuracy"] >= ACCURACY
    nodes = placed_on(job)
    assert nodes["worker-0"] != nodes["worker-1"]
    nothing_left(cluster, job, eventually)


def test_replicas_reach_each_other_by_the_names_of_tf_config(run: Any) -> None:
    job = run(["python3", "-u", "-c", GREETINGS], chief=1, workers=2, ps=1)

    detail = job.wait(timeout_s=120)

    assert detail.state == "succeeded", story_of(job)
    for name in ("chief-0", "worker-0", "worker-1"):
        log = job.read_log(name)
        assert all(f"reached {peer} at " in log for peer in ("chief-0", "worker-0", "worker-1", "ps-0")), log


def test_three_jobs_that_fit_only_one_after_another(run: Any) -> None:
    nap = ["python3", "-c", "import time; time.sleep(2)"]
    jobs = [run(nap, workers=2, gpus=3) for _ in range(3)]

    assert [job.wait(timeout_s=180).state for job in jobs] == ["succeeded"] * 3

    (first, second, third) = sorted((next(job.attempts()) for job in jobs), key=lambda attempt: attempt.started_at)
    assert first.ended_at <= second.started_at
    assert second.ended_at <= third.started_at


def test_a_gang_of_four_gpus_waits_for_a_hole_and_says_so(run: Any, eventually: Any) -> None:
    small = [run(SLEEPER, gpus=2, workers=1) for _ in range(3)]
    for job in small:
        eventually(lambda job=job: job.detail().state == "running", within_s=90, what="a small job runs")
    large = run(["python3", "-c", "print('at last')"], workers=1, gpus=4)
    eventually(lambda: "GPU" in str(large.detail().wait_reason), within_s=20, what="the planner's reason")

    by_node: dict[str, list[Any]] = {}
    for job in small:
        by_node.setdefault(placed_on(job)["worker-0"], []).append(job)
    for job in min(by_node.values(), key=len):
        job.cancel()

    assert large.wait(timeout_s=90).state == "succeeded", story_of(large)
    for job in small:
        job.cancel()


def test_training_goes_on_after_the_control_plane_was_killed(platform: Any, submit: Any, eventually: Any) -> None:
    job = submit("allreduce", gpus=3, args=["--checkpoint-every", "50", "--step-seconds", "0.03"])
    eventually(lambda: list(job.checkpoints()), within_s=120, what="a first checkpoint")

    platform.kill_and_start_again()

    job = platform.client.job(job.id)
    result = finished(job)
    assert result["accuracy"] >= ACCURACY
    assert job.detail().attempt_count == 1, story_of(job)


def test_a_cancelled_job_leaves_nothing_in_the_cluster(run: Any, cluster: Any, eventually: Any) -> None:
    job = run(SLEEPER, workers=2, ps=1)
    eventually(lambda: job.detail().state == "running", within_s=90, what="it runs")
    assert cluster.pods(job.id)

    job.cancel()

    assert job.wait(timeout_s=60).state == "cancelled"
    nothing_left(cluster, job, eventually)


@pytest.mark.timeout(900)
def test_a_hundred_short_jobs_all_succeed(platform: Any, cluster: Any, eventually: Any) -> None:
    # A dozen at once on each node of two cores: the planner's queue is to be long, not kubelet's.
    spec = {"command": ["/bin/true"], "cpu": "150m", "memory": "64Mi"}
    jobs = [platform.client.submit({"name": f"short-{number}", **spec}) for number in range(100)]

    states = [job.wait(timeout_s=700).state for job in jobs]

    assert states == ["succeeded"] * 100, {state: states.count(state) for state in set(states)}
    assert all(job.detail().attempt_count == 1 for job in jobs)
    eventually(lambda: not cluster.leftovers(), within_s=90, what=f"nothing left: {cluster.leftovers()}")


def test_a_dead_node_moves_the_gang_to_the_other_one_from_its_checkpoint(
    submit: Any, cluster: Any, eventually: Any
) -> None:
    kill = os.environ.get("TRAINMASTER_TEST_KILL_NODE")
    if not kill:
        pytest.skip("needs TRAINMASTER_TEST_KILL_NODE: a command that kills the node whose name follows")
    job = submit("allreduce", gpus=2, max_restarts=0, args=["--checkpoint-every", "20", "--step-seconds", "0.2"])
    eventually(lambda: list(job.checkpoints()), within_s=120, what="a first checkpoint")
    (node,) = set(placed_on(job).values())  # both fit on one, and a gang is kept together

    run_command(kill, node)

    eventually(lambda: job.detail().attempt_count == 2, within_s=200, what="a second attempt")
    result = finished(job, within_s=300)
    assert result["accuracy"] >= ACCURACY
    assert result["resumed_at"] >= 20
    first, second = sorted(job.attempts(), key=lambda attempt: attempt.number)
    assert not first.is_counted  # max_restarts is 0, so it would not have come back
    assert second.resume_from is not None
    assert node not in placed_on(job).values()


def test_an_elastic_gang_goes_on_without_a_pod_that_was_deleted_and_takes_another_in(
    platform: Any, cluster: Any, eventually: Any
) -> None:
    spec = yaml.safe_load((EXAMPLES / "elastic" / "job.yaml").read_text())
    job = platform.client.submit({**spec, **elastic_steps.SPEC}, code=EXAMPLES / "elastic")
    steps = elastic_steps.Steps(platform.now.home / "output" / job.detail().output.partition("/")[2])

    def lose() -> None:
        (name,) = [pod.metadata.name for pod in cluster.pods(job.id) if "-worker-0-g" in pod.metadata.name]
        cluster.core.delete_namespaced_pod(name, cluster.namespace, grace_period_seconds=0)

    elastic_steps.check_elastic_training(job, steps, lose, eventually)
    nothing_left(cluster, job, eventually)


def test_what_ends_while_the_platform_is_away_has_its_metrics_and_its_exit_code(
    platform: Any, cluster: Any, eventually: Any
) -> None:
    jobs = outage_story.begin(platform.client, eventually)
    output = platform.now.home / "output"
    platform.now.process.send_signal(signal.SIGKILL)  # which takes API and scheduler with it
    platform.now.process.wait()
    outage_story.let_end(
        output, jobs, eventually, lambda job: {pod.status.phase for pod in cluster.pods(job)} <= {"Succeeded", "Failed"}
    )

    platform.start_again()

    outage_story.check(platform.client, jobs, eventually)
    for job in jobs:
        eventually(lambda job=job: not cluster.leftovers(job), within_s=60, what="no pod is left")
