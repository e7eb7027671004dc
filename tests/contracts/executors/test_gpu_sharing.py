"""What every driver does with parts of GPUs, and what Kubernetes does to hold a device for all that share it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from core.domain.errors import ExecutorTryAgain
from core.domain.sharing.resources import ResourceRequest
from executors.base import Observation, Phase
from executors.kubernetes.api_server.client import path as url
from executors.kubernetes.nodes import SIMULATED
from tests.contracts.executors.conftest import Behaviour, KubernetesBench, remove

FOREVER = Behaviour(run_s=None)


def part(bench: Any, gpu: str, milli: int = 500, *, behaviour: Behaviour = FOREVER, **fields: Any) -> Any:
    """An order of so many thousandths of ``gpu``."""
    env = {"CUDA_VISIBLE_DEVICES": gpu, "TRAINMASTER_GPU_FRACTION": f"{milli / 1000:g}"}
    return bench.order(behaviour, gpus=(gpu,), request=ResourceRequest(gpu_milli=milli), env=env, **fields)


def create(executor: Any, order: Any) -> None:
    """As the control loop does: it comes back while the device is not known yet."""
    end_s = time.monotonic() + 90
    while True:
        try:
            return executor.create(order)
        except ExecutorTryAgain:
            if time.monotonic() > end_s:
                raise
        time.sleep(0.2)


def is_running(observation: Observation) -> bool:
    return observation.phase is Phase.RUNNING


def is_sent_away(pod: Any) -> bool:
    return "deletionTimestamp" in pod["metadata"]


def label(bench: KubernetesBench, value: str | None) -> None:
    for node in bench.nodes:
        bench.engine.patch(url("nodes", name=node), {"metadata": {"labels": {SIMULATED: value}}})


@pytest.fixture
def shares(bench: Any) -> Iterator[Any]:
    """The bench, on whose node parts of GPUs can be given."""
    if isinstance(bench, KubernetesBench):
        label(bench, "true")
    elif "containers" in bench.capabilities and "nvidia" not in (bench.engine.info().get("Runtimes") or {}):
        pytest.skip("this engine has no NVIDIA container runtime")
    yield bench
    if isinstance(bench, KubernetesBench):
        for attempt in bench.executor.attempts():
            remove(bench.executor, attempt)
        label(bench, None)


def test_two_replicas_run_on_parts_of_one_device(shares):
    first, second = part(shares, "0"), part(shares, "0", 250)
    for order in (first, second):
        create(shares.executor, order)
    for order in (first, second):
        shares.until(order, is_running)
    remove(shares.executor, first.key.attempt_id)
    assert shares.until(second, is_running).exit is None
    remove(shares.executor, second.key.attempt_id)


def test_a_part_is_one_device_to_the_replica(shares):
    if "real time" not in shares.capabilities:
        pytest.skip("this driver runs nothing")
    observation = "$CUDA_VISIBLE_DEVICES $TRAINMASTER_GPU_FRACTION"
    order = part(shares, "0", 250, command=f'echo "{observation}" > /data/output/seen')
    create(shares.executor, order)
    shares.until(order, lambda item: item.phase is Phase.SUCCEEDED)
    assert (shares.output / "seen").read_text() == "0 0.25\n"


# Kubernetes alone


@pytest.fixture
def cluster(make_kubernetes_bench: Callable[..., KubernetesBench]) -> Iterator[KubernetesBench]:
    if not os.environ.get("KUBECONFIG"):
        pytest.skip("needs a cluster: set KUBECONFIG")
    bench = make_kubernetes_bench()
    label(bench, "true")
    yield bench
    for attempt in bench.executor.attempts():
        remove(bench.executor, attempt)
    label(bench, None)


on_kubernetes = [pytest.mark.kubernetes, pytest.mark.xdist_group("kubernetes")]


def kubernetes(test: Any) -> Any:
    for mark in on_kubernetes:
        test = mark(test)
    return test


def free_gpus(bench: KubernetesBench, database_id: str = "") -> int:
    (node,) = (node for node in bench.executor.nodes(database_id=database_id) if node.name == bench.node)
    return node.allocatable.gpu_count


@kubernetes
def test_sharers_of_a_device_hold_one_placeholder_and_another_device_has_another(cluster):
    orders = [part(cluster, "0"), part(cluster, "0"), part(cluster, "1", 750)]
    for order in orders:
        create(cluster.executor, order)
    for order in orders:
        cluster.until(order, is_running)
        assert "nvidia.com/gpu" not in cluster.pod(order)["spec"]["containers"][0]["resources"].get("limits", {})
    holding = cluster.placeholders()
    assert len(holding) == 2
    assert {pod["status"]["phase"] for pod in holding} <= {"Pending", "Running"}
    assert all(pod["spec"]["nodeName"] == cluster.node for pod in holding)
    for order in orders:
        remove(cluster.executor, order.key.attempt_id)
    cluster.wait_for(lambda: not cluster.placeholders(), what="the end of the placeholders")


@kubernetes
def test_the_planner_counts_a_shared_device_itself_and_another_database_finds_it_taken(cluster):
    before = free_gpus(cluster, "ours")
    create(cluster.executor, part(cluster, "0", database_id="ours"))
    cluster.wait_for(lambda: free_gpus(cluster, "theirs") == before - 1, what="the device's being taken for others")
    assert free_gpus(cluster, "ours") == before


@kubernetes
def test_the_last_one_that_goes_gives_the_device_back_and_a_whole_one_waits_until_then(cluster):
    many = free_gpus(cluster)
    sharers = [part(cluster, "0"), part(cluster, "0")]
    for order in sharers:
        create(cluster.executor, order)
    whole = cluster.order(FOREVER, gpus=tuple(map(str, range(many))), request=ResourceRequest(gpu_count=many))
    create(cluster.executor, whole)
    remove(cluster.executor, sharers[0].key.attempt_id)
    assert len(cluster.placeholders()) == 1
    assert not [item for item in cluster.executor.observe(whole.key.attempt_id) if is_running(item)]
    remove(cluster.executor, sharers[1].key.attempt_id)
    cluster.until(whole, is_running, 90)
    cluster.wait_for(lambda: not cluster.placeholders(), what="the end of the placeholders")


@kubernetes
def test_a_platform_that_was_started_again_finds_the_device_again(cluster):
    first = part(cluster, "0")
    create(cluster.executor, first)
    later = cluster.another()
    second = part(cluster, "0")
    create(later, second)
    assert len(cluster.placeholders()) == 1
    for order in (first, second):
        remove(later, order.key.attempt_id)
    cluster.wait_for(lambda: not cluster.placeholders(), what="the end of the placeholders")


@kubernetes
def test_what_a_killed_platform_has_left_is_swept(cluster):
    order = part(cluster, "0")
    create(cluster.executor, order)
    (pod,) = cluster.placeholders()
    (mark,) = (key for key in pod["metadata"]["annotations"] if key.startswith("held.trainmaster/"))
    where = url("pods", cluster.namespace, pod["metadata"]["name"])
    # Of an orphaned attempt, an hour old.
    old = {mark: "2026-01-01T00:00:00+00:00", "held.trainmaster/att-gone": "2026-01-01T00:00:00+00:00"}
    cluster.engine.patch(where, {"metadata": {"annotations": old}})
    cluster.wait_for(lambda: _swept(cluster, where), what="the sweep of what is gone")
    assert mark in cluster.engine.get(where)["metadata"]["annotations"]
    remove(cluster.executor, order.key.attempt_id)
    cluster.wait_for(lambda: not cluster.placeholders(), what="the end of the placeholders")


def _swept(cluster: KubernetesBench, where: str) -> bool:
    cluster.executor.attempts()
    time.sleep(0.1)
    return "held.trainmaster/att-gone" not in cluster.engine.get(where)["metadata"]["annotations"]


@kubernetes
def test_a_node_that_does_not_tell_the_device_is_named(cluster):
    label(cluster, None)
    order = replace(part(cluster, "0"))

    def is_named() -> bool:
        with pytest.raises(ExecutorTryAgain) as refused:
            cluster.executor.create(order)
        return "does not report which GPU" in str(refused.value)

    cluster.wait_for(is_named, 90, "the word of the node")
    remove(cluster.executor, order.key.attempt_id)
    # kubelet may take a minute and more to let a Pod go whose containers are just being made.
    cluster.wait_for(lambda: all(map(is_sent_away, cluster.placeholders())), what="the end of the placeholders")
