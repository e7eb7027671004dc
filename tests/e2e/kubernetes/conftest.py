"""A platform whose jobs run on a real cluster. What it needs is told by the environment:

``KUBECONFIG``: the cluster. ``TRAINMASTER_TEST_POD_HOST``: an address of this machine that pods reach.
``TRAINMASTER_TEST_TORCH_IMAGE``, ``TRAINMASTER_TEST_RUNTIME_IMAGE``: images that its nodes have or can pull.
``TRAINMASTER_TEST_SERVING_IMAGE``: one more, for those that serve models; without it they are skipped.
``TRAINMASTER_TEST_KILL_NODE``, ``TRAINMASTER_TEST_START_NODE``: commands that take a node's name.
The nodes are to see this machine's files at the same paths.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
NEEDED = (
    "KUBECONFIG",
    "TRAINMASTER_TEST_POD_HOST",
    "TRAINMASTER_TEST_TORCH_IMAGE",
    "TRAINMASTER_TEST_RUNTIME_IMAGE",
)


class KubernetesClient:
    """The cluster as its administrator sees it, beside the platform."""

    def __init__(self, instance: str, namespace: str) -> None:
        from kubernetes import client, config

        api = config.new_client_from_config()
        self.core = client.CoreV1Api(api)
        self.policies = client.NetworkingV1Api(api)
        self.instance = instance
        self.namespace = namespace

    @property
    def nodes(self) -> list[str]:
        """Names of the ready nodes."""
        return [
            node.metadata.name
            for node in self.core.list_node().items
            if any(c.type == "Ready" and c.status == "True" for c in node.status.conditions)
        ]

    def pods(self, job: str | None = None) -> list[Any]:
        selector = f"trainmaster/instance={self.instance}" + (f",trainmaster/job={job}" if job else "")
        found: list[Any] = self.core.list_pod_for_all_namespaces(label_selector=selector).items
        return found

    def leftovers(self, job: str | None = None) -> list[str]:
        """Names of everything that the platform made, of one job or of all."""
        selector = f"trainmaster/instance={self.instance}" + (
            f",trainmaster/job={job}" if job else ",trainmaster/attempt"
        )
        lists = (
            self.core.list_pod_for_all_namespaces,
            self.core.list_service_for_all_namespaces,
            self.core.list_secret_for_all_namespaces,
            self.core.list_config_map_for_all_namespaces,
            self.policies.list_network_policy_for_all_namespaces,
        )
        return [
            f"{one.__name__[5:-23]} {item.metadata.name}"
            for one in lists
            for item in one(label_selector=selector).items
        ]

    def ensure_ready(self, wanted: list[str], within_s: float = 120) -> None:
        """Start those of ``wanted`` that an earlier test killed."""
        start = os.environ.get("TRAINMASTER_TEST_START_NODE", "")
        for node in set(wanted) - set(self.nodes):
            if start:
                run_command(start, node)
        end = time.monotonic() + within_s
        while not set(wanted) <= set(self.nodes):
            assert time.monotonic() < end, f"only {self.nodes} are ready"
            time.sleep(0.5)

    def close(self) -> None:
        from kubernetes.client.exceptions import ApiException

        with suppress(ApiException):
            self.core.delete_namespace(self.namespace, grace_period_seconds=0)


def run_command(template: str, node: str) -> None:
    subprocess.run([*shlex.split(template), node], check=True, timeout=120)


@pytest.fixture(scope="session")
def cluster_name() -> str:
    missing = [name for name in NEEDED if not os.environ.get(name)]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}: see tests/e2e/kubernetes/conftest.py")
    return f"e2e-{uuid.uuid4().hex[:8]}"


@pytest.fixture(scope="session")
def cluster(cluster_name: str) -> Iterator[KubernetesClient]:
    cluster = KubernetesClient(cluster_name, cluster_name)
    yield cluster
    cluster.close()


@pytest.fixture(scope="session")
def two_nodes(cluster: KubernetesClient) -> list[str]:
    """Names of two nodes with at least 4 GPUs each."""
    able = [
        node.metadata.name
        for node in cluster.core.list_node().items
        if not node.spec.taints  # as nodes without a machine, of somebody's benchmark
        and int((node.status.allocatable or {}).get("nvidia.com/gpu", "0")) >= 4
        and node.metadata.name in cluster.nodes
    ]
    if len(able) < 2:
        pytest.skip("needs two nodes with 4 GPUs each")
    return able[:2]


@pytest.fixture(scope="session")
def kubeconfig(cluster: KubernetesClient, cluster_name: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of a service account with the rights of ``deploy/kubernetes/rbac.yaml``, and no others."""
    from executors.kubernetes.api_server.client import KubernetesClient as Api
    from tests.integration.kubernetes.permissions import Limited

    assert cluster.nodes, "nobody is there to run anything"
    admin = Api()
    limited = Limited(admin, cluster_name, cluster_name, "rbac.yaml")
    try:
        yield limited.kubeconfig(tmp_path_factory.mktemp("access")).kubeconfig
    finally:
        limited.close()
        admin.close()


