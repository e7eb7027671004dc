"""Google's own SDK with a user's own container, on a real Docker engine: buckets are at /gcs in it."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.e2e.conftest import launch  # noqa: F401 (a fixture)
from tests.e2e.containers.test_docker import PYTHON, containers, instance, left, runtime_image  # noqa: F401 (fixtures)
from tests.frameworks.conftest import folder
from tests.frameworks.test_vertex import reach, run

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.docker,
    pytest.mark.xdist_group("e2e"),
    pytest.mark.timeout(600),
]


# Each version over each transport, where there are both and a bridge; and the image that a local script of each runs
# in.
PREBUILT = "us-docker.pkg.dev/vertex-ai/training/pytorch-cpu.2-4.py310:latest"
WAYS = {
    ("vertex", "rest"): PYTHON,
    ("vertex", "grpc"): PREBUILT,
    ("vertex1", "rest"): PREBUILT,
    ("vertex1", "grpc"): PYTHON,
}


@pytest.fixture(scope="module")
def settings() -> dict[str, str]:
    """Google's machines are larger than those that tests run on, and its registry is not asked."""
    sizes = {"n1-standard-4": "100m", "n1-standard-8": "250m"}
    machines = {name: {"cpu": cpu, "memory": "256Mi"} for name, cpu in sizes.items()}
    return {"TRAINMASTER_VERTEX": json.dumps({"machines": machines, "images": {PREBUILT: PYTHON}})}


def test_the_users_own_containers_and_scripts_train_here(
    containers: Any,  # noqa: F811
    python_of: Any,
    bridge_to: Any,
) -> None:
    there = {path.parent.name for path in folder().glob("*/installed")}
    ways = [way for way in WAYS if way[0] in there and (way[1] == "rest" or "vertex-bridge" in there)]
    if os.environ.get("CI") == "true":  # where all frameworks are installed, nothing is left out quietly
        assert ways == list(WAYS)
    # All at once: they mostly wait.
    reached = {way: reach(way[1], containers.url, bridge_to) for way in ways or [("vertex", "rest")]}

    def train(way: tuple[str, str]) -> Any:
        endpoint, env = reached[way]
        arguments = (endpoint, containers.token, PYTHON, "-".join(way), WAYS[way])
        return run(python_of(way[0]), "vertex_container.py", *arguments, env=env)

    with ThreadPoolExecutor() as threads:
        reported = list(threads.map(train, reached))
    for way, seen in zip(reached, reported, strict=True):
        assert seen["state"] == "PIPELINE_STATE_SUCCEEDED"
        assert [one["task"] for one in seen["told"]] == ["workerpool0", "workerpool1"]
        for one in seen["told"]:
            assert (one["read"], one["args"], one["env"]) == ("from the bucket", ["--epochs=2"], "red")
            assert (one["model_dir"], one["is_contained"]) == ("/data/output/model/", True)
        assert seen["models"] == [f"runs/{'-'.join(way)}/model/workerpool{number}.bin" for number in (0, 1)]
        assert seen["script_state"] == "JOB_STATE_SUCCEEDED"
        script = seen["script"]
        assert (script["epochs"], script["six"], script["model_dir"]) == (3, "six", "/data/output/model/")
