"""Storage quotas as users meet them: shown, warned of, refused, and set by platform admins."""

from __future__ import annotations

import gzip
import hashlib
import os
from typing import Any

import pytest

from core.db.engine import unit_of_work
from core.db.tables import Archive, Event, Membership, ModelVersion, Project, StorageUsage

GIB = 2**30
JOB = {"name": "digits", "project": "vision", "command": "python train.py"}
STUDY = {
    "name": "sweep", "project": "vision", "template": {"command": "train"}, "metric": "score", "goal": "maximize",
    "parameters": {"x": {"type": "float", "min": 0, "max": 1}}, "budget": {"trials": 4, "parallel": 2},
}  # fmt: skip
DATA = gzip.compress(os.urandom(50_000), mtime=0)
DIGEST = "sha256:" + hashlib.sha256(DATA).hexdigest()


@pytest.fixture
def use(house: Any) -> Any:
    """Sets the quota of a project, and what it uses."""

    def set_usage(used: int, limit: str | None = "10Gi", *, project: str = "vision") -> None:
        with unit_of_work(house.sessions) as session:
            session.get_one(Project, f"project-{project}").quota = (
                {} if limit is None else {"limit": {"storage": limit}}
            )
            session.merge(
                StorageUsage(
                    project_id=f"project-{project}", parts={"outputs": used, "models": 0}, used_bytes=used,
                    added_bytes=0, measured_at=house.now, due_at=house.now,
                )
            )  # fmt: skip

    return set_usage


def usage(house: Any, project: str = "vision") -> StorageUsage:
    with unit_of_work(house.sessions, read_only=True) as session:
        return session.get_one(StorageUsage, f"project-{project}")


def demand_refused(answer: Any) -> None:
    assert (answer.status_code, answer.json()["code"]) == (507, "storage_quota_exceeded")
    assert "Project vision uses 10.5 GiB of its storage quota of 10.0 GiB (105 %)." in answer.json()["detail"]
    assert "trainmaster delete JOB --files" in answer.json()["detail"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/jobs", {"spec": JOB}),
        ("/jobs", {"spec": JOB, "dry_run": True}),
        ("/jobs/job-1/clone", {}),
        ("/studies", {"spec": STUDY}),
        ("/studies", {"spec": STUDY, "dry_run": True}),
    ],
)
def test_a_full_project_gets_no_new_work_and_an_unlimited_one_does(
    house: Any, use: Any, path: str, body: dict[str, Any]
) -> None:
    use(int(10.5 * GIB))
    demand_refused(house.call("member", "POST", path, json=body))
    use(int(10.5 * GIB), None)
    assert house.call("member", "POST", path, json=body).status_code in (200, 201)


def test_a_repeated_request_gets_its_job_although_the_project_is_full_by_now(house: Any, use: Any) -> None:
    headers = {"Idempotency-Key": "once"}
    first = house.call("member", "POST", "/jobs", json={"spec": JOB}, headers=headers)
    use(int(10.5 * GIB))
    again = house.call("member", "POST", "/jobs", json={"spec": JOB}, headers=headers)
    assert (again.status_code, again.json()["id"]) == (201, first.json()["id"])
    demand_refused(house.call("member", "POST", "/jobs", json={"spec": JOB}, headers={"Idempotency-Key": "twice"}))


def test_from_80_percent_on_answers_warn(house: Any, use: Any) -> None:
    use(int(7.9 * GIB))
    assert house.call("member", "POST", "/jobs", json={"spec": JOB}).json()["warnings"] == []
    use(int(8.5 * GIB))
    submitted = house.call("member", "POST", "/jobs", json={"spec": JOB}).json()
    (warning,) = submitted["warnings"]
    assert warning.startswith("Project vision uses 8.5 GiB of its storage quota of 10.0 GiB (85 %).")
    assert house.call("member", "GET", f"/jobs/{submitted['id']}").json()["warnings"] == [warning]
    checked = house.call("member", "POST", "/jobs", json={"spec": JOB, "dry_run": True})
    assert "(85 %)" in checked.headers["Warning"]
    assert f"storage: {warning}" in house.call("viewer", "GET", "/projects/vision/quota").json()["warnings"]
    house.set_state("job-1", "succeeded")
    assert house.call("member", "GET", "/jobs/job-1").json()["warnings"] == []


