"""A namespace for each project, with the rights that ``rbac-per-project.yaml`` adds. Marked ``kubernetes``."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

from core.domain.errors import ExecutorRefused
from executors.base import Phase
from executors.kubernetes.api_server.access import Access
from executors.kubernetes.api_server.client import Json, KubernetesClient, ObjectNotFound
from executors.kubernetes.api_server.client import path as url
from executors.kubernetes.executor import KubernetesExecutor
from tests.contracts.executors.conftest import KubernetesBench, remove
from tests.integration.kubernetes.permissions import (
    CLUSTER_WIDE,
    IN_THE_NAMESPACE,
    PER_PROJECT,
    Limited,
    Right,
    manifests,
    right_of,
)

pytestmark = [pytest.mark.kubernetes, pytest.mark.xdist_group("kubernetes")]


class PerProject(KubernetesBench):
    """The same bench, with what it makes spread over namespaces."""

    def another(self, **options: object) -> KubernetesExecutor:
        return super().another(**{"is_per_project": True, **options})

    def namespaces(self) -> list[str]:
        items = self.engine.get(url("namespaces"), {"labelSelector": f"trainmaster/instance={self.instance}"})["items"]
        return sorted(item["metadata"]["name"] for item in items)

    def everywhere(self, kind: str, group: str = "v1") -> list[Json]:
        query = {"labelSelector": f"trainmaster/instance={self.instance},trainmaster/attempt"}
        found: list[Json] = self.engine.get(url(kind, group=group), query)["items"]
        return found

    def leftovers(self) -> list[str]:
        kinds = ("pods", "services", "secrets", "configmaps")
        found = [item for kind in kinds for item in self.everywhere(kind)]
        found += self.everywhere("networkpolicies", "networking.k8s.io/v1")
        return [str(item["metadata"]["name"]) for item in found]


@pytest.fixture(scope="module")
def base(cluster_namespace: str) -> str:
    return f"{cluster_namespace}-by"


@pytest.fixture(scope="module")
def make_access(base: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Access]]:
    """Service accounts with the rights of the manifests that are named."""
    admin = KubernetesClient()
    made: list[Limited] = []

    def make(mark: str, *files: str) -> Access:
        made.append(Limited(admin, f"{base}-{mark}", base, *files))
        return made[-1].kubeconfig(tmp_path_factory.mktemp("access"))

    yield make
    for limited in made:
        limited.close()
    admin.close()


@pytest.fixture
def used() -> set[tuple[bool, Right]]:
    """Rights that the driver used: whether in all of the cluster, and which."""
    return set()


@pytest.fixture
def bench(tmp_path, base, make_access, used) -> Iterator[PerProject]:
    image = os.environ["TRAINMASTER_TEST_RUNTIME_IMAGE"]
    access = make_access("all", "rbac.yaml", "rbac-per-project.yaml")
    made = PerProject(
        tmp_path / "cluster", image, base, access, note=lambda method, called: used.add(right_of(method, called))
    )
    yield made
    namespaces = made.namespaces()
    admin = KubernetesClient()
    try:
        made.close()
    finally:
        for name in namespaces:
            try:
                admin.delete(url("namespaces", name=name))
            except ObjectNotFound:
                pass
        admin.close()


def test_gangs_of_two_projects_live_in_two_namespaces_by_those_rights_alone(bench, base, used):
    vision = [
        bench.order(command=("sh", "-c", "sleep 600"), index=number, attempt="att-vision", project="vision")
        for number in range(2)
    ]
    speech = bench.order(command=("sh", "-c", "exit 3"), project="speech")
    assert bench.executor.create_all(vision) == [None, None]
    bench.executor.create(speech)
    for order in vision:
        bench.until(order, lambda observation: observation.phase is Phase.RUNNING)
    assert bench.ended(speech).exit.exit_code == 3
    assert bench.namespaces() == [f"{base}-speech", f"{base}-vision"]
    assert {pod["metadata"]["namespace"] for pod in bench.everywhere("pods")} == set(bench.namespaces())
    assert set(bench.executor.attempts()) == {"att-vision", speech.key.attempt_id}
    bench.executor.stop(vision[0].key, grace=vision[0].stop_grace)
    bench.ended(vision[0])
    for attempt in bench.executor.attempts():
        remove(bench.executor, attempt)
    assert set(bench.executor.attempts()) == set()
    with pytest.raises(ExecutorRefused, match="was removed"):
        bench.executor.create(speech)
    granted = CLUSTER_WIDE | IN_THE_NAMESPACE | PER_PROJECT
    assert {right for _, right in used} <= granted
    assert (True, ("create", "", "namespaces")) in used
    # What all namespaces are asked for at once the ClusterRole of projects must grant; a Role could not.
    assert {right for is_wide, right in used if is_wide} <= CLUSTER_WIDE | PER_PROJECT | {("list", "", "services")}


def test_without_the_right_to_make_namespaces_the_job_names_the_missing_one(bench, base, make_access):
    poor = bench.another(access=make_access("poor", "rbac.yaml"))
    with pytest.raises(ExecutorRefused, match=rf"Namespace {base}-other does not exist.*kubectl create namespace"):
        poor.create(bench.order(command=("true",), project="other"))


def test_a_projects_namespace_that_an_administrator_made_needs_no_right_to_make_any(bench, base, make_access):
    bench.executor.create(bench.order(command=("true",), project="given"))
    name = f"{base}-given"
    access = make_access("bound", "rbac.yaml")
    account = {"kind": "ServiceAccount", "name": "trainmaster", "namespace": f"{base}-bound-home"}
    (rules,) = [entry_["rules"] for entry_ in manifests("rbac.yaml") if entry_["kind"] == "Role"]
    rbac = "rbac.authorization.k8s.io/v1"
    for namespace in (name, base):  # the marks of removed attempts are in the base
        meta = {"name": "given", "namespace": namespace}
        bench.engine.post(url("roles", namespace, group=rbac), {"metadata": meta, "rules": rules})
        role = {"apiGroup": rbac.partition("/")[0], "kind": "Role", "name": "given"}
        binding = {"metadata": meta, "roleRef": role, "subjects": [account]}
        bench.engine.post(url("rolebindings", namespace, group=rbac), binding)
    order = bench.order(command=("true",), project="given")
    bench.another(access=access).create(order)
    assert bench.ended(order).exit.exit_code == 0
