"""Google's own SDK with a user's own container, on a real Docker engine: buckets are at /gcs in it."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.e2e.conftest import launch  # noqa: F401 (a fixture)
from tests.e2e.test_docker import PYTHON, containers, instance, left, runtime_image  # noqa: F401 (fixtures)
from tests.frameworks.conftest import folder
from tests.frameworks.test_vertex import reach, run

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.docker,
    pytest.mark.xdist_group("e2e"),
    pytest.mark.timeout(600),
]


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Google's machines are larger than those that tests run on."""
    machines = {"n1-standard-4": {"cpu": "250m", "memory": "256Mi"}}
    monkeypatch.setenv("TRAINMASTER_VERTEX", json.dumps({"machines": machines}))


def test_the_users_own_container_trains_here(
    table: None,
    containers: Any,  # noqa: F811
    python_of: Any,
    bridge_to: Any,
) -> None:
    # The one over REST, the other one over gRPC, where there is a bridge.
    versions = [name for name in ("vertex", "vertex1") if (folder() / name / "installed").exists()]
    has_bridge = (folder() / "vertex-bridge" / "installed").exists()
    ways = {"vertex": "rest", "vertex1": "grpc" if has_bridge else "rest"}
    reached = {name: reach(ways[name], containers.url, bridge_to) for name in versions or ["vertex"]}

    def train(version: str) -> Any:
        endpoint, env = reached[version]
        arguments = (endpoint, containers.token, PYTHON, version)
        return run(python_of(version), "vertex_container.py", *arguments, env=env, task=None)

    with ThreadPoolExecutor() as threads:
        told = list(threads.map(train, reached))
    for version, seen in zip(reached, told, strict=True):
        assert seen["state"] == "PIPELINE_STATE_SUCCEEDED"
        assert [one["task"] for one in seen["told"]] == ["workerpool0", "workerpool1"]
        for one in seen["told"]:
            assert (one["read"], one["args"], one["env"]) == ("from the bucket", ["--epochs=2"], "red")
            assert (one["model_dir"], one["is_contained"]) == ("/data/output/model/", True)
        assert seen["models"] == [f"runs/{version}/model/workerpool{number}.bin" for number in (0, 1)]
