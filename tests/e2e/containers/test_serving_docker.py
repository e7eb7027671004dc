"""An endpoint whose replicas are containers of a real Docker engine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import serving_story
from tests.e2e.containers.test_docker import (  # noqa: F401 (fixtures)
    PYTHON,
    containers,
    docker,
    has_image,
    instance,
    left,
    runtime_image,
)

SERVING = os.environ.get("TRAINMASTER_TEST_SERVING_IMAGE", "trainmaster/serving:cpu")

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.docker,
    pytest.mark.xdist_group("e2e"),
    pytest.mark.timeout(1500),
]


@pytest.fixture(scope="module")
def settings() -> dict[str, str]:
    return {"TRAINMASTER_SERVING_IMAGE": SERVING}


@pytest.fixture
def serving_image(runtime_image: str) -> str:  # noqa: F811 (an engine is there)
    if not has_image(SERVING):
        pytest.skip(f"the engine has no {SERVING}; `python3 dev.py images` builds it")
    pytest.importorskip("skops")
    pytest.importorskip("torch")
    return SERVING


@pytest.fixture
def own_image(serving_image: str, instance: str, tmp_path: Path) -> Iterator[str]:  # noqa: F811
    """An image with a server of its own as its entrypoint, as one would bring to Vertex AI."""
    name, folder = f"{instance}-own", tmp_path / "own-image"
    folder.mkdir()
    (folder / "server.py").write_text(serving_story.OWN_SERVER)
    (folder / "Dockerfile").write_text(f'FROM {PYTHON}\nCOPY server.py /\nENTRYPOINT ["python", "/server.py"]\n')
    assert docker("build", "-q", "-t", name, str(folder))
    yield name
    docker("rmi", "-f", name)


def test_an_endpoint_lives_in_containers(
    own_image: str,
    containers: Any,  # noqa: F811
    eventually: Any,
    left: Any,  # noqa: F811
) -> None:
    def kill(job: str) -> None:
        (container,) = docker("ps", "-q", "--filter", f"label=trainmaster/job={job}").split()
        assert docker("kill", "-s", "KILL", container)

    story = serving_story.Story(containers, eventually, kill)
    output = containers.home / "output" / "default"
    serving_story.tell(story, output)
    reported = story.a_server_of_ones_own_is_informed_what_vertex_tells(image=own_image, port=9000)
    assert reported["AIP_HTTP_PORT"] == "9000"
    story.it_is_deleted()
    story.a_batch_is_predicted(output)
    eventually(lambda: not left(), within_s=60, what="nothing is left of any replica")
