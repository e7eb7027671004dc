"""The chart on a real cluster: installed by Helm itself, used, restarted under load, upgraded, taken away."""

from __future__ import annotations

import base64
import os
import secrets
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from trainmaster import Client

CHART = Path(__file__).parents[3] / "deploy" / "helm" / "trainmaster"
CONTROL_IMAGE = os.environ.get("TRAINMASTER_TEST_CONTROL_IMAGE", "")
RUNTIME_IMAGE = os.environ.get("TRAINMASTER_TEST_RUNTIME_IMAGE", "")
JOB_IMAGE = os.environ.get("TRAINMASTER_TEST_JOB_IMAGE", "python:3.11-slim")

pytestmark = [pytest.mark.e2e, pytest.mark.kubernetes, pytest.mark.timeout(600), pytest.mark.xdist_group("kubernetes")]


@dataclass
class Installed:
    """One release in a namespace of its own. Its Services are headless, for not every test cluster routes the
    others.
    """

    core: Any
    apps: Any
    helm: Any
    name: str
    values: dict[str, Any]
    token: str = ""
    refused: list[str] = field(default_factory=list)

    def addresses(self) -> list[str]:
        """Of the API pods that are ready, as the cluster tells its proxies."""
        subsets = self.core.read_namespaced_endpoints(f"{self.name}-api", self.name).subsets or ()
        return [address.ip for subset in subsets for address in subset.addresses or ()]

    def url(self) -> str:
        return f"http://{self.addresses()[0]}:8765"

    def is_rolled_out(self, part: str) -> bool:
        found = self.apps.read_namespaced_deployment(f"{self.name}-{part}", self.name)
        status, wanted = found.status, found.spec.replicas
        return (
            status.observed_generation == found.metadata.generation
            and (status.updated_replicas, status.ready_replicas, status.replicas) == (wanted, wanted, wanted)
        )  # fmt: skip

    def pods(self, part: str) -> list[Any]:
        selector = f"app.kubernetes.io/instance={self.name},app.kubernetes.io/component={part}"
        found: list[Any] = self.core.list_namespaced_pod(self.name, label_selector=selector).items
        return found


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installed]:
    if not os.environ.get("KUBECONFIG"):
        pytest.skip("KUBECONFIG names no cluster")
    if not (CONTROL_IMAGE and RUNTIME_IMAGE):
        pytest.skip(
            "TRAINMASTER_TEST_CONTROL_IMAGE and TRAINMASTER_TEST_RUNTIME_IMAGE name no images of the cluster's nodes"
        )
    helm = pytest.importorskip("helm_python", reason="helm-python-sdk is not installed")
    from kubernetes import client, config

    api = config.new_client_from_config()
    core, name = client.CoreV1Api(api), f"trainmaster-{secrets.token_hex(4)}"
    shared = tmp_path_factory.mktemp("nodes")
    repository, _, tag = CONTROL_IMAGE.rpartition(":")
    values = {
        "image": {"repository": repository, "tag": tag},
        "storage": {part: {"hostPath": str(shared / part)} for part in ("home", "output", "data")} | {"chown": True},
        "jobs": {"namespace": f"{name}-jobs", "runtimeImage": RUNTIME_IMAGE, "defaultImage": JOB_IMAGE},
        "api": {"service": {"headless": True}, "resources": _small()},
        "scheduler": {"resources": _small()},
        "beat": {"replicas": 1, "resources": _small()},
        "migrate": {"resources": _small()},
        "bundled": {"postgresql": {"resources": _small()}, "redis": {"resources": _small()}},
    }
    with helm.Config(kubeconfig_path=os.environ["KUBECONFIG"], namespace=name) as releases:
        one = Installed(core, client.AppsV1Api(api), releases, name, values)
        try:
            core.create_namespace({"metadata": {"name": name}})
            releases.install(str(CHART), name, values, namespace=name, dry_run="server")
            releases.install(str(CHART), name, values, namespace=name)
            yield one
        finally:
            _take_away(one, client.RbacAuthorizationV1Api(api))


def _small() -> dict[str, Any]:
    return {"requests": {"cpu": "10m", "memory": "64Mi"}, "limits": {"memory": "1Gi"}}