@pytest.fixture(scope="session")
def environment(cluster_name: str, kubeconfig: str) -> dict[str, str]:
    """Settings of the platform under test."""
    return {
        "KUBECONFIG": kubeconfig,
        "TRAINMASTER_EXECUTOR": "kubernetes",
        "TRAINMASTER_INSTANCE": cluster_name,
        "TRAINMASTER_KUBERNETES_NAMESPACE": cluster_name,
        "TRAINMASTER_DEFAULT_IMAGE": os.environ["TRAINMASTER_TEST_TORCH_IMAGE"],
        "TRAINMASTER_RUNTIME_IMAGE": os.environ["TRAINMASTER_TEST_RUNTIME_IMAGE"],
        "TRAINMASTER_SERVING_IMAGE": os.environ.get("TRAINMASTER_TEST_SERVING_IMAGE", "trainmaster/serving:cpu"),
        "TRAINMASTER_NODE_GRACE_S": "3",
        # Google's machines are larger than those that tests run on.
        "TRAINMASTER_VERTEX": json.dumps({"machines": {"n1-standard-4": {"cpu": "250m", "memory": "256Mi"}}}),
    }


@pytest.fixture(scope="session")
def cluster_home() -> Iterator[Path]:
    """Not under pytest's own folder, which other users may not enter: the jobs run as one of them."""
    home = Path(tempfile.mkdtemp(prefix="trainmaster-cluster-"))
    home.chmod(0o755)
    yield home
    shutil.rmtree(home, ignore_errors=True)


class OnCluster:
    """A running platform, and the way to start it again."""

    def __init__(self, launch: Callable[[], Any]) -> None:
        self._launch = launch
        self.now: Any = launch()

    @property
    def client(self) -> Any:
        return self.now.client

    def kill_and_start_again(self) -> None:
        """kill -9 to the supervisor, which takes API and scheduler with it."""
        self.now.process.send_signal(signal.SIGKILL)
        self.now.process.wait()
        self.start_again()

    def start_again(self) -> None:
        """After it was ended."""
        self.now = self._launch()


@pytest.fixture(scope="module")
def platform(
    cluster: KubernetesClient, two_nodes: list[str], environment: dict[str, str], cluster_home: Path, launch: Any
) -> Iterator[OnCluster]:
    running = OnCluster(
        lambda: launch(cluster_home / "home", host=os.environ["TRAINMASTER_TEST_POD_HOST"], env=environment)
    )
    script = ROOT / "examples" / "data" / "make_digits.py"
    subprocess.run([sys.executable, str(script), str(cluster_home / "home" / "data" / "digits")], check=True)
    yield running
    for job in running.client.list_jobs(state=["queued", "starting", "running", "paused"]):
        with suppress(Exception):
            running.client.cancel_job(job.id)
    end = time.monotonic() + 60
    while cluster.leftovers() and time.monotonic() < end:
        time.sleep(0.5)
    running.now.stop()
