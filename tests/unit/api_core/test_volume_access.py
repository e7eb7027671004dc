"""Who may read and write where: a viewer's right stays to read, whichever way a job names another project's folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from api.app.cache import CachedGrant, CachedVolume, VolumeCache
from api.app.factory import create_app
from api.auth import Caller, ProjectMembership, Role, Scope
from api.volumes.access import UsablePart, access_refusal, usable_parts
from core.db.engine import SessionFactory
from core.settings import Settings
from core.wakeups import NoWakeup

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


def volume(*grants: CachedGrant, is_read_only: bool = False) -> CachedVolume:
    return CachedVolume("sets", None, is_read_only, "pvc", grants)


WRITE, READ = CachedGrant("vision", "", is_writable=True), CachedGrant("vision", "", is_writable=False)
ALL_WRITE, ALL_READ = CachedGrant(None, "", is_writable=True), CachedGrant(None, "", is_writable=False)


@pytest.mark.parametrize(
    ("who", "grants", "reads", "writes"),
    [
        (caller(vision="admin"), (), False, False),
        (caller(is_admin=True), (), True, True),
        (caller(vision="viewer"), (READ,), True, False),
        (caller(vision="viewer"), (WRITE,), True, False),
        (caller(vision="member"), (READ,), True, False),
        (caller(vision="member"), (WRITE,), True, True),
        (caller(vision="admin"), (WRITE,), True, True),
        (caller(speech="admin"), (WRITE,), False, False),
        (caller(vision="viewer", speech="admin"), (WRITE,), True, False),
        (caller(), (ALL_WRITE,), False, False),
        (caller(vision="viewer"), (ALL_WRITE,), False, False),
        (caller(speech="member"), (ALL_WRITE,), True, True),
        (caller(speech="member"), (ALL_READ,), True, False),
        (caller(vision="member"), (ALL_READ, WRITE), True, True),
        (caller(vision="viewer", speech="member"), (ALL_READ, WRITE), True, False),
    ],
)
def test_the_role_in_a_project_and_the_grants_decide(
    tmp_path: Path, who: Caller, grants: tuple[CachedGrant, ...], *, reads: bool, writes: bool
) -> None:
    settings = Settings(home=tmp_path)
    for path in ("", "x", "x/y"):
        assert (access_refusal(settings, who, volume(*grants), path, writes=False) is None) is reads
        assert (access_refusal(settings, who, volume(*grants), path, writes=True) is None) is writes
    assert access_refusal(settings, who, volume(*grants, is_read_only=True), "x", writes=True) is not None
    parts = [UsablePart("", is_writable=writes)] if reads else []
    assert usable_parts(settings, who, volume(*grants)) == parts


@pytest.mark.parametrize(
    ("path", "reads", "writes"),
    [
        ("a", True, False),
        ("a/x", True, False),
        ("a/b", True, True),
        ("a/b/x", True, True),
        ("", False, False),
        ("ab", False, False),
        ("a/bc", True, False),
        ("b", False, False),
        ("A", False, False),
        ("x/a", False, False),
    ],
)
def test_a_grant_of_a_folder_ends_at_the_folder(tmp_path: Path, path: str, *, reads: bool, writes: bool) -> None:
    settings, who = Settings(home=tmp_path), caller(vision="member")
    granted = volume(CachedGrant("vision", "a", is_writable=False), CachedGrant("vision", "a/b", is_writable=True))
    assert (access_refusal(settings, who, granted, path, writes=False) is None) is reads
    assert (access_refusal(settings, who, granted, path, writes=True) is None) is writes


# --- grants, by every way to a volume --------------------------------------------------------------------------------


@pytest.fixture
def sets(client: TestClient, tmp_path: Path) -> Path:
    """The folder of volume sets, without a grant, with files in a, a/b, ab and other."""
    root = tmp_path / "sets"
    for folder in ("a/b", "ab", "other"):
        (root / folder).mkdir(parents=True)
        (root / folder / "file").write_text(folder)
    assert client.post("/api/v1/volumes", json={"name": "sets", "root": str(root)}).status_code == 201
    return root


def grant(client: TestClient, access: str, prefix: str = "", grantee: str = "default") -> None:
    body = {"access": access, "prefix": prefix}
    assert client.put(f"/api/v1/volumes/sets/grants/{grantee}", json=body).status_code == 200


def mounting(path: str, *, read_only: bool) -> dict[str, Any]:
    return job(mounts=[{"volume": "sets", "path": path, "at": "/mnt/a", "read_only": read_only}])


def test_a_job_uses_what_is_granted_and_no_more(
    client: TestClient, as_user: Callable[..., TestClient], sets: Path
) -> None:
    ann = as_user("ann")
    refused = ann.post("/api/v1/jobs", json=mounting("a", read_only=True))
    (error,) = refused.json()["errors"]
    assert (refused.status_code, error["path"]) == (422, "mounts.0")
    assert "not granted" in error["message"]
    assert "`trainmaster volumes grant sets default read`" in error["hint"]
    grant(client, "read")
    assert ann.post("/api/v1/jobs", json=mounting("a", read_only=True)).status_code == 201
    for body, field in (
        (mounting("a", read_only=False), "mounts.0"),
        (job(output="sets/a"), "output"),
        (job(input="sets/a", output="sets/new"), "output"),
    ):
        refused = ann.post("/api/v1/jobs", json=body)
        (error,) = refused.json()["errors"]
        assert (refused.status_code, error["path"]) == (422, field)
        assert "read-only for your projects" in error["message"]
        assert "use it read-only" in error["hint"]
        assert "`trainmaster volumes grant sets default write`" in error["hint"]
    grant(client, "write")
    assert ann.post("/api/v1/jobs", json=mounting("a", read_only=False)).status_code == 201
    assert client.delete("/api/v1/volumes/sets/grants/default").status_code == 204
    assert ann.post("/api/v1/jobs", json=mounting("a", read_only=True)).status_code == 422
    assert client.post("/api/v1/jobs", json=mounting("a", read_only=False)).status_code == 201, "an administrator"


@pytest.mark.parametrize("path", ["", "ab", "a/../ab", "a/..", "../sets/a", "other"])
def test_a_granted_folder_is_not_left(
    client: TestClient, as_user: Callable[..., TestClient], sets: Path, path: str
) -> None:
    grant(client, "write", "a")
    ann = as_user("ann")
    assert ann.post("/api/v1/jobs", json=mounting("a/b", read_only=False)).status_code == 201
    assert ann.post("/api/v1/jobs", json=mounting(path, read_only=True)).status_code == 422
    assert ann.post("/api/v1/jobs", json=job(output=f"sets/{path}")).status_code == 422


def test_no_link_leads_out_of_a_granted_folder(
    client: TestClient, as_user: Callable[..., TestClient], sets: Path
) -> None:
    grant(client, "write", "a")
    (sets / "a" / "out").symlink_to("../other")
    (sets / "a" / "in").symlink_to("b")
    ann = as_user("ann")
    assert ann.post("/api/v1/jobs", json=mounting("a/in", read_only=True)).status_code == 201
    refused = ann.post("/api/v1/jobs", json=mounting("a/out", read_only=True))
    assert "link" in refused.json()["errors"][0]["message"]
    assert ann.get("/storage/v1/b/sets/o/a%2Fout%2Ffile?alt=media").status_code == 404
    # Of the job's output, too, once its last folder has become a link.
    made = ann.post("/api/v1/jobs", json=job(output="sets/a/later")).json()["id"]
    (sets / "a" / "later").symlink_to("../other")
    assert ann.get(f"/api/v1/jobs/{made}/files").json()["items"] == []
    assert ann.get(f"/api/v1/jobs/{made}/files/content?path=file").status_code == 404


def test_an_administrators_output_is_read_through_a_link_inside_a_volume_without_grants(
    client: TestClient, sets: Path
) -> None:
    (sets / "a" / "disk").symlink_to("../other")
    made = client.post("/api/v1/jobs", json=job(output="sets/a/disk")).json()["id"]
    assert [item["path"] for item in client.get(f"/api/v1/jobs/{made}/files").json()["items"]] == ["file"]


def test_a_bucket_shows_what_is_granted(client: TestClient, as_user: Callable[..., TestClient], sets: Path) -> None:
    ann = as_user("ann")
    at = "/storage/v1/b/sets"

    def names(user: TestClient) -> list[str]:
        return [item["name"] for item in user.get(f"{at}/o").json()["items"]]

    assert ann.get(f"{at}/o").status_code == 403
    assert "sets" not in [bucket["name"] for bucket in ann.get("/storage/v1/b").json()["items"]]
    grant(client, "read", "a")
    grant(client, "write", "a/b")
    assert "sets" in [bucket["name"] for bucket in ann.get("/storage/v1/b").json()["items"]]
    assert names(ann) == ["a/b/file"]
    assert names(client) == ["a/b/file", "ab/file", "other/file"]
    assert ann.get(f"{at}/o/ab%2Ffile?alt=media").status_code == 404
    for name, status in (("a%2Fnew", 403), ("a%2Fb%2Fnew", 200), ("ab%2Fnew", 403), ("new", 403)):
        put = ann.post(f"/upload{at}/o?uploadType=media&name={name}", content=b"x")
        assert put.status_code == status, put.text
    assert ann.delete(f"{at}/o/a%2Fb%2Ffile").status_code == 204
    assert ann.delete(f"{at}/o/ab%2Ffile").status_code in (403, 404)
    viewer = as_user("eve", role="viewer")
    assert names(viewer) == ["a/b/new"]
    assert viewer.delete(f"{at}/o/a%2Fb%2Fnew").status_code == 403
    assert (sets / "ab" / "file").exists()


def test_a_vertex_job_mounts_the_granted_folders(
    client: TestClient, as_user: Callable[..., TestClient], sets: Path
) -> None:
    grant(client, "read", "a")
    grant(client, "write", "other")
    ann = as_user("ann")
    body = vertex("gs://default/mine", "cat", "/gcs/sets/a/b/file")
    made = ann.post("/v1/projects/default/locations/us-central1/customJobs", json=body)
    assert made.status_code == 200, made.text
    spec = ann.get(f"/api/v1/jobs/{made.json()['name'].rpartition('/')[2]}").json()["spec"]
    mounts = {mount["at"]: (mount["path"], mount.get("read_only", True)) for mount in spec["mounts"]}
    assert mounts["/gcs/sets/a"] == ("a", True)
    assert mounts["/gcs/sets/other"] == ("other", False)
    refused = ann.post("/v1/projects/default/locations/us-central1/customJobs", json=vertex("gs://sets/a/out", "true"))
    assert refused.status_code in (400, 403), refused.text


def test_the_list_shows_the_usable_parts(client: TestClient, as_user: Callable[..., TestClient], sets: Path) -> None:
    ann, eve, bob = as_user("ann"), as_user("eve", role="viewer"), as_user("bob", role=None)

    def parts(user: TestClient) -> Any:
        items = user.get("/api/v1/volumes").json()["items"]
        return {item["name"]: [(part["prefix"], part["access"]) for part in item["parts"]] for item in items}

    everyones = {"data": [("", "write")], "output": [("default", "write")]}
    assert parts(ann) == everyones
    grant(client, "write", "a")
    grant(client, "read", "a", grantee="everyone")
    grant(client, "read", "ab", grantee="everyone")
    assert parts(ann) == {**everyones, "sets": [("a", "write"), ("ab", "read")]}
    assert parts(eve) == {"output": [("default", "read")], "sets": [("a", "read")]}
    assert parts(bob) == {}
    assert bob.get("/api/v1/volumes/sets").status_code == 404
    shown = client.get("/api/v1/volumes/sets").json()
    assert shown["parts"] == [{"prefix": "", "access": "write"}]
    assert shown["grants"] == [
        {"grantee": "everyone", "access": "read", "prefix": "a"},
        {"grantee": "everyone", "access": "read", "prefix": "ab"},
        {"grantee": "default", "access": "write", "prefix": "a"},
    ]
    assert ann.get("/api/v1/volumes/sets").json()["grants"] == []


def test_the_output_of_a_job_is_read_while_it_is_granted(
    client: TestClient, as_user: Callable[..., TestClient], sets: Path
) -> None:
    grant(client, "write", "a")
    ann = as_user("ann")
    made = ann.post("/api/v1/jobs", json=job(output="sets/a/b")).json()["id"]
    assert [item["path"] for item in ann.get(f"/api/v1/jobs/{made}/files").json()["items"]] == ["file"]
    assert client.delete("/api/v1/volumes/sets/grants/default?prefix=a").status_code == 204
    for path in ("files", "files/content?path=file", "checkpoints/content?path=file"):
        refused = ann.get(f"/api/v1/jobs/{made}/{path}")
        assert (refused.status_code, "not granted" in refused.text) == (403, True), path
    assert client.get(f"/api/v1/jobs/{made}/files").status_code == 200


def test_a_clone_resumes_only_from_what_may_be_read(
    client: TestClient, as_user: Callable[..., TestClient], sets: Path
) -> None:
    grant(client, "write")
    ann = as_user("ann")
    original = ann.post("/api/v1/jobs", json=job(output="sets/a/b")).json()["id"]
    (sets / "a" / "b" / "model.pt").write_bytes(b"1")
    client.delete("/api/v1/volumes/sets/grants/default")
    refused = ann.post(f"/api/v1/jobs/{original}/clone", json={"changes": {"output": None}, "checkpoint": "model.pt"})
    assert refused.status_code == 422, refused.text
    assert "not granted" in refused.text


# --- changes of grants -----------------------------------------------------------------------------------------------


def test_grants_are_given_at_registration_and_recorded(client: TestClient, tmp_path: Path) -> None:
    given = [{"grantee": "everyone", "access": "read"}, {"grantee": "default", "access": "write", "prefix": "a//b/"}]
    body = {"name": "sets", "kind": "pvc", "config": {"claim": "c"}, "grants": given}
    made = client.post("/api/v1/volumes", json=body)
    assert made.status_code == 201, made.text
    stored = [
        {"grantee": "everyone", "access": "read", "prefix": ""},
        {"grantee": "default", "access": "write", "prefix": "a/b"},
    ]
    assert made.json()["grants"] == client.get("/api/v1/volumes/sets").json()["grants"] == stored
    again = {"access": "read", "prefix": ""}
    client.put("/api/v1/volumes/sets/grants/everyone", json=again)  # no change, no event
    client.put("/api/v1/volumes/sets/grants/everyone", json={**again, "access": "write"})
    client.delete("/api/v1/volumes/sets/grants/everyone")
    events = client.get("/api/v1/events", params={"limit": 100}).json()["items"]
    kinds = ("volume.granted", "volume.revoked")
    found = [(event["kind"], sorted(event["data"].items())) for event in events if event["kind"] in kinds]
    changed = {"name": "sets", "grantee": "everyone", "access": "write", "prefix": ""}
    wanted = [("volume.granted", {"name": "sets", **each}) for each in stored]
    wanted += [("volume.granted", changed), ("volume.revoked", changed)]
    assert sorted(found) == sorted((kind, sorted(data.items())) for kind, data in wanted)


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("sets/grants/nobody", {"access": "read"}, 404),
        ("none/grants/default", {"access": "read"}, 404),
        ("output/grants/default", {"access": "read"}, 409),
        ("sets/grants/default", {"access": "all"}, 422),
        ("sets/grants/default", {"access": "read", "prefix": "a/../b"}, 422),
        ("sets/grants/default", {}, 422),
    ],
)
def test_a_grant_that_makes_no_sense_is_refused(
    client: TestClient, sets: Path, path: str, body: Any, status: int
) -> None:
    assert client.put(f"/api/v1/volumes/{path}", json=body).status_code == status
    assert client.get("/api/v1/volumes/sets").json()["grants"] == []


def test_a_grant_that_is_not_there_is_not_revoked(client: TestClient, sets: Path) -> None:
    grant(client, "read", "a")
    for place in ("default", "everyone?prefix=a", "default?prefix=a/b"):
        assert client.delete(f"/api/v1/volumes/sets/grants/{place}").status_code == 404
    assert client.delete("/api/v1/volumes/sets/grants/default?prefix=/a").status_code == 422


def test_a_deleted_project_has_no_grants(client: TestClient, as_user: Callable[..., TestClient], sets: Path) -> None:
    assert client.post("/api/v1/projects", json={"name": "vision"}).status_code == 201
    grant(client, "write", grantee="vision")
    grant(client, "read")
    assert client.delete("/api/v1/projects/vision").status_code == 204
    assert [g["grantee"] for g in client.get("/api/v1/volumes/sets").json()["grants"]] == ["default"]
    events = client.get("/api/v1/events", params={"limit": 100}).json()["items"]
    (revoked,) = [event["data"] for event in events if event["kind"] == "volume.revoked"]
    assert revoked == {"name": "sets", "grantee": "vision", "access": "write", "prefix": ""}
    assert client.delete("/api/v1/volumes/sets").status_code == 204


def test_no_project_is_named_everyone(client: TestClient) -> None:
    refused = client.post("/api/v1/projects", json={"name": "everyone"})
    assert (refused.status_code, refused.json()["field"]) == (422, "name")


def test_another_process_sees_changed_grants_soon(
    client: TestClient, as_user: Callable[..., TestClient], sets: Path, sessions: SessionFactory, clock: Any
) -> None:
    other = VolumeCache(sessions)
    before = other.find("sets", clock())
    assert before is not None
    assert before.grants == ()
    grant(client, "read", "a")
    clock.advance(3)
    after = other.find("sets", clock())
    assert after is not None
    assert [(each.prefix, each.is_writable) for each in after.grants] == [("a", False)]


def test_nothing_is_staged_without_a_token_where_not_everyone_may_write(
    settings: Settings, sessions: SessionFactory, client: TestClient, sets: Path
) -> None:
    package = "aiplatform-2026-11-21-12:00:00.000-a-1.tar.gz"
    app = create_app(
        settings.model_copy(update={"vertex_open_staging": "anywhere"}), sessions=sessions, wakeup=NoWakeup()
    )
    with TestClient(app) as stranger:
        for access, status in (("read", 403), ("write", 200)):
            grant(client, access, grantee="everyone")
            app.state.context.volumes.clear()
            put = stranger.post(f"/upload/storage/v1/b/sets/o?uploadType=media&name={package}", content=b"x")
            assert put.status_code == status, put.text
