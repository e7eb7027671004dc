"""An endpoint whose replicas are pods of a real cluster."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from tests.e2e import serving_story

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.kubernetes,
    pytest.mark.xdist_group("kubernetes"),
    pytest.mark.timeout(1500),
]

PYTHON = os.environ.get("TRAINMASTER_TEST_IMAGE", "python:3.11-slim")


@pytest.fixture(scope="module")
def serving_image() -> str:
    pytest.importorskip("skops")
    pytest.importorskip("torch")
    given = os.environ.get("TRAINMASTER_TEST_SERVING_IMAGE")
    if not given:
        pytest.skip("needs TRAINMASTER_TEST_SERVING_IMAGE, which the nodes have or can pull")
    return given


def test_an_endpoint_lives_in_pods(
    serving_image: str, platform: Any, cluster: Any, two_nodes: list[str], processes_of: Any, eventually: Any
) -> None:
    cluster.ensure_ready(two_nodes)

    def kill(job: str) -> None:
        pids = processes_of(f"TRAINMASTER_JOB_ID={job}")
        assert pids
        for pid in pids:
            os.kill(pid, signal.SIGKILL)

    story = serving_story.Story(platform, eventually, kill)
    output = platform.now.home / "output" / "default"
    serving_story.tell(story, output)
    # An image's own command, which runs without anything of the platform's beside it.
    story.deploy("output/default/models/one", deployment="alone", traffic=0, image=serving_image)
    story.until_ready(1, 1, "alone")
    assert story.client.predict("sums", [[2, 3]], deployment="alone") == pytest.approx([5])
    server = ["python3", "-c", serving_story.OWN_SERVER]
    reported = story.a_server_of_ones_own_is_informed_what_vertex_tells(image=PYTHON, command=server, port=9000)
    assert reported["AIP_HTTP_PORT"] == "9000"
    story.it_is_deleted()
    story.a_batch_is_predicted(output)
    eventually(lambda: not cluster.leftovers(), within_s=120, what="nothing is left of any replica")
