"""The audit log by the API: what entries hold and never hold, how floods are folded, and who reads them."""

from __future__ import annotations

import json
from typing import Any

from sqlalchemy import select
from trainmaster.audit import verify_entries

from core.db.audit import chain_entries
from core.db.engine import unit_of_work
from core.db.tables import AuditEntry, Job

SPEC = {"name": "next", "project": "vision", "command": "true", "env": {"PASSWORD": "hunter-2-in-a-spec"}}


def entries(house: Any, **wanted: str) -> list[dict[str, Any]]:
    """The newest first."""
    found: list[dict[str, Any]] = house.call("root", "GET", "/audit", params=wanted).json()["items"]
    return found


def test_an_entry_says_who_did_what_to_which_object_and_what_changed(house: Any) -> None:
    answer = house.call("root", "PATCH", "/projects/vision", json={"description": "cats"})
    (entry,) = entries(house)
    assert {name: entry[name] for name in ("action", "method", "route", "user", "outcome", "status", "project")} == {
        "action": "update_project", "method": "PATCH", "route": "/api/v1/projects/{project}", "user": "root",
        "outcome": "allowed", "status": 200, "project": "vision",
    }  # fmt: skip
    assert (entry["object_kind"], entry["object_id"]) == ("project", "vision")
    assert (entry["address"], entry["token_id"] is None) == ("testclient", False)
    assert entry["request_id"] == answer.headers["x-request-id"]
    assert entry["changes"] == [
        {"kind": "project", "id": "project-vision", "verb": "changed", "fields": {"description": ["", "cats"]}}
    ]


def test_a_submitted_job_is_recorded_with_its_id_and_once(house: Any) -> None:
    sent = {"json": {"spec": SPEC}, "headers": {"Idempotency-Key": "k"}}
    job = house.call("member", "POST", "/jobs", **sent).json()["id"]
    (entry,) = entries(house)
    assert (entry["object_kind"], entry["object_id"], entry["status"], entry["user"]) == ("job", job, 201, "member")
    assert (entry["project"], entry["project_id"]) == ("vision", "project-vision")
    assert house.call("member", "POST", "/jobs", **sent).json()["id"] == job
    assert [each["object_id"] for each in entries(house)] == [job, job]  # the repeated request, too
    house.call("member", "POST", f"/jobs/{job}/cancel")
    (cancelled, *_) = entries(house)
    assert cancelled["changes"][0]["fields"]["state"] == ["queued", "cancelled"]


def test_what_is_rolled_back_leaves_a_refusal_alone(house: Any) -> None:
    refused = house.call("member", "POST", "/projects/vision/models", json={"name": "not a name"})
    assert refused.status_code == 422
    (entry,) = entries(house)
    assert (entry["outcome"], entry["code"], entry["project"]) == ("refused", "invalid_request", "vision")
    with unit_of_work(house.sessions, read_only=True) as session:
        assert session.scalar(select(Job.id).where(Job.name == "next")) is None


def test_no_secret_is_recorded(house: Any) -> None:
    house.call("owner", "PUT", "/projects/vision/secrets/KEY", json={"value": "hunter-2-the-secret"})
    token = house.call("member", "POST", "/tokens", json={"name": "x", "scopes": ["read"]}).json()["token"]
    code = house.call("member", "POST", "/login/codes").json()["code"]
    made = house.client.post("/api/v1/login", json={"code": code}).json()["token"]
    house.call("member", "POST", "/jobs", json={"spec": SPEC})
    house.client.get("/api/v1/me", headers={"Authorization": "Bearer tm_wrong_hunter-2"})
    with unit_of_work(house.sessions, read_only=True) as session:
        rows = [str(vars(row)) for row in session.scalars(select(AuditEntry))]
    assert len(rows) == 6
    assert not [row for row in rows if any(secret in row for secret in ("hunter-2", token, code, made))]
    (login, *_) = entries(house, action="exchange_login")
    assert (login["user"], login["outcome"]) == ("member", "allowed")


def test_wrong_tokens_are_recorded_and_floods_are_folded(house: Any) -> None:
    for number in range(60):
        house.client.get("/api/v1/jobs", headers={"Authorization": f"Bearer tm_wrong_{number}"})
    single = entries(house, outcome="refused", limit="100")
    assert (len(single), {each["code"] for each in single}) == (30, {"unauthenticated"})
    house.app.state.audit_log.write_folded()
    (folded, *_) = entries(house)
    assert (folded["action"], folded["repeats"], folded["address"]) == ("list_jobs", 30, "testclient")
    house.app.state.audit_log.write_folded()
    assert entries(house)[0]["id"] == folded["id"]


def test_a_download_is_recorded_once_a_minute_whatever_its_ranges(house: Any) -> None:
    (house.output / "vision/job-1").mkdir(parents=True)
    (house.output / "vision/job-1/model.bin").write_bytes(b"0123456789")
    for first in range(3):
        found = house.call(
            "viewer", "GET", "/jobs/job-1/files/content?path=model.bin", headers={"Range": f"bytes={first}-5"}
        )
        assert found.status_code == 206
    (entry,) = entries(house)
    assert (entry["action"], entry["object_id"], entry["user"]) == ("download_file", "job-1", "viewer")


def test_admins_of_projects_see_their_projects_entries_alone(house: Any) -> None:
    house.call("member", "POST", "/jobs/job-1/pause")
    house.call("stranger", "POST", "/jobs", json={"spec": {**SPEC, "project": "other"}})
    house.call("root", "POST", "/users", json={"name": "fresh"})
    assert {each["project"] for each in house.call("owner", "GET", "/audit").json()["items"]} == {"vision"}
    assert {each["project"] for each in house.call("stranger", "GET", "/audit").json()["items"]} == {"other"}
    assert house.call("member", "GET", "/audit").status_code == 403
    assert house.call("owner", "GET", "/audit", params={"project": "other"}).status_code == 404
    assert [each["user"] for each in entries(house, project="other")] == ["stranger"]
    assert [each["action"] for each in entries(house, object="job-1")] == ["pause_job"]
    assert entries(house, since="2027-01-01T00:00:00Z") == entries(house, token="none") == []
    page = house.call("root", "GET", "/audit", params={"limit": 1}).json()
    following = house.call("root", "GET", "/audit", params={"limit": 1, "cursor": page["next_cursor"]}).json()
    assert following["items"][0]["id"] < page["items"][0]["id"]


def test_an_export_can_be_verified(house: Any) -> None:
    for number in range(3):
        house.call("root", "PATCH", "/projects/vision", json={"description": f"ü{number}"})
    with unit_of_work(house.sessions) as session:
        assert chain_entries(session, 2) == 2
    lines = house.call("root", "GET", "/audit/export").text.splitlines()
    found = verify_entries(json.loads(line) for line in lines)
    assert (found.mistakes, found.entries, found.position, found.unchained) == ([], 4, 2, 2)  # the export itself, too
    part = house.call("root", "GET", "/audit/export", params={"after": 1, "limit": 1}).text.splitlines()
    assert [json.loads(line)["position"] for line in part] == [2]
    forged = [json.loads(line.replace("ü0", "ü9")) for line in lines]
    assert "entry 1 was changed" in verify_entries(forged).mistakes[0]
