"""Client, copies, namespaces and objects against a real API server."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import replace

import pytest

from core.domain.errors import ExecutorRefused
from core.domain.ids import AttemptId
from executors.base import MountOrder, VolumeSource
from executors.containers import labels
from executors.kubernetes.api_server.client import ApiRefused, KubernetesClient, ObjectExists, ObjectNotFound, path
from executors.kubernetes.cache import PodCache
from executors.kubernetes.namespaces import Namespaces
from executors.kubernetes.nodes import KubernetesNodeCache, NodeRules
from executors.kubernetes.options import KubernetesOptions
from executors.kubernetes.policy import policies_url, render_policy
from executors.kubernetes.volumes import render_volume
from tests.integration.kubernetes.permissions import Limited
from tests.orders import bare_order

pytestmark = [pytest.mark.kubernetes, pytest.mark.xdist_group("kubernetes")]

ATTEMPT = AttemptId("att-1")


def pod(name, *, instance="", node="node-that-is-not", cpu="100m", **spec):
    """A pod that no kubelet runs: there is no node of its name."""
    labels = {"trainmaster/instance": instance, "trainmaster/attempt": ATTEMPT} if instance else {}
    main = {"name": "main", "image": "none", "resources": {"requests": {"cpu": cpu, "memory": "64Mi"}}}
    return {
        "metadata": {"name": name, "labels": labels},
        "spec": {"nodeName": node, "containers": [main], "terminationGracePeriodSeconds": 0, **spec},
    }


def until(condition: Callable[[], bool], limit_s: float = 15.0) -> None:
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, "it never came to that"
        time.sleep(0.02)


def order(project="vision", **fields):
    return bare_order(ATTEMPT, project=project, api_url="http://192.0.2.7:8765", **fields)


@pytest.fixture
def instance():
    return f"test-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def pods(admin, instance):
    cache = PodCache(admin, instance, main="main", page=3)
    yield cache
    cache.reflector.stop()


def test_the_server_says_what_is_wrong_in_its_own_words(admin, namespace):
    url = path("pods", namespace)
    with pytest.raises(ApiRefused, match=r"spec\.containers: Required value"):
        admin.post(url, {"metadata": {"name": "a"}, "spec": {"containers": []}})
    with pytest.raises(ObjectNotFound):
        admin.get(path("pods", namespace, "nobody"))
    admin.post(url, pod("a"))
    with pytest.raises(ObjectExists):
        admin.post(url, pod("a"))
    with pytest.raises(ObjectNotFound):
        admin.post(path("pods", f"{namespace}-x"), pod("a"))


def test_a_quota_is_a_refusal_with_its_numbers(admin, namespace):
    quota = {"metadata": {"name": "small"}, "spec": {"hard": {"pods": "0"}}}
    admin.post(path("resourcequotas", namespace), quota)
    until(lambda: "hard" in admin.get(path("resourcequotas", namespace, "small")).get("status", {}))
    with pytest.raises(ApiRefused, match="exceeded quota: small") as raised:
        admin.post(path("pods", namespace), pod("a"))
    assert raised.value.http_status == 403


def test_a_delete_can_ask_for_the_very_object(admin, namespace):
    uid = admin.post(path("pods", namespace), pod("a"))["metadata"]["uid"]
    url = path("pods", namespace, "a")
    with pytest.raises(Exception, match="UID"):
        admin.delete(url, options={"preconditions": {"uid": "another"}})
    admin.delete(url, options={"preconditions": {"uid": uid}, "gracePeriodSeconds": 0})
    with pytest.raises(ObjectNotFound):
        admin.get(url)


def test_the_copy_follows_pods_and_a_fresh_list_confirms_absence(admin, namespace, instance, pods):
    pods.reflector.require()
    url = path("pods", namespace)
    for name in ("a", "b", "c", "d"):
        admin.post(url, pod(name, instance=instance))
    admin.post(url, pod("foreign", cpu="700m"))
    until(lambda: len(pods.pods(ATTEMPT)) == 4)
    until(lambda: pods.foreign_usage()["node-that-is-not"].pods >= 5)
    assert pods.wait_for_change(5) == {ATTEMPT}
    assert [mark[labels.ATTEMPT] for mark in pods.labels_of_attempts()] == [ATTEMPT]
    admin.delete(path("pods", namespace, "a"), options={"gracePeriodSeconds": 0})
    assert len(pods.fresh(ATTEMPT)) == 3
    until(lambda: len(pods.pods(ATTEMPT)) == 3)
    assert pods.reflector.counts["lists"] == 1


def test_a_second_copy_finds_what_is_there(admin, namespace, instance, pods):
    for name in ("a", "b", "c", "d"):
        admin.post(path("pods", namespace), pod(name, instance=instance))
    assert len(pods.pods(ATTEMPT)) == 4, "over two pages"


def test_nodes_give_what_other_pods_leave(admin, namespace, pods):
    nodes = KubernetesNodeCache(admin, pods, NodeRules())
    before = {info.name: info for info in nodes.infos()}
    name = next(name for name, info in before.items() if info.is_ready)
    # Pending for kubelet too: it asks for what the node has, and the image does not exist.
    admin.post(path("pods", namespace), pod("foreign", node=name, cpu="250m"))

    def now():
        return next(info for info in nodes.infos() if info.name == name)

    until(lambda: now().allocatable.cpu_milli <= before[name].allocatable.cpu_milli - 250)
    admin.delete(path("pods", namespace, "foreign"), options={"gracePeriodSeconds": 0})
    nodes.reflector.stop()


def test_a_network_policy_is_taken_and_goes_with_its_owner(admin, namespace, instance):
    service = {"metadata": {"name": "att-1"}, "spec": {"clusterIP": "None", "selector": {"a": "b"}}}
    made = admin.post(path("services", namespace), service)
    owner = {"apiVersion": "v1", "kind": "Service", "name": "att-1", "uid": made["metadata"]["uid"]}
    admin.post(policies_url(namespace), render_policy(order(), instance, namespace, owner))
    admin.delete(path("services", namespace, "att-1"))

    def is_gone() -> bool:
        return not admin.list_page(policies_url(namespace))["items"]

    until(is_gone, 60)


@pytest.mark.parametrize(
    "source",
    [
        VolumeSource("v", "local", {"path": "/srv"}, "a/b"),
        VolumeSource("v", "nfs", {"server": "nfs", "path": "/export"}, "a"),
        VolumeSource("v", "pvc", {"claim": "sets", "read_only": True}),
        VolumeSource(
            "v", "csi", {"driver": "csi.example.org", "attributes": {"a": "b"}, "secret": "s", "fs_type": "ext4"}
        ),
    ],
    ids=lambda source: source.kind,
)
def test_the_api_server_takes_each_kind_of_volume_as_it_is_rendered(admin, namespace, source):
    volume, mount = render_volume(source, name="v", target="/data/data", read_only=True, host_paths=("/srv",))
    body = pod("a", volumes=[volume])
    body["spec"]["containers"][0]["volumeMounts"] = [mount]
    stored = admin.post(path("pods", namespace), body)["spec"]
    preserved = next(item for item in stored["volumes"] if item["name"] == "v")
    assert {**preserved, **volume} == preserved, "nothing that we wrote was dropped"
    assert mount in stored["containers"][0]["volumeMounts"]


def test_a_namespace_is_made_when_it_is_needed_and_grows_as_lax_as_its_jobs_need(admin, instance):
    options = KubernetesOptions(instance, instance, "runtime", is_per_project=True)
    namespaces = Namespaces(admin, options)
    try:
        name = namespaces.ensure(order())
        assert name == f"{instance}-vision"
        own = admin.get(path("namespaces", name=name))["metadata"]["labels"]
        assert own["pod-security.kubernetes.io/enforce"] == "restricted"
        assert own["trainmaster/project"] == "vision"
        local = order(mounts=(MountOrder("/srv", "/data/data", True, VolumeSource("v", "local", {"path": "/srv"})),))
        for again in (namespaces, Namespaces(admin, options)):  # a second process knows nothing
            assert again.ensure(local) == name
            own = admin.get(path("namespaces", name=name))["metadata"]["labels"]
            assert own["pod-security.kubernetes.io/enforce"] == "privileged"
    finally:
        admin.delete(path("namespaces", name=f"{instance}-vision"))


def test_a_namespace_that_we_may_not_make_is_requested_in_words(admin, namespace, instance, tmp_path):
    limited = Limited(admin, f"{instance}", namespace, "rbac.yaml")
    cluster = KubernetesClient(limited.kubeconfig(tmp_path))
    try:
        assert Namespaces(cluster, KubernetesOptions(instance, namespace, "runtime")).ensure(order()) == namespace
        other = KubernetesOptions(instance, f"{namespace}-x", "runtime")
        # We may not even look whether it is there: then the first call into it tells.
        assert Namespaces(cluster, other).ensure(order()) == f"{namespace}-x"
        with pytest.raises((ExecutorRefused, ObjectNotFound)):
            cluster.post(path("pods", f"{namespace}-x"), pod("a"))
    finally:
        cluster.close()
        limited.close()


def test_a_project_with_a_long_name_still_has_a_namespace_of_its_own(admin):
    namespaces = Namespaces(admin, KubernetesOptions("i", "trainmaster-jobs", "runtime", is_per_project=True))
    long, twin = "p" * 63, "p" * 62 + "q"
    assert len(namespaces.name_of(long)) <= 63
    assert namespaces.name_of(long) != namespaces.name_of(twin)
    assert namespaces.name_of("") == "trainmaster-jobs"


def test_orders_of_one_project_meet_in_one_namespace(admin):
    namespaces = Namespaces(admin, KubernetesOptions("i", "jobs", "runtime"))
    assert namespaces.name_of("a") == namespaces.name_of("b") == namespaces.scope() == "jobs"
    assert namespaces.of_attempt(ATTEMPT, ()) == {"jobs"}
    assert replace(order(), project="x").project == "x"
