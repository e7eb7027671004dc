"""Service accounts: rights in one project, tokens that its admins manage, no login."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import FastAPI
from starlette.testclient import TestClient

AT = "/api/v1/projects/default/service-accounts"
PAGE = {"Sec-Fetch-Site": "same-origin"}


def ok(answer: Any) -> Any:
    assert answer.status_code < 300, answer.text
    return answer.json() if answer.content else None


def account_of(app: FastAPI, by: TestClient, role: str = "member", **body: Any) -> tuple[TestClient, Any]:
    assert ok(by.post(AT, json={"name": "ci", "role": role}))["name"] == "ci@default"
    token = ok(by.post(f"{AT}/ci/tokens", json={"name": "nightly", **body}))
    return TestClient(app, headers={"Authorization": f"Bearer {token['token']}"}), token


def test_its_jobs_are_its_own_and_it_stays_when_its_maker_leaves(
    app: FastAPI, client: TestClient, as_user: Callable[..., TestClient], submit: Callable[..., str]
) -> None:
    ann = as_user("ann", role="admin")
    ci, _ = account_of(app, ann)
    job = submit(ci)
    assert client.get(f"/api/v1/jobs/{job}").json()["user"] == "ci@default"
    assert [each["id"] for each in client.get("/api/v1/jobs?user=ci@default").json()["items"]] == [job]
    for token in ok(ann.get("/api/v1/tokens"))["items"]:
        ok(client.delete(f"/api/v1/tokens/{token['id']}"))
    ok(client.patch("/api/v1/users/ann", json={"is_disabled": True}))
    ok(client.delete("/api/v1/projects/default/members/ann"))
    assert submit(ci)


def test_it_has_rights_in_its_project_alone_and_no_login(app: FastAPI, client: TestClient) -> None:
    ok(client.post("/api/v1/projects", json={"name": "vision"}))
    ci, token = account_of(app, client)
    assert ci.get("/api/v1/me").json()["projects"] == {"default": "member"}
    assert ci.get("/api/v1/projects/vision").status_code == 404
    refused = client.put("/api/v1/projects/vision/members/ci@default", json={"role": "admin"})
    assert (refused.status_code, "service account" in refused.json()["detail"]) == (409, True)
    assert client.patch("/api/v1/users/ci@default", json={"is_admin": True}).status_code == 409
    assert ci.post("/api/v1/login/codes").status_code == 403
    assert ci.post("/api/v1/tokens", json={"name": "x"}).status_code == 403
    session = TestClient(app).post("/api/v1/session", json={"token": token["token"]}, headers=PAGE)
    assert (session.status_code, "no login" in session.json()["detail"]) == (403, True)


def test_lists_show_it_as_a_service_account(app: FastAPI, client: TestClient) -> None:
    account_of(app, client, role="viewer")
    members = ok(client.get("/api/v1/projects/default/members"))["items"]
    assert {"user": "ci@default", "role": "viewer", "is_service_account": True} in members
    users = {each["name"]: each["is_service_account"] for each in ok(client.get("/api/v1/users"))["items"]}
    assert users["ci@default"] is True
    assert users["admin"] is False


def test_it_cannot_become_the_projects_last_admin(
    app: FastAPI, client: TestClient, as_user: Callable[..., TestClient]
) -> None:
    as_user("ann", role="admin")
    account_of(app, client, role="admin")
    ok(client.delete("/api/v1/projects/default/members/admin"))
    assert client.delete("/api/v1/projects/default/members/ann").status_code == 409


def test_admins_of_the_project_manage_its_tokens(
    app: FastAPI, client: TestClient, as_user: Callable[..., TestClient], clock: Any
) -> None:
    ann, bob = as_user("ann", role="admin"), as_user("bob", role="member")
    ci, token = account_of(app, ann, expires_in_s=60, scopes=["jobs:read"])
    assert (token["scopes"], token["projects"], token["parent_id"]) == (["jobs:read"], ["default"], None)
    assert bob.post(f"{AT}/ci/tokens", json={"name": "x"}).status_code == 403
    assert bob.get(f"{AT}/ci/tokens").status_code == 403
    assert [each["id"] for each in ok(client.get(f"{AT}/ci@default/tokens"))["items"]] == [token["id"]]
    assert ann.post(f"{AT}/ci/tokens", json={"name": "x", "scopes": ["admin"]}).status_code == 403
    assert ann.post(f"{AT}/ci/tokens", json={"name": "x", "expires_in_s": 1e12}).status_code == 422
    assert ci.get("/api/v1/jobs").status_code == 200
    ok(ann.delete(f"{AT}/ci/tokens/{token['id']}"))
    assert ci.get("/api/v1/jobs").status_code == 401
    second = ok(ann.post(f"{AT}/ci/tokens", json={"name": "second", "expires_in_s": 60}))
    later = TestClient(app, headers={"Authorization": f"Bearer {second['token']}"})
    ok(ann.patch(f"{AT}/ci", json={"is_disabled": True}))
    assert later.get("/api/v1/jobs").status_code == 401
    ok(ann.patch(f"{AT}/ci", json={"is_disabled": False}))
    assert later.get("/api/v1/jobs").status_code == 200
    clock.advance(61)
    assert later.get("/api/v1/jobs").json()["code"] == "token_expired"


def test_deletion_ends_its_tokens_and_says_what_happens_to_its_jobs(
    app: FastAPI, client: TestClient, submit: Callable[..., str]
) -> None:
    ci, _ = account_of(app, client)
    job = submit(ci)
    ended = ok(client.delete(f"{AT}/ci"))
    assert (ended["revoked_tokens"], ended["unfinished_jobs"]) == (1, 1)
    assert ci.get("/api/v1/me").status_code == 401
    view = client.get(f"/api/v1/jobs/{job}").json()
    assert (view["state"], view["user"]) == ("queued", ended["user"])
    assert ok(client.get(AT))["items"] == []
    account_of(app, client)  # the name is free


def test_a_deleted_project_takes_its_accounts_with_it(app: FastAPI, client: TestClient) -> None:
    ok(client.post("/api/v1/projects", json={"name": "short"}))
    ok(client.post("/api/v1/projects/short/service-accounts", json={"name": "ci"}))
    token = ok(client.post("/api/v1/projects/short/service-accounts/ci/tokens", json={"name": "x"}))
    ok(client.delete("/api/v1/projects/short"))
    refused = TestClient(app).get("/api/v1/me", headers={"Authorization": f"Bearer {token['token']}"})
    assert refused.status_code == 401
    ok(client.post("/api/v1/projects", json={"name": "short"}))
    ok(client.post("/api/v1/projects/short/service-accounts", json={"name": "ci"}))