def test_the_quota_shows_usage_by_kind_and_its_time(house: Any, use: Any) -> None:
    assert house.call("viewer", "GET", "/projects/vision/quota").json()["storage"] == {
        "used": 0, "limit": None, "percent": None, "parts": {}, "measured_at": None, "unreadable_folders": 0,
    }  # fmt: skip
    use(5 * GIB)
    quota = house.call("viewer", "GET", "/projects/vision/quota").json()
    assert quota["storage"] == {
        "used": 5 * GIB, "limit": 10 * GIB, "percent": 50.0, "parts": {"outputs": 5 * GIB, "models": 0},
        "measured_at": "2026-11-21T07:00:00Z", "unreadable_folders": 0,
    }  # fmt: skip
    with unit_of_work(house.sessions) as session:
        session.get_one(StorageUsage, "project-vision").unreadable = 2
    unreadable = house.call("viewer", "GET", "/projects/vision/quota").json()["warnings"]
    assert unreadable == ["storage: 2 folders are not counted, as the platform's user may not read them."]
    (line,) = [line for line in quota["lines"] if line["what"] == "storage"]
    assert (line["used"], line["limit"], line["capacity"]) == (5 * GIB, 10 * GIB, None)


def test_platform_admins_set_the_quota_and_have_it_measured(house: Any, use: Any) -> None:
    use(5 * GIB, None)
    with unit_of_work(house.sessions) as session:
        session.get_one(StorageUsage, "project-vision").due_at = house.now.replace(year=2027)
    change = {"limit": {"storage": "4Gi"}}
    assert house.call("owner", "PATCH", "/projects/vision/quota", json=change).status_code == 403
    changed = house.call("root", "PATCH", "/projects/vision/quota", json=change).json()
    assert changed["storage"]["limit"] == 4 * GIB
    assert "(125 %)" in changed["warnings"][0]
    assert usage(house).due_at == house.now
    removed = house.call("root", "PATCH", "/projects/vision/quota", json={"limit": {"storage": None}}).json()
    assert removed["storage"]["limit"] is None
    for wrong in ({"guaranteed": {"storage": "1Gi"}}, {"user_limit": {"storage": "1Gi"}}, {"limit": {"storage": "9"}}):
        refused = house.call("root", "PATCH", "/projects/vision/quota", json=wrong)
        assert (refused.status_code, refused.json()["code"]) == (422, "invalid_request")
        assert "storage" in refused.json()["field"]


# --- uploads ---------------------------------------------------------------------------------------------------------


def start(house: Any, who: str = "member", **params: Any) -> Any:
    return house.call(who, "POST", "/archives", params={"digest": DIGEST, "size": len(DATA), **params})


def test_code_counts_once_against_the_project_that_uploads_it(house: Any, use: Any) -> None:
    use(5 * GIB)
    assert start(house, project="vision").status_code == 201
    assert start(house, project="vision").status_code == 201  # resumed
    assert usage(house).added_bytes == len(DATA)
    done = house.call("member", "PUT", f"/archives/{DIGEST}", params={"offset": 0}, content=DATA)
    assert done.json()["is_complete"]
    assert usage(house).added_bytes == len(DATA)
    with unit_of_work(house.sessions, read_only=True) as session:
        row = session.get_one(Archive, DIGEST)
    assert (row.project_id, row.is_complete) == ("project-vision", True)
    assert start(house, "stranger", project="other").json()["is_complete"]
    with unit_of_work(house.sessions, read_only=True) as session:
        assert session.get_one(Archive, DIGEST).project_id == "project-vision"
    assert start(house, "viewer", project="vision").status_code in (200, 403)


def test_code_is_refused_by_a_full_project_and_begun_uploads_are_finished(house: Any, use: Any) -> None:
    use(int(10.5 * GIB))
    demand_refused(start(house, project="vision"))
    demand_refused(start(house))  # its only project
    use(10 * GIB - 10)
    assert "48.9 KiB more do not fit" in start(house).json()["detail"]
    use(5 * GIB)
    assert start(house).status_code == 201
    use(int(10.5 * GIB))
    assert start(house).status_code == 201
    assert house.call("member", "PUT", f"/archives/{DIGEST}", params={"offset": 0}, content=DATA).status_code == 200


