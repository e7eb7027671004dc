"""Who may read and write where: a viewer's right stays to read, whichever way a job names another project's folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from api.app.cache import CachedVolume
from api.auth import Caller, ProjectMembership, Role, Scope
from api.volumes.access import access_refusal
from core.settings import Settings

THEIRS = "output/vision/gold"
WRITABLE = {"volume": "output", "path": "vision/gold", "at": "/mnt/a", "read_only": False}
STUDY = {
    "name": "search",
    "parameters": {"x": {"type": "float", "min": 0, "max": 1}},
    "metric": "score",
    "goal": "maximize",
    "algorithm": "random",
    "budget": {"trials": 4, "parallel": 2},
}


@pytest.fixture
def eve(client: TestClient, as_user: Callable[..., TestClient], settings: Settings) -> TestClient:
    """Member of project default, viewer of project vision, which has the file gold/file."""
    assert client.post("/api/v1/projects", json={"name": "vision"}).status_code == 201
    as_user("eve", role="viewer", project="vision")
    (settings.home / THEIRS).mkdir(parents=True)
    (settings.home / THEIRS / "file").write_text("gold")
    return as_user("eve")


def job(**spec: Any) -> dict[str, Any]:
    return {"spec": {"name": "digits", "command": "true", **spec}}


def vertex(uri: str, *command: str) -> dict[str, Any]:
    pool: dict[str, Any] = {"machineSpec": {"machineType": "n1-standard-4"}, "replicaCount": 1}
    pool["containerSpec"] = {"imageUri": "x", "command": list(command)}
    return {
        "displayName": "x",
        "jobSpec": {"workerPoolSpecs": [pool], "baseOutputDirectory": {"outputUriPrefix": uri}},
    }


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/api/v1/jobs", job(mounts=[WRITABLE]), "mounts.0"),
        ("/api/v1/jobs", job(mounts=[{**WRITABLE, "path": "vision"}]), "mounts.0"),
        ("/api/v1/jobs", job(output=THEIRS), "output"),
        ("/api/v1/jobs", job(output="output/vision"), "output"),
        ("/api/v1/forecasts", job(output=THEIRS), "output"),
        (
            "/api/v1/studies",
            {"spec": {**STUDY, "template": {"command": "train", "output": THEIRS}}},
            "template.output",
        ),
        (
            "/api/v1/projects/default/batch-predictions",
            {"model": "data/model", "input": "data/in", "output": THEIRS, "name": "b"},
            "output",
        ),
    ],
)
def test_a_viewer_writes_nowhere_in_the_project(
    eve: TestClient, settings: Settings, path: str, body: Any, field: str
) -> None:
    for folder in ("model", "in"):
        (settings.home / "data" / folder).mkdir()
    refused = eve.post(path, json=body)
    assert refused.status_code == 422, refused.text
    errors = {error["path"]: error for error in refused.json()["errors"]}
    assert "only a viewer" in errors[field]["message"]
    assert "role member" in errors[field]["hint"]


def test_a_clone_and_its_changes_are_checked_like_a_submission(eve: TestClient) -> None:
    original = eve.post("/api/v1/jobs", json=job()).json()["id"]
    refused = eve.post(f"/api/v1/jobs/{original}/clone", json={"changes": {"output": THEIRS}})
    assert (refused.status_code, refused.json()["field"]) == (422, "output")


@pytest.mark.parametrize("uri", ["gs://vision/gold", "gs://output/vision/gold"])
def test_no_vertex_job_writes_to_a_bucket_that_its_user_may_only_read(eve: TestClient, uri: str) -> None:
    refused = eve.post("/v1/projects/default/locations/us-central1/customJobs", json=vertex(uri, "true"))
    assert refused.status_code in (400, 403), refused.text
    assert "the role member" in refused.json()["error"]["message"]


def test_a_vertex_job_mounts_read_only_what_its_user_may_only_read(eve: TestClient) -> None:
    body = vertex("gs://default/mine", "cat", "/gcs/vision/gold/file", "/gcs/data/x")
    made = eve.post("/v1/projects/default/locations/us-central1/customJobs", json=body)
    assert made.status_code == 200, made.text
    spec = eve.get(f"/api/v1/jobs/{made.json()['name'].rpartition('/')[2]}").json()["spec"]
    mounts = {mount["at"]: mount.get("read_only", True) for mount in spec["mounts"]}
    assert mounts == {"/gcs/vision": True, "/gcs/default": False, "/gcs/data": False}


def test_a_viewer_of_an_empty_project_creates_no_folder_of_it(
    client: TestClient, as_user: Callable[..., TestClient], settings: Settings
) -> None:
    assert client.post("/api/v1/projects", json={"name": "empty"}).status_code == 201
    as_user("eve", role="viewer", project="empty")
    body = vertex("gs://default/mine", "ls", "/gcs/empty/x")
    made = as_user("eve").post("/v1/projects/default/locations/us-central1/customJobs", json=body)
    assert made.status_code == 200, made.text
    assert not (settings.home / "output" / "empty").exists()


def test_a_viewer_reads_and_a_member_writes(eve: TestClient, as_user: Callable[..., TestClient]) -> None:
    mounted = {**WRITABLE, "read_only": True}
    assert eve.post("/api/v1/jobs", json=job(input=f"{THEIRS}/file", mounts=[mounted])).status_code == 201
    as_user("ann", role="member", project="vision")
    assert as_user("ann").post("/api/v1/jobs", json=job(output=THEIRS, mounts=[WRITABLE])).status_code == 201


def test_a_bucket_of_a_viewed_project_is_read_only(eve: TestClient, settings: Settings) -> None:
    assert eve.get("/storage/v1/b/vision/o/gold%2Ffile?alt=media").text == "gold"
    for bucket, name in (("vision", "gold%2Ffile"), ("output", "vision%2Fgold%2Ffile")):
        assert eve.delete(f"/storage/v1/b/{bucket}/o/{name}").status_code in (403, 404)
        put = eve.post(f"/upload/storage/v1/b/{bucket}/o?uploadType=media&name={name}", content=b"lead")
        assert put.status_code == 403
    assert (settings.home / THEIRS / "file").read_text() == "gold"


# --- the rule itself -------------------------------------------------------------------------------------------------

SHARED = CachedVolume("output", "/srv/output", is_read_only=False, kind="local")
SETS = CachedVolume("sets", None, is_read_only=False, kind="pvc")


def caller(*, is_admin: bool = False, **roles: Role) -> Caller:
    projects = {name: ProjectMembership(name, name, role) for name, role in roles.items()}
    return Caller("user-1", "eve", is_admin, frozenset({Scope.WRITE}), "token-1", projects)


@pytest.mark.parametrize("path", ["vision", "vision/a/b"])
@pytest.mark.parametrize(
    ("who", "reads", "writes"),
    [
        (caller(), False, False),
        (caller(speech="admin"), False, False),
        (caller(vision="viewer"), True, False),
        (caller(vision="viewer", speech="admin"), True, False),
        (caller(vision="member"), True, True),
        (caller(vision="admin"), True, True),
        (caller(is_admin=True), True, True),
    ],
)
def test_the_role_in_the_folders_project_decides(
    tmp_path: Path, who: Caller, path: str, *, reads: bool, writes: bool
) -> None:
    settings = Settings(home=tmp_path)
    assert (access_refusal(settings, who, SHARED, path, writes=False) is None) is reads
    assert (access_refusal(settings, who, SHARED, path, writes=True) is None) is writes


@pytest.mark.parametrize(
    ("path", "reads"),
    [
        ("", False),
        (".models", False),
        (".models/vision", False),
        (".models/vision/version-1", True),
        (".models/vision/.drafts", False),
        (".models/speech/version-1", False),
    ],
)
def test_a_viewer_reads_the_models_of_a_project_and_no_role_writes_them(
    tmp_path: Path, path: str, *, reads: bool
) -> None:
    settings = Settings(home=tmp_path)
    assert (access_refusal(settings, caller(vision="viewer"), SHARED, path, writes=False) is None) is reads
    assert access_refusal(settings, caller(vision="admin"), SHARED, path, writes=True) is not None
    assert access_refusal(settings, caller(is_admin=True), SHARED, path, writes=True) is not None
    assert access_refusal(settings, caller(is_admin=True), SHARED, path, writes=False) is None


def test_other_volumes_are_for_members_of_projects(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    for writes in (False, True):
        assert access_refusal(settings, caller(vision="viewer"), SETS, "x", writes=writes) is not None
        assert access_refusal(settings, caller(vision="member"), SETS, "x", writes=writes) is None
