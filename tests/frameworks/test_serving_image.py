"""A SavedModel in the image that is there for such: built as its users build it, run by the platform on a real Docker
engine.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from trainmaster.errors import ModelError

from tests.e2e.conftest import launch  # noqa: F401 (a fixture)
from tests.e2e.containers.test_docker import (  # noqa: F401 (fixtures)
    containers,
    docker,
    has_image,
    instance,
    left,
    runtime_image,
    settings,
)
from tests.frameworks.conftest import SCRIPTS

IMAGE = "trainmaster/serving:tensorflow"

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.docker,
    pytest.mark.xdist_group("e2e"),
    pytest.mark.timeout(600),
]


@pytest.fixture
def image(runtime_image: str) -> str:  # noqa: F811 (an engine is there)
    if not has_image(IMAGE):
        pytest.skip(f"the engine has no {IMAGE}; `python3 dev.py images tensorflow serving-tensorflow` builds it")
    return IMAGE


def test_a_saved_model_is_served_in_tensorflows_image(
    image: str,
    containers: Any,  # noqa: F811
    python_of: Any,
    eventually: Any,
) -> None:
    folder: Path = containers.home / "output" / "default" / "keras"
    saved = [python_of("tf"), str(SCRIPTS / "save_models.py"), "keras", str(folder)]
    subprocess.run(saved, check=True, capture_output=True, timeout=300)
    for path in (folder, *folder.rglob("*")):  # whoever the replica runs as
        path.chmod(0o755 if path.is_dir() else 0o644)
    client = containers.client
    client.create_endpoint("keras")
    client.deploy_model("keras", "output/default/keras", ready_timeout_s=300)

    def state() -> str:
        (one,) = client.get_endpoint("keras").deployments
        assert one.state != "failed", one.note
        return str(one.state)

    eventually(lambda: state() == "ready", within_s=300, what="the model is served")
    assert client.predict("keras", [[1, 2], [3, 0.5]]) == [[3], [3.5]]
    with pytest.raises(ModelError) as refused:
        client.predict("keras", [[1, 2, 3]])
    assert refused.value.status == 400
    assert "rejects" in str(refused.value.answer)
    (job,) = client.list_jobs(state=["running"])
    assert docker("ps", "--filter", f"label=trainmaster/job={job.id}", "--format", "{{.Image}}") == IMAGE
    client.delete_endpoint("keras")