def _take_away(one: Installed, rbac: Any) -> None:
    try:
        one.helm.uninstall(one.name)
        selector = f"app.kubernetes.io/instance={one.name}"
        assert not rbac.list_cluster_role(label_selector=selector).items
        assert not rbac.list_cluster_role_binding(label_selector=selector).items
    finally:
        for namespace in (one.name, f"{one.name}-jobs"):
            one.core.delete_namespace(namespace)


@pytest.fixture
def ready(installed: Installed, eventually: Callable[..., Any]) -> Installed:
    for part in ("api", "scheduler", "beat"):
        eventually(lambda part=part: installed.is_rolled_out(part), within_s=300, what=f"{part} is rolled out")
    # The admin's token is known a moment after the tables are there.
    eventually(
        lambda: {pod.status.phase for pod in installed.pods("migrate")} == {"Succeeded"},
        within_s=60,
        what="migrations end",
    )
    if not installed.token:
        data = installed.core.read_namespaced_secret(f"{installed.name}-keys", installed.name).data
        installed.token = base64.b64decode(data["admin-token"]).decode()
        # It is ready: from here on the tests talk to its pods, and a cluster named to them must let them.
        urllib.request.urlopen(f"{installed.url()}/api/v1/live", timeout=5).close()
    return installed


def test_the_platform_is_healthy_and_runs_a_gang_with_the_rights_of_the_chart_alone(
    ready: Installed, eventually: Callable[..., Any]
) -> None:
    with Client(ready.url(), token=ready.token) as client:
        eventually(lambda: client.get_health().status == "ok", within_s=60, what="all parts are well")
        job = client.submit(
            {
                "name": "hello",
                "workers": 2,
                "cpu": "50m",
                "memory": "128Mi",
                "command": ["python3", "-c", "import os; print('rank', os.environ['RANK'], flush=True)"],
            }
        )
        eventually(
            lambda: client.get_job(job.id).state not in ("queued", "starting", "running"), within_s=90, what="it ends"
        )
        found = client.get_job(job.id)
        assert found.state == "succeeded", found
    ready.helm.test(ready.name, timeout=90)  # raises where its pod fails


def test_a_rolling_restart_loses_no_request(ready: Installed, eventually: Callable[..., Any]) -> None:
    before = {pod.metadata.name for pod in ready.pods("api")}
    served, is_over = [0], threading.Event()

    def ask() -> None:
        while not is_over.is_set():
            request = urllib.request.Request(
                f"http://{secrets.choice(ready.addresses())}:8765/api/v1/jobs",
                headers={"Authorization": f"Bearer {ready.token}"},
            )
            try:
                urllib.request.urlopen(request, timeout=60).close()
                served[0] += 1
            except OSError as error:
                ready.refused.append(repr(error))
            time.sleep(0.05)

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        again = {"spec": {"template": {"metadata": {"annotations": {"restarted": secrets.token_hex(4)}}}}}
        ready.apps.patch_namespaced_deployment(f"{ready.name}-api", ready.name, again)
        eventually(lambda: ready.is_rolled_out("api"), within_s=120, what="the API is rolled out anew")
        eventually(
            lambda: not before & {pod.metadata.name for pod in ready.pods("api")},
            within_s=60,
            what="the old pods are gone",
        )
    finally:
        is_over.set()
        asking.join()
    assert served[0] > 50
    assert ready.refused == []


def test_an_upgrade_keeps_the_keys_and_migrates_again(ready: Installed, eventually: Callable[..., Any]) -> None:
    keys = ready.core.read_namespaced_secret(f"{ready.name}-keys", ready.name).data
    ready.helm.upgrade(str(CHART), ready.name, {**ready.values, "logLevel": "WARNING"})
    assert ready.core.read_namespaced_secret(f"{ready.name}-keys", ready.name).data == keys
    for part in ("api", "scheduler", "beat"):
        eventually(lambda part=part: ready.is_rolled_out(part), within_s=240, what=f"{part} is upgraded")
    with Client(ready.url(), token=ready.token) as client:
        assert client.get_job("hello").state == "succeeded"