def test_code_of_no_named_project_counts_against_one_with_room(house: Any, use: Any) -> None:
    with unit_of_work(house.sessions) as session:
        session.add(Membership(project_id="project-other", user_id=house.users["member"], role="member"))
    use(int(10.5 * GIB), project="other")
    use(5 * GIB)
    assert start(house).status_code == 201
    assert usage(house).added_bytes == len(DATA)
    assert usage(house, "other").added_bytes == 0


def put_object(house: Any, name: str, data: bytes, *, who: str = "member", bucket: str = "output") -> Any:
    return house.client.post(
        f"/upload/storage/v1/b/{bucket}/o?uploadType=media&name={name}", content=data, headers=house.auth(who)
    )


def test_objects_count_at_once_and_are_refused_by_a_full_project(house: Any, use: Any) -> None:
    use(0, "1Mi")
    assert put_object(house, "vision/a.bin", bytes(600_000)).status_code == 200
    assert usage(house).added_bytes == 600_000
    refused = put_object(house, "vision/b.bin", bytes(600_000))
    assert refused.status_code == 507
    assert "of its storage quota of 1.0 MiB" in refused.json()["error"]["message"]
    assert not (house.output / "vision" / "b.bin").exists()
    assert put_object(house, "vision/c.bin", bytes(400_000), bucket="output").status_code == 200
    assert put_object(house, "c.bin", bytes(600_000), bucket="vision").status_code == 507
    assert put_object(house, "c.bin", bytes(600_000), bucket="data").status_code == 200  # no project's own folder


def test_chunks_of_a_resumable_upload_count_and_its_draft_names_the_project(house: Any, use: Any) -> None:
    use(0, "1Mi")
    begun = house.client.post(
        "/upload/storage/v1/b/output/o?uploadType=resumable",
        json={"name": "vision/m.bin"},
        headers=house.auth("member"),
    )
    place = begun.headers["location"].replace("http://testserver", "")
    part = {**house.auth("member"), "Content-Range": "bytes 0-262143/*"}
    assert house.client.put(place, content=bytes(2**18), headers=part).status_code == 308
    assert usage(house).added_bytes == 2**18
    (draft,) = (house.output / ".uploads").glob("vision.*")
    assert draft.stat().st_size == 2**18
    use(2 * 2**20, "1Mi")
    rest = {**house.auth("member"), "Content-Range": "bytes 262144-524287/*"}
    assert house.client.put(place, content=bytes(2**18), headers=rest).status_code == 507
    assert not draft.exists()


def test_models_are_refused_when_their_copies_do_not_fit_and_count_when_they_do(house: Any, use: Any) -> None:
    folder = house.output / "vision" / "job-1"
    folder.mkdir(parents=True)
    (folder / "model.pt").write_bytes(bytes(700_000))
    house.set_state("job-1", "succeeded")
    use(500_000, "1Mi")
    path, body = "/projects/vision/models/digits/versions", {"job": "job-1", "path": "model.pt"}
    refused = house.call("member", "POST", path, json=body)
    assert (refused.status_code, refused.json()["code"]) == (507, "storage_quota_exceeded")
    with unit_of_work(house.sessions, read_only=True) as session:
        assert session.query(ModelVersion).count() == 0
    use(100_000, "1Mi")
    assert house.call("member", "POST", path, json=body).status_code in (201, 202)
    assert usage(house).added_bytes == 700_000


def test_deleting_a_job_with_its_files_has_the_project_measured(house: Any, use: Any) -> None:
    use(5 * GIB)
    with unit_of_work(house.sessions) as session:
        session.get_one(StorageUsage, "project-vision").due_at = house.now.replace(year=2027)
        house.add_job(session, "job-2", state="succeeded")
    assert house.call("member", "DELETE", "/jobs/job-2", params={"files": True}).status_code == 204
    assert usage(house).due_at == house.now


def test_a_deleted_projects_usage_is_forgotten(house: Any, use: Any) -> None:
    use(5 * GIB, project="other")
    assert house.call("stranger", "DELETE", "/projects/other").status_code == 204
    with unit_of_work(house.sessions, read_only=True) as session:
        assert session.get(StorageUsage, "project-other") is None
        assert session.query(Event).filter_by(kind="project.deleted").count() == 1
