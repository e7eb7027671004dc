from __future__ import annotations

import os
import uuid
from collections.abc import Iterator

import pytest

from executors.kubernetes.api_server.client import KubernetesClient, ObjectNotFound, path


@pytest.fixture(scope="session")
def admin() -> Iterator[KubernetesClient]:
    """The cluster of KUBECONFIG, with its credentials."""
    if not os.environ.get("KUBECONFIG"):
        pytest.skip("needs a cluster: set KUBECONFIG")
    cluster = KubernetesClient(qps=1000)
    yield cluster
    cluster.close()


@pytest.fixture
def namespace(admin: KubernetesClient) -> Iterator[str]:
    """A namespace of this test's own."""
    name = f"test-{uuid.uuid4().hex[:8]}"
    admin.post(path("namespaces"), {"metadata": {"name": name}})
    yield name
    try:
        admin.delete(path("namespaces", name=name))
    except ObjectNotFound:
        pass
