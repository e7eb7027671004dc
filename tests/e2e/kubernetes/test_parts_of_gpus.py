"""Parts of GPUs and MIG slices on a real cluster, from the spec to the container; and nothing of them left."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.e2e.stories import story_of

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.kubernetes,
    pytest.mark.xdist_group("kubernetes"),
    pytest.mark.timeout(420),
]

SLEEPER = ["python3", "-u", "-c", "import time; print('asleep', flush=True); time.sleep(3600)"]
TELL = [
    "python3",
    "-c",
    (
        "import json, os; "
        "print(json.dumps({k: v for k, v in os.environ.items() if 'GPU' in k or 'CUDA' in k or 'NVIDIA' in k}))"
    ),
]
SLICE = "nvidia.com/mig-1g.5gb"


@pytest.fixture(scope="session")
def environment(environment: dict[str, str]) -> dict[str, str]:
    """As for all other tests, and slices count as GPUs."""
    return {**environment, "TRAINMASTER_GPU_RESOURCES": "nvidia.com/gpu,nvidia.com/mig-*"}


@pytest.fixture(scope="module")
def node(cluster: Any, two_nodes: list[str]) -> Iterator[str]:
    """One whose GPUs are only counted."""
    cluster.ensure_ready(two_nodes)
    name = two_nodes[0]
    cluster.core.patch_node(name, {"metadata": {"labels": {"trainmaster/simulated-gpus": "true"}}})
    yield name
    cluster.core.patch_node(name, {"metadata": {"labels": {"trainmaster/simulated-gpus": None}}})


@pytest.fixture
def run(platform: Any, node: str) -> Callable[..., Any]:
    """``run(command, **spec) -> Job``, on that node."""

    def run(command: Any, **spec: Any) -> Any:
        return platform.client.submit(
            {"name": "part", "command": command, "node_selector": {"kubernetes.io/hostname": node}, **spec}
        )

    return run


def replica_of(job: Any) -> Any:
    attempt = max(job.attempts(), key=lambda one: one.number)
    return attempt.replicas[0]


def reservations(cluster: Any) -> list[Any]:
    selector = f"trainmaster/instance={cluster.instance},trainmaster/reservation"
    found: list[Any] = cluster.core.list_pod_for_all_namespaces(label_selector=selector).items
    return found


def runs(job: Any, eventually: Any) -> None:
    eventually(lambda: job.detail().state == "running", within_s=120, what=f"it runs: {story_of(job)}")


def test_halves_share_a_device_whole_ones_stay_away_and_nothing_is_left(
    run: Any, cluster: Any, platform: Any, eventually: Any, node: str
) -> None:
    parts = [run(SLEEPER, gpus=0.5), run(SLEEPER, gpus=0.5)]
    for job in parts:
        runs(job, eventually)
    parts.append(run(SLEEPER, gpus=0.75))
    runs(parts[2], eventually)
    (first,), (second,), (third,) = (replica_of(job).gpus for job in parts)
    assert first == second != third
    assert [replica_of(job).gpu_part for job in parts] == [0.5, 0.5, 0.75]
    assert len(reservations(cluster)) == 2
    assert sum(platform.client.get_node(node).used["gpus"].values()) == 1.75

    fitting = run(TELL, gpus=2)
    assert fitting.wait(timeout_s=120).state == "succeeded", story_of(fitting)
    whole = run(SLEEPER, gpus=3)
    eventually(lambda: "GPU" in str(whole.detail().wait_reason), within_s=30, what="the planner's reason")
    for job in parts[:2]:
        job.cancel()
    runs(whole, eventually)
    assert third not in replica_of(whole).gpus

    for job in (whole, parts[2]):
        job.cancel()
    eventually(
        lambda: not cluster.leftovers() and not reservations(cluster), within_s=90, what="nothing is left of them"
    )


def test_a_part_tells_the_program_its_share(run: Any) -> None:
    job = run(TELL, gpus=0.25)
    assert job.wait(timeout_s=120).state == "succeeded", story_of(job)
    (line,) = [line for line in job.read_log("worker-0").splitlines() if "TRAINMASTER_GPU_FRACTION" in line]
    reported = json.loads(line[line.index("{") :])
    assert reported["TRAINMASTER_GPU_FRACTION"] == "0.25"
    assert reported["CUDA_VISIBLE_DEVICES"] == "0"
    assert reported["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "25"


def test_a_platform_that_was_killed_gives_the_device_back_all_the_same(
    run: Any, cluster: Any, platform: Any, eventually: Any
) -> None:
    job = run(SLEEPER, gpus=0.5)
    runs(job, eventually)
    platform.kill_and_start_again()
    again = platform.client.get_job(job.id)
    assert len(reservations(cluster)) == 1
    platform.client.cancel_job(again.id)
    eventually(lambda: not reservations(cluster), within_s=90, what="the device is given back")


@pytest.fixture
def slices(cluster: Any, node: str) -> Iterator[int]:
    """The node has two slices of an A100, as its device plugin would tell."""

    def tell(count: int | None) -> None:
        reported = {SLICE: None if count is None else str(count)}
        cluster.core.patch_node_status(node, {"status": {"capacity": reported, "allocatable": reported}})

    tell(2)
    cluster.core.patch_node(node, {"metadata": {"labels": {f"{SLICE}.product": "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb"}}})
    end = time.monotonic() + 30
    while (cluster.core.read_node(node).status.allocatable or {}).get(SLICE) != "2":
        assert time.monotonic() < end, "kubelet does not take the slices over"
        time.sleep(0.5)
    yield 2
    cluster.core.patch_node(node, {"metadata": {"labels": {f"{SLICE}.product": None}}})
    tell(None)


def test_slices_are_a_model_of_their_own_and_no_whole_gpu(
    run: Any, cluster: Any, platform: Any, eventually: Any, node: str, slices: int
) -> None:
    model = "a100-sxm4-40gb-mig-1g-5gb"
    eventually(
        lambda: platform.client.get_node(node).allocatable["gpus"].get(model) == slices,
        within_s=60,
        what="the slices are there",
    )
    small = run(SLEEPER, gpus=1, gpu_type="1g.5gb")
    large = run(SLEEPER, gpus=1, gpu_type="A100")
    named = run(SLEEPER, gpus=1, gpu_type="a100-mig-1g.5gb")
    for job in (small, named):
        runs(job, eventually)
        (pod,) = cluster.pods(job.id)
        assert pod.spec.containers[0].resources.limits[SLICE] == "1"
    assert large.detail().state == "queued"
    assert large.detail().wait_reason is not None
    for job in (small, large, named):
        job.cancel()
    eventually(lambda: not cluster.leftovers(), within_s=90, what="nothing is left of them")
