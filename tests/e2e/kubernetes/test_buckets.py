"""Buckets in the pods of a real cluster: what is uploaded is at /gcs there, and what is written there comes down
again.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import httpx
import pytest

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.kubernetes,
    pytest.mark.xdist_group("kubernetes"),
    pytest.mark.timeout(420),
]

PYTHON = os.environ.get("TRAINMASTER_TEST_IMAGE", "python:3.11-slim")
SCRIPT = """
import os, pathlib, sys
sets, own = map(pathlib.Path, sys.argv[1:])
(own / "runs").mkdir(exist_ok=True)
(own / "runs" / "b.txt").write_text((sets / "a.txt").read_text().upper())
model = pathlib.Path(os.environ["AIP_MODEL_DIR"])
model.mkdir(parents=True, exist_ok=True)
(model / "model.bin").write_bytes(b"weights")
print(*sorted(os.listdir("/gcs")), flush=True)
"""


@pytest.fixture
def google(platform: Any) -> Any:
    """Asks as Google's clients do; fails with what is refused."""

    def ask(method: str, path: str, **more: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {platform.now.token}"}
        answer = httpx.request(method, platform.now.url + path, headers=headers, timeout=60, trust_env=False, **more)
        assert answer.status_code == 200, answer.text
        return answer

    return ask


def test_a_bucket_is_a_folder_in_every_pod(platform: Any, google: Any) -> None:
    home: Path = platform.now.home
    google("POST", "/upload/storage/v1/b/data/o?uploadType=media&name=sets/a.txt", content=b"from the bucket")
    assert (home / "data" / "sets" / "a.txt").read_bytes() == b"from the bucket"
    program = {
        "imageUri": PYTHON,
        "command": ["python3", "-c", SCRIPT],
        "args": ["/gcs/data/sets", "/gcs/default"],
    }
    pool = {"machineSpec": {"machineType": "n1-standard-4"}, "replicaCount": "1", "containerSpec": program}
    made = google(
        "POST",
        "/v1/projects/default/locations/us-central1/customJobs",
        json={
            "displayName": "buckets",
            "jobSpec": {"workerPoolSpecs": [pool], "baseOutputDirectory": {"outputUriPrefix": "gs://default/out"}},
        },
    ).json()
    job = platform.client.job(made["name"].rpartition("/")[2])
    detail = job.wait(timeout_s=240)
    log = "\n".join(line.text for line in job.logs())
    assert detail.state == "succeeded", f"{detail.exit}\n{log}"
    assert log.splitlines()[-1].split() == ["data", "default"]
    for name, content in (("runs%2Fb.txt", b"FROM THE BUCKET"), ("out%2Fmodel%2Fmodel.bin", b"weights")):
        assert google("GET", f"/download/storage/v1/b/default/o/{name}?alt=media").content == content
