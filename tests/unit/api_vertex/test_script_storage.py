"""Cloud Storage for a job's own script: what the job has mounted, as the job may use it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from core.settings import Settings
from tests.unit.api_vertex.one_database import database_url  # noqa: F401 (a fixture)
from tests.unit.api_vertex.test_storage import API, UPLOAD, error_of, multipart


@pytest.fixture
def data(settings: Settings, client: TestClient) -> Path:
    folder = settings.home / "data"
    for name in ("in/x.bin", "in/deep/y.bin", "secret/z.bin", "runs/other.bin"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(name.encode())
    return folder


@pytest.fixture
def script(client: TestClient, submit: Any, start: Any, reporter: Any) -> Any:
    def make(**spec: Any) -> TestClient:
        made: TestClient = reporter(start(submit(client, **spec)))
        return made

    return make


def names(client: TestClient, bucket: str, query: str = "") -> list[str]:
    answer = client.get(f"{API}/{bucket}/o?{query}")
    assert answer.status_code == 200, answer.text
    page = answer.json()
    return [*page.get("prefixes", []), *(item["name"] for item in page.get("items", []))]


def test_a_script_reads_inputs_and_writes_outputs_and_nothing_else(script: Any, data: Path) -> None:
    own = script(input="data/in", output="data/runs/1")
    assert own.get(f"{API}/data/o/in%2Fx.bin?alt=media").content == b"in/x.bin"
    assert multipart(own, "runs/1/model/m.bin", b"weights").status_code == 200
    assert (data / "runs/1/model/m.bin").read_bytes() == b"weights"
    assert own.get(f"{API}/data/o/runs%2F1%2Fmodel%2Fm.bin").json()["size"] == "7"
    assert names(own, "data") == ["in/deep/y.bin", "in/x.bin", "runs/1/model/m.bin"]
    assert names(own, "data", "delimiter=/") == ["in/", "runs/"]
    assert names(own, "data", "delimiter=/&prefix=runs/") == ["runs/1/"]
    assert names(own, "data", "prefix=in/d") == ["in/deep/y.bin"]
    error_of(own.get(f"{API}/data/o/secret%2Fz.bin"), 404)
    assert "gs://data/runs/1/" in error_of(multipart(own, "in/x.bin", b"changed"), 403)
    assert "gs://data/runs/1/" in error_of(multipart(own, "runs/10/x.bin", b"x"), 403)
    error_of(own.delete(f"{API}/data/o/in%2Fx.bin"), 404)
    assert (data / "in/x.bin").read_bytes() == b"in/x.bin"
    assert own.delete(f"{API}/data/o/runs%2F1%2Fmodel%2Fm.bin").status_code == 204
    assert "none of this job's" in error_of(own.get(f"{API}/default"), 404)
    assert [one["name"] for one in own.get(API).json()["items"]] == ["data"]


def test_a_resumable_upload_of_a_script_ends_in_what_is_its_own(script: Any, data: Path) -> None:
    own = script(output="data/runs/1")
    begun = own.post(f"{UPLOAD}/data/o?uploadType=resumable", json={"name": "runs/1/m.bin"})
    assert own.put(begun.headers["location"], content=b"weights").status_code == 200
    assert (data / "runs/1/m.bin").read_bytes() == b"weights"
    error_of(own.post(f"{UPLOAD}/data/o?uploadType=resumable", json={"name": "secret/m.bin"}), 403)


def test_a_whole_mount_is_a_whole_bucket_and_a_read_only_one_stays_so(script: Any, data: Path) -> None:
    own = script(mounts=[{"volume": "data", "path": "", "at": "/gcs/data", "read_only": False}])
    assert multipart(own, "new/m.bin", b"x").status_code == 200
    assert "secret/z.bin" in names(own, "data")
    reader = script(mounts=[{"volume": "data", "path": "", "at": "/gcs/data", "read_only": True}])
    assert reader.get(f"{API}/data/o/secret%2Fz.bin?alt=media").content == b"secret/z.bin"
    assert "read-only" in error_of(multipart(reader, "new/n.bin", b"x"), 403)
    assert not (data / "new/n.bin").exists()


def test_on_the_volume_that_projects_share_a_script_has_its_own_output_alone(
    client: TestClient, script: Any, settings: Settings
) -> None:
    theirs = settings.home / "output/secret/model.bin"
    theirs.parent.mkdir(parents=True)
    theirs.write_bytes(b"theirs")
    own = script(output="output/default/mine")
    for bucket, name in (("default", "mine/m.bin"), ("output", "default/mine/n.bin")):
        assert multipart(own, name, b"x", bucket).status_code == 200
    assert names(own, "default") == ["mine/m.bin", "mine/n.bin"]
    assert names(own, "output") == ["default/mine/m.bin", "default/mine/n.bin"]
    error_of(own.get(f"{API}/output/o/secret%2Fmodel.bin"), 404)
    error_of(own.get(f"{API}/secret/o/model.bin"), 404)
    (settings.home / "output/default/mine/away").symlink_to("../../secret")
    error_of(own.get(f"{API}/output/o/default%2Fmine%2Faway%2Fmodel.bin"), 404)
    error_of(multipart(own, "mine/away/model.bin", b"x", "default"), 404)
    assert theirs.read_bytes() == b"theirs"


def test_an_attempts_token_ends_with_it(
    client: TestClient, submit: Any, start: Any, reporter: Any, end_attempt: Any, clock: Any, data: Path
) -> None:
    attempt = start(submit(client, output="data/runs/1"))
    own = reporter(attempt)
    assert multipart(own, "runs/1/a.bin", b"x").status_code == 200
    end_attempt(attempt)
    clock.advance(120)
    assert multipart(own, "runs/1/b.bin", b"x").status_code >= 400
    assert not (data / "runs/1/b.bin").exists()
